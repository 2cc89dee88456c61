"""Proves that ``freeze`` names weights as transformers does, and that what is frozen costs weights and nothing else.

Phases of frozen models are held to traces of real ones in tests/with_torch/test_trace_agrees.py.
"""

from typing import Any

import pytest
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.engine.build import build_ledger
from memplan.engine.ledger import Ledger
from memplan.engine.tensors import count, model_weights
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.freezing import matches, path_of
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

TINY = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 4096, "tie_word_embeddings": False}
TIED = {**TINY, "tie_word_embeddings": True}
MIXTRAL = {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
HEAD, ATTENTION, MLP = 4096 * 256, 2 * 256 * 256 + 2 * 128 * 256, 3 * 512 * 256
LAYER = ATTENTION + MLP + 2 * 256
WHOLE = 2 * HEAD + 4 * LAYER + 256


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({"model": TINY, "method": "sft", "sequence_length": 64, **keys}))


def ledger_of(**keys: Any) -> Ledger:
    return build_ledger(recipe(**keys))


def trained(**keys: Any) -> int:
    found = recipe(**keys)
    return count([weight for weight in model_weights(found.model, found.adapter is None) if weight.trained])


def refusal(**keys: Any) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        recipe(**keys)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("embed_tokens", "model.embed_tokens.weight", True),
        ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", True),
        ("layers.1", "model.layers.1.mlp.up_proj.weight", True),
        ("layers.1", "model.layers.10.mlp.up_proj.weight", False),
        ("layers.0-15", "model.layers.15.input_layernorm.weight", True),
        ("layers.0-15", "model.layers.16.input_layernorm.weight", False),
        ("transformer.h.3", "transformer.h.3.attn.c_attn.weight", True),
        ("layers.*.mlp", "model.layers.7.mlp.experts.gate_up_proj", True),
        ("layers.*.self_attn.*", "model.layers.7.mlp.up_proj.weight", False),
        ("q_proj", "model.layers.7.self_attn.q_proj.bias", True),
        ("proj", "model.layers.7.self_attn.q_proj.weight", False),
        ("*_proj", "model.layers.7.self_attn.q_proj.weight", True),
        ("norm", "model.norm.weight", True),
        ("norm", "model.layers.7.input_layernorm.weight", False),
        ("*norm*", "model.layers.7.input_layernorm.weight", True),
        ("vision_tower", "visual.blocks.0.attn.qkv.weight", True),
    ],
)
def test_a_pattern_stands_in_the_name_segment_by_segment(pattern: str, name: str, expected: bool) -> None:
    assert matches(path_of(pattern), path_of(name)) is expected


@pytest.mark.parametrize(
    ("model", "freeze", "left"),
    [
        (TINY, [], WHOLE),
        (TINY, ["embed_tokens"], WHOLE - HEAD),
        (TINY, "lm_head,embed_tokens", WHOLE - 2 * HEAD),
        (TINY, ["layers.0-1"], WHOLE - 2 * LAYER),
        (TINY, ["model.layers.3"], WHOLE - LAYER),
        (TINY, ["layers.*.mlp", "layers.0"], WHOLE - 4 * MLP - ATTENTION - 512),
        (TINY, ["norm"], WHOLE - 256),
        (TINY, ["*norm*"], WHOLE - 9 * 256),
        (TINY, ["k_proj"], WHOLE - 4 * 128 * 256),
        (TIED, ["embed_tokens"], WHOLE - 2 * HEAD),
        (MIXTRAL, ["layers.*.mlp.experts"], 2 * HEAD + 256 + 4 * (ATTENTION + 512 + 4 * 256)),
    ],
)
def test_what_is_named_is_not_trained(model: dict[str, Any], freeze: Any, left: int) -> None:
    assert trained(model=model, freeze=freeze) == left
    ledger = ledger_of(model=model, freeze=freeze, optimizer="adamw", optimizer_impl="fused")
    step = ledger.by_category("step.optimizer")
    assert step["optimizer_states"] == 4 * left
    assert step["gradients"] == pytest.approx(2 * left, rel=1e-3), "every tensor is rounded up to 512 bytes"
    assert step["parameters"] == ledger_of(model=model).by_category("step.optimizer")["parameters"]


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ({"freeze": ["*"]}, "freeze: nothing is left to train", "freeze less"),
        ({"freeze": ["lmhead"]}, "freeze: 'lmhead' names no weight of llama", "lm_head"),
        ({"freeze": ["layers.4"]}, "freeze: 'layers.4' names no weight of llama", "the layers are 0 to 3"),
        ({"freeze": ["lm_head"], "model": TIED}, "freeze: 'lm_head' names no weight", "freeze embed_tokens"),
        ({"freeze": ["layers.0"], "lora": {"r": 8}}, "freeze: the base is frozen under LoRA", "lora.targets"),
        ({"freeze": ["layers.0"], "trainer": "llamafactory"}, "freeze: LLaMA-Factory keeps frozen", "give precision"),
    ],
)
def test_what_cannot_be_frozen_is_refused(keys: dict[str, Any], message: str, hint: str) -> None:
    error = refusal(**keys)
    assert message in error.message
    assert hint in error.hint


def test_below_the_lowest_trained_weight_there_is_no_graph() -> None:
    """Frozen layers under frozen embeddings save nothing; under trained ones the gradient passes through them."""
    instant = "policy.forward"
    saved = {
        name: ledger_of(freeze=freeze).by_category(instant)["activations"]
        for name, freeze in {
            "all": [],
            "bottom": ["embed_tokens", "layers.0-1"],
            "layers": ["layers.0-1"],
            "top": ["layers.2-3", "norm", "lm_head"],
        }.items()
    }
    assert saved["bottom"] < 0.6 * saved["all"]
    assert saved["bottom"] < saved["layers"] < saved["all"]
    assert saved["top"] == pytest.approx(saved["layers"], rel=0.1)


def test_a_resident_reference_is_not_touched() -> None:
    """Its weights keep requires_grad under TRL, so that autocast keeps copies of all of them."""
    keys = {"method": "dpo", "reference": "resident", "precision": "bf16-amp", "trainer": "trl"}
    whole, part = ledger_of(**keys), ledger_of(**keys, freeze=["layers.0-2"])
    for name in ("reference", "autocast_weights"):
        sizes = [ledger.by_category("reference.forward")[name] for ledger in (whole, part)]
        assert sizes[0] == sizes[1] > 0, name


PATTERNS = ["embed_tokens", "lm_head", "norm", "layers.0", "layers.1-2", "layers.3", "q_proj", "layers.*.mlp", "*norm*"]


@given(
    freeze=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4, unique=True),
    keys=st.fixed_dictionaries(
        {},
        optional={
            "model": st.sampled_from([TIED, MIXTRAL]),
            "gradient_checkpointing": st.booleans(),
            "method": st.sampled_from(["sft", "simpo", "dpo", "reward"]),
            "precision": st.sampled_from(["fp32", "bf16-amp"]),
            "sharding": st.sampled_from(["ddp", "fsdp2"]),
            "optimizer": st.sampled_from(["sgd", "adamw-8bit", "schedule-free", "lomo"]),
            "gradient_accumulation_steps": st.sampled_from([1, 2]),
        },
    ),
)
@examples(80)
def test_freezing_never_costs(freeze: list[str], keys: dict[str, Any]) -> None:
    if "sharding" in keys:
        keys["num_gpus"] = 4
    try:
        some, none = ledger_of(**keys, freeze=freeze), ledger_of(**keys)
    except InvalidJob:
        assume(False)
        raise
    assert max(some.totals()) <= max(none.totals())
    assert min(some.totals()) > 0
    assert {row.category for row in some.rows} <= {row.category for row in none.rows}


def test_what_a_trainer_freezes_of_itself_stands_in_the_job_that_gives_the_same_report() -> None:
    job = {"model": "gemma-3-4b", "method": "sft", "trainer": "llamafactory", "zero_stage": 2, "num_gpus": 2}
    first = resolve(read_job(job))
    assert first.provenance.job["freeze"] == ["vision_tower", "multi_modal_projector"]
    again = resolve(read_job({key: value for key, value in first.provenance.job.items() if value is not None}))
    assert again.model.frozen == first.model.frozen == {"vision", "projector"}
    assert resolve(read_job(job | {"lora": {"r": 8}, "zero_stage": 0})).provenance.job["freeze"] == []
