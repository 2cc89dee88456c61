"""Proves what PEFT trains: counts for every setting of adapters, and modules that it adapts or passes over."""

from typing import Any

import pytest

from memplan.api import estimate
from memplan.engine.build import build_ledger
from memplan.engine.ledger import Row
from memplan.engine.micro_step import policy_mode
from memplan.engine.tensors import count, model_weights
from memplan.engine.traces import trace_layer
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.resolve.adapters import adapter
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.layer import Run
from memplan.spec.parts import Linear
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.trainers import find_trainer

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "intermediate_size": 160, "tie_word_embeddings": False,
}  # fmt: skip
TIED = TINY | {"tie_word_embeddings": True}
MIXTRAL = TINY | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3 = TINY | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
QWEN3 |= {"head_dim": 16}


def recipe(model: Any, lora: dict[str, Any], **keys: Any) -> Recipe:
    base = {"model": model, "method": "sft", "trainer": "pytorch", "precision": "bf16", "sequence_length": 64}
    return resolve(read_job(base | {"lora": lora} | keys))


def trained(model: Any, lora: dict[str, Any]) -> int:
    found = recipe(model, lora)
    return count([weight for weight in model_weights(found.model, False, found.adapter) if weight.trained])


COUNTS = [
    # counted by peft 0.21.2 over transformers 5.23
    ("mixtral-8x7b", {"r": 16}, 359_665_664),
    ("qwen3-30b-a3b", {"r": 16}, 996_507_648),
    ("qwen3-30b-a3b", {"r": 16, "targets": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"}, 994_836_480),
    (MIXTRAL, {"r": 16}, 215_232),
    (QWEN3, {"r": 16, "targets": ["down_proj"]}, 21_504),
    (TINY, {"r": 16}, 3 * 16 * (2 * 128 + 2 * 96 + 3 * 224)),
    (TINY, {"r": 16, "dora": True, "targets": ["q_proj"]}, 3 * (16 * 128 + 64)),
    (TINY, {"r": 16, "targets": ["q_proj"], "rslora": True}, 3 * 16 * 128),
    (TINY, {"r": 16, "targets": ["q_proj"], "modules_to_save": "lm_head,embed_tokens"}, 3 * 16 * 128 + 2 * 320 * 64),
    (TINY, {"r": 16, "targets": ["q_proj", "lm_head", "embed_tokens"]}, 3 * 16 * 128 + 2 * 16 * (320 + 64)),
    (TIED, {"r": 4, "targets": ["lm_head", "embed_tokens"]}, 2 * 4 * (320 + 64)),
    (TINY, {"r": 16, "targets": ["q_proj"], "layers_to_transform": "1-2"}, 2 * 16 * 128),
    (TINY, {"r": 16, "targets": "q_proj,k_proj", "rank_pattern": "k_proj=4"}, 3 * (16 * 128 + 4 * 96)),
    (TINY, {"r": 16, "exclude_modules": "down_proj"}, 3 * 16 * (2 * 128 + 2 * 96 + 2 * 224)),
    (TINY, {"r": 16, "targets": ["q_proj"], "lora_bias": True}, 3 * (16 * 128 + 64)),
    (TINY, {"r": 16, "targets": ["q_proj"], "trainable_token_indices": [3, 5]}, 3 * 16 * 128 + 2 * 64),
    (TIED, {"r": 16, "targets": ["q_proj"], "trainable_token_indices": {"embed_tokens": 7}}, 3 * 16 * 128 + 7 * 64),
    (TINY | {"attention_bias": True}, {"r": 16, "targets": ["q_proj"], "bias": "lora_only"}, 3 * (16 * 128 + 64)),
    (TINY | {"attention_bias": True}, {"r": 16, "targets": ["q_proj"], "bias": "all"}, 3 * (16 * 128 + 192)),
    (TINY, {"r": 16, "targets": ["q_proj", "fc_in", "wte", "attn.c_proj"]}, 3 * 16 * 128),
]


@pytest.mark.parametrize(("model", "lora", "expected"), COUNTS, ids=[str(row[2]) for row in COUNTS])
def test_trainable_counts_are_those_of_peft(model: Any, lora: dict[str, Any], expected: int) -> None:
    assert trained(model, lora) == expected


def test_a_saved_module_stands_beside_the_frozen_original() -> None:
    def rows(lora: dict[str, Any]) -> dict[str, Row]:
        return {row.name: row for row in build_ledger(recipe(TINY, lora)).rows}

    plain, saved = rows({"r": 8}), rows({"r": 8, "modules_to_save": ["embed_tokens"]})
    assert saved["weights of the policy"].bytes == 2 * 320 * 64
    assert saved["frozen weights of the policy"].bytes == plain["frozen weights of the policy"].bytes
    assert saved["gradient of the embedding"].bytes == 2 * 320 * 64
    assert saved["AdamW states"].bytes - plain["AdamW states"].bytes == 2 * 2 * 320 * 64


def test_adapted_stacks_cost_a_merged_copy() -> None:
    both = recipe(MIXTRAL, {"r": 8}), recipe(MIXTRAL, {"r": 8, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]})
    merged, plain = (trace_layer(each.model.runs[0].layer, policy_mode(each), 1, 64, "plain") for each in both)
    stacks = 2 * 4 * 3 * 64 * 160
    assert merged.saved.size - plain.saved.size > stacks


def test_adapters_in_the_other_half_precision_read_copies_of_their_own() -> None:
    kept = []
    for dtype in ("fp16", "bf16"):
        lora = {"r": 8, "dtype": dtype, "targets": ["q_proj", "k_proj"]}
        job = {"model": "llama-3.2-1b", "method": "sft", "precision": "fp16", "lora": lora, "sequence_length": 256}
        recipe = resolve(read_job(job))
        kept.append(trace_layer(recipe.model.runs[0].layer, policy_mode(recipe), 1, 256, "plain").saved.size)
    assert kept[1] - kept[0] == 256 * 2048 * 2  # two copies in place of the one tensor that both had read


@pytest.mark.parametrize(
    ("model", "lora", "message"),
    [
        (MIXTRAL, {"dropout": 0.1}, "lora.dropout: PEFT's ParamWrapper"),
        (MIXTRAL, {"dora": True}, "lora.dora: PEFT's ParamWrapper"),
        (MIXTRAL, {"targets": ["q_proj", "w1"]}, "lora.targets: w1 without w3"),
        (MIXTRAL, {"rank_pattern": {"w1": 4}}, "lora.rank_pattern: not modelled beside the stacked experts"),
        (TINY, {"rank_pattern": {"lm_head": 4}}, "lora.rank_pattern: 'lm_head' names no adapted module"),
        (TINY, {"layers_to_transform": [1]}, "lora.layers_to_transform: PEFT wants names"),
        (
            TINY,
            {"layers_to_transform": 3, "targets": ["q_proj"]},
            "lora.layers_to_transform: 3, where llama has layers",
        ),
        (TINY, {"exclude_modules": ["qproj"]}, "lora.exclude_modules: llama has no linear module 'qproj'"),
        (TINY, {"exclude_modules": ["q_proj"], "targets": ["q_proj"]}, "lora.targets: no module named"),
        (TINY, {"trainable_token_indices": {"wte": 3}}, "lora.trainable_token_indices: 'wte' is not modelled"),
        (TINY, {"trainable_token_indices": 321}, "lora.trainable_token_indices: 321 of 320 tokens"),
        (TIED, {"trainable_token_indices": {"lm_head": 3}}, "lora.trainable_token_indices: rows of lm_head alone"),
        (TINY, {"targets": ["wte"]}, "lora.targets: llama has no linear module 'wte'"),
        (TINY, {"targets": ["c_attn"]}, "lora.targets: llama has no linear module 'c_attn'"),
        (TINY, {"targets": ["q_proj", "qproj"]}, "lora.targets: llama has no linear module 'qproj'"),
    ],
)
def test_targets_that_cannot_be_are_refused(model: Any, lora: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        recipe(model, lora)
    assert refused.value.message.startswith(message)


def test_a_configuration_of_peft_is_read_as_it_is_saved() -> None:
    saved = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "use_dora": False, "bias": "none"}
    saved |= {"rank_pattern": {"v_proj": 8}, "layers_to_transform": None, "exclude_modules": None, "lora_bias": False}
    saved |= {"trainable_token_indices": None, "peft_type": "LORA", "init_lora_weights": "pissa", "alpha_pattern": {}}
    saved |= {"layer_replication": None, "use_qalora": False, "target_parameters": None, "modules_to_save": None}
    assert trained(TINY, saved) == 3 * (16 * 128 + 8 * 96)


@pytest.mark.parametrize("field", ["layer_replication", "target_parameters", "ensure_weight_tying", "use_qalora"])
def test_fields_of_peft_that_are_not_modelled_are_refused(field: str) -> None:
    with pytest.raises(InvalidJob, match=f"lora.{field}: PEFT's {field} is not modelled"):
        recipe(TINY, {field: True})


ENDS = {"r": 8, "targets": ["q_proj", "lm_head", "embed_tokens"]}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"trainer": "trl"}, "lora.targets: TRL refuses to adapt lm_head: TRL's fused head reads lm_head.weight"),
        ({"kernels": "liger"}, "lora.targets: Liger's loss reads lm_head.weight, so that its adapter would never be"),
        ({"loss_head": "cut-cross-entropy"}, "lora.targets: cut cross-entropy reads lm_head.weight"),
        ({"loss_head": "fused", "method": "dpo"}, "lora.targets: TRL's fused head reads lm_head.weight"),
        (
            {"num_gpus": 2, "sharding": "fsdp", "trainer": "transformers"},
            "lora.targets: adapters of embed_tokens in accelerate's FSDP1",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_loss_that_reads_the_heads_weight_trains_no_adapter_of_it(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        recipe(TINY, ENDS, **keys)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize("keys", [{"trainer": "trl", "trainer_version": "1.0"}, {"trainer": "litgpt"}], ids=str)
def test_a_head_that_is_called_may_be_adapted(keys: dict[str, Any]) -> None:
    job = {"model": TINY | {"vocab_size": 32000}, "method": "sft", "precision": "bf16", "sequence_length": 512, **keys}
    plain, adapted = (
        estimate({**job, "lora": {"r": 8, "targets": targets}}).per_gpu.phases["step"]
        for targets in (["q_proj"], ["q_proj", "lm_head"])
    )
    assert adapted > plain + 16 * 8 * 32000


def test_names_of_other_families_are_passed_over_with_a_remark() -> None:
    found = recipe(TINY, {"r": 8, "targets": ["q_proj", "c_attn"]})
    assert found.adapter is not None
    assert found.adapter.targets == {"q_proj"}
    assert any("c_attn" in warning for warning in found.provenance.warnings)


@pytest.mark.parametrize("targets", ["all-linear", ["in_proj", "out_proj"]])
def test_the_output_projection_of_mamba_is_refused(targets: Any) -> None:
    layer = recipe(TINY, {"r": 8}).model.runs[0].layer
    assert layer.mixer is not None
    linears = tuple(Linear(name=name, inputs=64, outputs=64) for name in ("in_proj", "out_proj"))
    mixed = layer.model_copy(update={"mixer": layer.mixer.model_copy(update={"linears": linears})})
    spec = recipe(TINY, {"r": 8}).model.model_copy(update={"family": "mamba2", "runs": (Run(count=1, layer=mixed),)})
    with pytest.raises(InvalidJob, match="out_proj of mamba2 cannot be adapted"):
        adapter(Job(lora={"targets": targets}), spec, Notes({}), find_trainer("transformers"))


SEES: dict[str, Any] = {
    "model_type": "llava", "text_config": TINY,
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64,
                      "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}  # fmt: skip
IMAGE = {"images": {"per_example": 1, "width": 28, "height": 28}}


def of_parts(**lora: Any) -> dict[str, int]:
    found = recipe(SEES, {"r": 16, "targets": ["q_proj"], **lora}, **IMAGE)
    every = [weight for weight in model_weights(found.model, False, found.adapter) if weight.trained]
    names = ("adapter" if weight.adapter else "whole" for weight in every)
    sizes: dict[str, int] = {}
    for name, weight in zip(names, every, strict=True):
        sizes[f"{weight.unit} {name}"] = sizes.get(f"{weight.unit} {name}", 0) + weight.elements * weight.copies
    return sizes


def test_a_tower_is_left_alone_or_trained_whole_beside_adapters() -> None:
    text = {"layer adapter": 3 * 16 * 128}
    used = 1  # LLaVA reads the last block but one
    assert of_parts() == text | {"vision adapter": used * 16 * 64}
    assert of_parts(exclude_modules=["vision_tower", "multi_modal_projector"]) == text
    projector = 32 * 64 + 64 + 64 * 64 + 64
    assert of_parts(exclude_modules="vision_tower", modules_to_train="multi_modal_projector") == text | {
        "vision whole": projector
    }
    whole = of_parts(modules_to_train=["vision_tower", "multi_modal_projector"])
    assert whole.keys() == {"layer adapter", "vision whole"}
    assert whole["vision whole"] > projector


@pytest.mark.parametrize(
    ("model", "lora", "message"),
    [
        (SEES, {"modules_to_train": ["q_proj"]}, "lora.modules_to_train: 'q_proj' is not modelled"),
        (TINY, {"modules_to_train": ["vision_tower"]}, "lora.modules_to_train: llama has no vision tower"),
    ],
)
def test_only_parts_can_be_trained_whole(model: Any, lora: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        recipe(model, {"targets": ["q_proj"], **lora})


def test_a_model_without_a_tower_has_none_to_leave_alone() -> None:
    assert trained(TINY, {"r": 16, "exclude_modules": "vision_tower"}) == trained(TINY, {"r": 16})


def test_linears_of_a_checkpoints_own_code() -> None:
    """GLM's one projection of queries, keys and values: PEFT prints 1,949,696 of it at rank 8, in fewer matrices."""
    lora = {"r": 8, "targets": ["query_key_value"]}
    job = {"model": "chatglm3-6b", "method": "sft", "trainer": "transformers", "lora": lora}
    counted = estimate(job).to_dict()
    assert 1_949_696 <= counted["model"]["params"]["trainable"] == 8 * 28 * (3 * 4096 + 4096 + 512)
    assert any("query_key_value" in each for each in counted["assumptions"])
