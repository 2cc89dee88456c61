"""What is made again in backward and what waits on the host: in order, complete, and refused where it cannot be."""

from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.api import estimate
from memplan.engine.allocator.events import step_events
from memplan.engine.build import build_ledger
from memplan.engine.micro_step import stages
from memplan.engine.passes import TracedPass
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.tables.choices import CHOICES
from memplan.tables.kernels import FOAK, LIGER

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1408, "vocab_size": 1000, "head_dim": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": LLAMA, "method": "sft", "trainer": "pytorch", "precision": "bf16", "batch_size": 2,
    "sequence_length": 1024, "optimizer": "sgd",
}  # fmt: skip
SELECTIVE = {"gradient_checkpointing": "selective"}
MEGATRON = {"trainer": "mindspeed", "loss_head": "auto", **SELECTIVE}


def traced(**keys: Any) -> TracedPass:
    passes = stages(resolve(read_job({**JOB, **keys})))
    return next(found for found, _ in passes if found.plan.name == "policy")


def saved(**keys: Any) -> int:
    return int(traced(**keys).saved_before[-1])


def backward(**keys: Any) -> int:
    return estimate({**JOB, **keys}).per_gpu.phases["backward"]


def refusal(**keys: Any) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        estimate({**JOB, **keys})
    return caught.value


@examples(25)
@given(
    st.sampled_from(["bf16", "bf16-amp", "fp16"]),
    st.sampled_from(["sdpa", "eager"]),
    st.sampled_from([None, {"r": 8}, {"r": 8, "dropout": 0.1}]),
    st.sampled_from(["llama", "qwen3", "gemma", "phi3"]),
    st.booleans(),
    st.sampled_from([256, 1024]),
)
def test_more_recomputed_is_less_saved(
    precision: str, attention: str, lora: Any, family: str, padded: bool, length: int
) -> None:
    keys = {
        "precision": precision, "attention": attention, "lora": lora, "padded": padded, "sequence_length": length,
        "model": {**LLAMA, "model_type": family, "pad_token_id": 0},
    }  # fmt: skip
    full, every_third, every_second, none = (
        saved(**keys, gradient_checkpointing=how) for how in ("full", "every:3", "every:2", "none")
    )
    assert full <= saved(**keys, **SELECTIVE) <= none
    assert full <= every_second <= every_third <= none


def test_every_first_layer_is_full() -> None:
    assert estimate({**JOB, "gradient_checkpointing": "every:1"}).job["gradient_checkpointing"] == "full"
    one, all_layers = ({**JOB, "gradient_checkpointing": how} for how in ("every:1", "full"))
    assert estimate(one).per_gpu.phases == estimate(all_layers).per_gpu.phases


def test_every_nth_layer_keeps_its_input_alone() -> None:
    layers = traced(gradient_checkpointing="every:3").layers
    boundary = layers[0].boundary
    assert [layer.saved.size == boundary for layer in layers] == [False, False, True, False]


def test_what_a_policy_keeps() -> None:
    """torchtitan's: attention's output and log-sum-exp, and of q, k, v, o, gate, up, down the first, third, …"""
    h, kv, f, heads, tokens = 512, 256, 1408, 8, 2048
    of_each_token = 2 * h + (2 * h + 4 * heads) + 2 * h + 2 * kv + 2 * f + 2 * h
    assert traced(**SELECTIVE).layers[0].saved.size == of_each_token * tokens


def test_trl_keeps_attention_alone() -> None:
    h, heads, tokens = 512, 8, 2048
    keys = {"trainer": "trl", "autocast": False, **SELECTIVE}
    assert traced(**keys).layers[0].saved.size == (2 * h + 2 * h + 4 * heads) * tokens


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_megatron_makes_named_modules_again(attention: str) -> None:
    sizes = [
        saved(**{**MEGATRON, "attention": attention, "megatron": {"recompute_modules": modules}})
        for modules in (["core_attn", "mlp"], ["core_attn"])
    ]
    assert sizes == sorted(sizes)
    none = saved(**{**MEGATRON, "attention": attention, "gradient_checkpointing": "none"})
    assert sizes[1] < none


@pytest.mark.parametrize("how", ["none", "full", "selective", "every:2"])
def test_the_played_step_has_the_ledgers_peak(how: str) -> None:
    job = {**JOB, "gradient_checkpointing": how}
    played = step_events(resolve(read_job(job)))
    assert played is not None
    assert played.peak == estimate(job).per_gpu.allocated_bytes


@pytest.mark.parametrize("trainer", ["pytorch", "trl"])
@pytest.mark.parametrize("how", ["none", "full"])
def test_offloaded_activations_are_on_the_host(trainer: str, how: str) -> None:
    keys = {"trainer": trainer, "gradient_checkpointing": how, "loss_head": "auto"}
    ledger = build_ledger(resolve(read_job({**JOB, **keys, "offload": ["activations"]})))
    away = [row for row in ledger.rows if row.place == "host"]
    assert sum(row.bytes for row in away) > 0
    assert all(row.source for row in away)
    assert backward(**keys, offload=["activations"]) < backward(**keys)
    assert backward(**keys, offload=[]) == backward(**keys)


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_checkpointing_over_offload_holds_one_layer_and_its_arguments(method: str) -> None:
    """What makes the peak a few per cent higher than offload's alone, which brings back one node's saved tensors at a
    time: the recomputed layer's stay on the card together (torch/utils/checkpoint.py: _recomputation_hook is the
    innermost hook), and each checkpoint's arguments, the mask and the rotary tables, were never saved by a node.
    """
    keys = {**JOB, "method": method, "attention": "eager", "batch_size": 4, "offload": ["activations"]}
    alone, both = (estimate({**keys, "gradient_checkpointing": how}).per_gpu for how in ("none", "full"))
    assert alone.peak_instant == both.peak_instant == "policy.first-layer-backward"
    arguments = sum(row.bytes for row in both.ledger if row.name in ("attention masks", "rotary tables"))
    layer = [row.bytes for row in both.ledger if row.name.endswith(", layer 0") and row.place == "gpu"]
    others = sum(layer) - max(layer)  # beside the probabilities, the largest node's, which come back without it too
    assert 0 < both.allocated_bytes - alone.allocated_bytes <= arguments + others
    host = [sum(row.bytes for row in each.ledger if row.place == "host") for each in (alone, both)]
    assert host[1] < host[0] / 4


def test_a_layer_that_is_offloaded_leaves_nothing_of_its_own() -> None:
    assert traced(offload=["activations"]).layers[1].saved.size == 0


@pytest.mark.parametrize("how", CHOICES["gradient_checkpointing"])
@pytest.mark.parametrize("kernels", sorted({*CHOICES["kernels"]} - {"te", "unsloth"}))
@pytest.mark.parametrize("compiled", [False, True])
def test_every_combination_runs_or_is_refused_by_name(how: str, kernels: str, compiled: bool) -> None:
    keys = {"gradient_checkpointing": how, "kernels": kernels, "compile": compiled}
    if compiled and kernels not in ("none", "liger"):
        assert refusal(**keys).message == f"compile: not modelled with kernels: {kernels}"
    else:
        assert backward(**keys) > 0


def test_compile_beside_ligers_kernels_is_counted_as_these() -> None:
    for how in ("none", "full"):
        keys = {"kernels": "liger", "gradient_checkpointing": how}
        assert backward(**keys, compile=True) == pytest.approx(backward(**keys), rel=0.02)


@pytest.mark.parametrize("family", LIGER)
def test_ligers_layers_save_less(family: str) -> None:
    keys: dict[str, Any] = {"model": {**LLAMA, "model_type": family, "pad_token_id": 0}}
    keys |= {"attention": "eager"} if family == "gemma2" else {}
    assert saved(**keys, kernels="liger") < saved(**keys)


@pytest.mark.parametrize("family", FOAK)
def test_foaks_layers_save_less(family: str) -> None:
    keys = {"model": {**LLAMA, "model_type": family, "pad_token_id": 0}}
    assert saved(**keys, kernels="liger") < saved(**keys, kernels="foak") < saved(**keys)


def test_families_that_liger_patches_otherwise_keep_their_layers_and_say_so() -> None:
    job = {**JOB, "model": {**LLAMA, "model_type": "mixtral"}, "kernels": "liger", "loss_head": "cross-entropy"}
    found = estimate(job)
    assert "kernels: Liger's kernels are modelled for the head of mixtral alone, not for its layers" in found.warnings


def test_a_compiled_layer_keeps_what_the_partitioner_keeps() -> None:
    h, q, kv, f, heads, tokens = 512, 512, 256, 1408, 8, 2048
    assert traced(compile=True).layers[1].saved.size == (8 * h + 4 * q + 4 * kv + 6 * f + 4 * heads + 8) * tokens


def test_compiling_widens_the_band_up_to_eager() -> None:
    ledger = build_ledger(resolve(read_job({**JOB, "compile": True})))
    (row,) = (row for row in ledger.rows if row.name == "intermediates that are not fused")
    assert row.bytes == 0
    assert row.high_bytes >= saved() - saved(compile=True) > 0


@pytest.mark.parametrize(
    ("keys", "each"), [({"precision": "bf16"}, 6), ({"precision": "fp32"}, 4), ({"precision": "bf16", "lora": {}}, 0)]
)
def test_older_ligers_may_hold_a_product_as_large_as_the_head(keys: dict[str, Any], each: int) -> None:
    """0.6.2 to 0.8.2: ``grad_weight += torch.mm(...).float()``; of a frozen head none is made."""
    recipe = resolve(read_job({**JOB, "kernels": "liger", **keys}))
    rows = [row for row in build_ledger(recipe).rows if row.name == "head gradient of a chunk"]
    assert sum(row.high_bytes for row in rows) == each * recipe.model.head.parameters
    assert not any(row.bytes for row in rows)


LLAMA4 = {"model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 1408}


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ({"gradient_checkpointing": "every:0"}, "gradient_checkpointing: 'every:0' names no number of layers"),
        ({"gradient_checkpointing": "every:x"}, "gradient_checkpointing: 'every:x' names no number of layers"),
        ({"gradient_checkpointing": "some"}, "gradient_checkpointing: unknown value 'some'"),
        ({**SELECTIVE, "gradient_checkpointing_reentrant": True}, "gradient_checkpointing_reentrant: selective"),
        (
            {"model": "gemma-4-31b", "gradient_checkpointing": "every:2", "gradient_checkpointing_reentrant": True},
            "gradient_checkpointing_reentrant: true frees no step of gemma4",
        ),
        ({**SELECTIVE, "lora": {"dora": True}}, "gradient_checkpointing: selective is not modelled with DoRA"),
        ({**SELECTIVE, "quantization": "nf4", "lora": {}}, "gradient_checkpointing: selective is not modelled over"),
        ({**SELECTIVE, "precision": "fp32"}, "gradient_checkpointing: selective is not modelled with fp32 sdpa"),
        ({**SELECTIVE, "model": {**LLAMA, **LLAMA4}}, "gradient_checkpointing: selective is not modelled of llama4"),
        ({**MEGATRON, "gradient_checkpointing": "every:2"}, "gradient_checkpointing: Megatron recomputes chunks"),
        ({"megatron": {"recompute_modules": ["mlp"]}}, "megatron.recompute_modules: belongs to selective"),
        ({**MEGATRON, "megatron": {"recompute_modules": ["moe"]}}, "megatron.recompute_modules: llama has no experts"),
        (
            {**MEGATRON, "megatron": {"recompute_modules": ["moe_act"]}},
            "megatron.recompute_modules: moe_act with precision bf16",
        ),
        ({**MEGATRON, "megatron": {"recompute_modules": ["x"]}}, "megatron.recompute_modules: unknown value 'x'"),
        ({"offload": ["optimizer"]}, "offload: optimizer is not modelled"),
        ({"offload": ["parameters"]}, "offload: parameters is not modelled"),
        ({"offload": "reference"}, "offload: reference is not modelled"),
        ({"offload": ["weights"]}, "offload: unknown value 'weights'"),
        ({"offload": 3}, "offload: '3' is no list"),
        ({"offload": ["activations"], "trainer": "llamafactory"}, "offload: LLaMA-Factory does not offload"),
        ({"offload": ["activations"], "num_gpus": 2, "sharding": "ddp"}, "offload: activations over several GPUs"),
        ({"compile": True, "attention": "eager"}, "compile: not modelled with attention: eager"),
        ({"kernels": "te"}, "kernels: te with a bare training loop"),
        ({"kernels": "unsloth"}, "kernels: unsloth is not modelled for full training"),
        ({"kernels": "foak", "model": {**LLAMA, "model_type": "qwen3"}}, "kernels: foak is not modelled for qwen3"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(keys: dict[str, Any], start: str) -> None:
    error = refusal(**keys)
    assert error.message.startswith(start)
    assert error.hint


MOE = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}


def test_offload_under_ddp_is_that_of_one_card_with_its_buckets() -> None:
    """TRL's, which knows the weights by where they lay before training: DDP leaves them, DeepSpeed and FSDP not."""
    keys = {"model": "llama-3.1-8b", "method": "sft", "trainer": "trl", "sequence_length": 4096, "lora": {"r": 16}}
    keys |= {"precision": "bf16"}
    eight = {"num_gpus": 8, "sharding": "ddp"}
    plain, away = ([estimate(keys | each | off) for each in ({}, eight)] for off in ({}, {"offload": ["activations"]}))
    more = [two.per_gpu.allocated_bytes - one.per_gpu.allocated_bytes for one, two in (plain, away)]
    assert more[0] == pytest.approx(more[1], rel=0.01)
    assert away[1].host.bytes_per_node == 8 * away[0].host.bytes_per_node


@pytest.mark.parametrize("keys", [{"model": MOE}, {"offload": ["activations"]}])
def test_savings_of_compile_that_are_not_modelled_are_not_counted_and_said(keys: dict[str, Any]) -> None:
    """It only ever saves memory: the figure without it is above."""
    job = {"model": LLAMA, "trainer": "pytorch", **keys}
    eager, compiled = (estimate(job | {"compile": each}) for each in (False, True))
    assert compiled.per_gpu.allocated_bytes <= eager.per_gpu.allocated_bytes
    assert any(each.startswith("compile: its savings are not counted") for each in compiled.assumptions)


def test_layers_by_number_are_refused_where_they_are_not_followed() -> None:
    assert refusal(gradient_checkpointing="full:5").message.endswith("llama has 4 layers")
    assert "eager" in refusal(gradient_checkpointing="keep-matmuls:2", attention="eager").message
    assert "reentrant" in refusal(gradient_checkpointing="full:2", gradient_checkpointing_reentrant=True).message
    assert (
        "in Megatron"
        in refusal(gradient_checkpointing="full:2", trainer="megatron", precision="auto", optimizer="adamw").message
    )
    assert "no numbers of layers" in refusal(gradient_checkpointing="full:2,full:1").message


def test_all_layers_by_number_are_all_of_them() -> None:
    assert saved(gradient_checkpointing="full:4") == saved(gradient_checkpointing="full")
    assert saved(gradient_checkpointing="selective:4") == saved(gradient_checkpointing="selective")
    assert saved(gradient_checkpointing="full:0") == saved()
    assert saved() > saved(gradient_checkpointing="keep-matmuls:4") > saved(gradient_checkpointing="selective")


def test_a_compiled_layer_keeps_nothing_that_its_backward_does_not_read() -> None:
    """The last product is added to the residual stream: its policy keeps it, torch's partitioner does not."""
    eager, compiled = (saved(**SELECTIVE, compile=one) for one in (False, True))
    tokens, width, layers = 2 * 1024, 512, 4
    assert eager - compiled == layers * tokens * width * 2


@pytest.mark.parametrize(
    ("keys", "reentrant"),
    [
        ({}, True),
        ({"gradient_checkpointing_reentrant": False}, True),
        ({"method": "dpo"}, True),
        ({"method": "dpo", "trainer_version": "1.8"}, False),
        ({"trainer_version": "0.28", "gradient_checkpointing": "full"}, True),
        ({"trainer_version": "0.27", "gradient_checkpointing": "full"}, False),
        ({"zero_stage": 2}, False),
        ({"lora": None}, False),
        ({"gradient_checkpointing": "none"}, False),
        ({"trainer": "transformers", "gradient_checkpointing": "full"}, False),
    ],
)
def test_trl_forces_reentrant_checkpoints_on_adapters_under_zero3(keys: dict[str, Any], reentrant: bool) -> None:
    job = {"model": LLAMA, "method": "sft", "trainer": "trl", "lora": {"r": 8}, "zero_stage": 3, "num_gpus": 8, **keys}
    assert resolve(read_job(job)).checkpointing.reentrant == reentrant
