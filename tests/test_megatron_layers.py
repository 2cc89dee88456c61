"""Proves what Megatron's layers hold, by numbers counted by hand from the source, and by what must always be so."""

from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st
from test_megatron_weights import JOB, LLAMA, MODELS

from memplan.api import estimate
from memplan.engine.megatron.layers import layer_steps
from memplan.engine.megatron.moe import routed
from memplan.engine.megatron.shape import Shape, shape_of
from memplan.engine.megatron.stages import in_flight
from memplan.engine.megatron.steps import kept_bytes
from memplan.errors import MemplanError
from memplan.render.instants import POINTS
from memplan.report import Report
from memplan.resolve import resolve
from memplan.spec.parallel import Parallel
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

T, H, Q, KV, F, HEADS = 1024, 512, 1024, 512, 1408, 16
"""Tokens, and the sizes of LLAMA: heads of 64."""


def recipe_of(**keys: Any) -> Recipe:
    return resolve(read_job({**JOB, "model": LLAMA, **keys}))


def report_of(**keys: Any) -> Report:
    return estimate({**JOB, "model": LLAMA, **keys})


def kept(**keys: Any) -> int:
    recipe = recipe_of(**keys)
    return kept_bytes(layer_steps(shape_of(recipe), recipe.model.runs[-1].layer))


def selective(*modules: str, **more: Any) -> dict[str, Any]:
    return {"gradient_checkpointing": "selective", "megatron": {"recompute_modules": list(modules), **more}}


def test_a_layer_by_hand() -> None:
    """Two inputs and two normalised inputs of [T, h] with a statistic each, q, k, v, attention's output and statistics,
    gate and up, and the second matmul's input."""
    stream = 2 * (H + H) * 2 + 2 * 4
    attention = 2 * (Q + 2 * KV + Q) + 4 * HEADS
    assert kept() == T * (stream + attention + 2 * 3 * F)


DELTA = MODELS["delta"]


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_gated_delta_net_by_hand(tensor: int) -> None:
    """The product of q, k, v, gate and two numbers; the convolution's input and output; q and k normalised, and of
    all heads; v, the gate; four numbers of each head in fp32; an inverse of 64 positions; the rule's output, that of
    the norm with its statistics, and the gated one."""
    keys, values, heads = 8 * 32 // tensor, 16 * 64 // tensor, 16 // tensor
    fused, convolved, every = 2 * keys + 2 * values + 2 * heads, 2 * keys + values, heads * 32
    elements = fused + 2 * convolved + 2 * keys + 2 * every + 2 * values + heads * 64 + 3 * values
    recipe = recipe_of(model=DELTA, num_gpus=tensor, tensor_parallel=tensor)
    s = shape_of(recipe)
    of_delta, of_attention = (layer_steps(s, run.layer) for run in recipe.model.runs[:2])
    assert kept_bytes(of_delta[1:4]) == T * (2 * elements + (4 * heads + heads) * 4)
    names = [step.name for step in of_attention]
    assert names[:5] == ["qkv", "head-norms", "attention", "output-gate", "projection"]
    assert kept_bytes(of_attention[3:5]) == T * 2 * 2 * Q // tensor  # the gate, and what it makes


def test_key_heads_of_gated_delta_nets_are_shared_out_whole() -> None:
    with pytest.raises(MemplanError, match="8 key heads"):
        recipe_of(model=DELTA, num_gpus=16, tensor_parallel=16)


def test_norms_of_single_operations_keep_an_fp32_input_and_what_their_weight_multiplies() -> None:
    """[T, h] in fp32 in place of half precision, and one more in half precision, of each of two norms."""
    assert kept(megatron={"norm_fusion": False}) - kept() == T * 2 * (4 - 2 + 2) * H
    heads: dict[str, Any] = {"model": LLAMA | {"model_type": "qwen3"}}
    both = T * (4 - 2 + 2) * (2 * H + Q + KV)  # q and k too, which MindSpeed's PTNorm takes by the same class
    assert kept(**heads, megatron={"norm_fusion": False}) - kept(**heads) == both


@pytest.mark.parametrize("keys", [{"model": DELTA}, {"megatron": {"fp8_format": "hybrid"}}])
def test_norms_of_single_operations_elsewhere_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(MemplanError, match="norm_fusion"):
        recipe_of(**{**keys, "megatron": {**keys.get("megatron", {}), "norm_fusion": False}})


def test_tensor_parallelism_by_hand() -> None:
    """Sequence parallelism divides all of it; without, the residual stream is whole on every rank."""
    divided = {"tensor_parallel": 4, "num_gpus": 4}
    stream = 2 * (H + H) * 2 + 2 * 4
    inner = (2 * (Q + 2 * KV + Q) + 4 * HEADS + 2 * 3 * F) // 4
    assert kept(**divided) == T * stream // 4 + T * inner
    assert kept(**divided, sequence_parallel=False) == T * stream + T * inner


@pytest.mark.parametrize("communication", ["p2p", "a2a", "all_gather"])
def test_context_parallelism_by_hand(communication: str) -> None:
    """A part of the sequence; an all-to-all keeps attention's output by heads and by sequence."""
    found = kept(context_parallel=2, num_gpus=2, megatron={"cp_comm_type": communication})
    assert found == kept() / 2 + (T * Q if communication == "a2a" else 0)


@pytest.mark.parametrize(
    ("gpu", "backend", "twice"),
    [("a100-80gb", "auto", True), ("h100-80gb", "auto", False), ("h100-80gb", "flash", True),
     ("a100-80gb", "fused", False)],
)  # fmt: skip
def test_a_kernel_that_works_by_rows_keeps_its_output_twice(gpu: str, backend: str, twice: bool) -> None:
    """flash-attn; what is recomputed keeps the copy alone, and one row is in order as it is."""
    keys = {"gpu": gpu, "megatron": {"attention_backend": backend}}
    assert kept(batch_size=2, **keys) == 2 * kept() + (2 * T * Q * 2 if twice else 0)
    assert kept(**keys) == kept()
    again = selective("core_attn", attention_backend=backend)
    assert kept(batch_size=2, gpu=gpu, **again) == 2 * kept(**selective("core_attn"))


def test_views_keep_the_fused_product() -> None:
    """A project's own call of flash-attn, where v is a view: 2 × 8,192 tokens of Llama-3.2-1B took 1,280 MiB more."""
    assert kept(megatron={"attention_backend": "direct"}) - kept() == T * 2 * (Q + KV)


def test_a_head_norm_keeps_its_input() -> None:
    qwen3 = LLAMA | {"model_type": "qwen3"}
    assert kept(model=qwen3) - kept() == T * (2 * (Q + KV) + 4 * (HEADS + 8))


MODULES_OF = {
    "core_attn": (LLAMA, -(4 * HEADS) + 2 * (Q + 2 * KV - KV)),
    "mlp": (LLAMA, -(2 * H + 4) - 2 * 3 * F),
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES_OF)
def test_recomputed_modules_by_hand(module: str) -> None:
    """core_attn keeps v as a view, and with it the fused matmul: with short sequences that is more, not less."""
    model, expected = MODULES_OF[module]
    assert kept(model=model, **selective(module)) - kept(model=model) == T * expected


def test_experts_by_hand() -> None:
    """Padded to a capacity of one: ⌈T·k/E⌉ tokens of each expert."""
    keys = {"moe_expert_capacity_factor": 1, "moe_pad_expert_input_to_capacity": True}
    recipe = recipe_of(model=MODELS["experts"], expert_parallel=4, num_gpus=4, megatron=keys)
    layer, shape = recipe.model.runs[0].layer, shape_of(recipe)
    assert layer.experts is not None
    way = routed(shape, layer.experts)
    assert (way.sent, way.received, way.local_experts) == (T * 2, T * 2, 2)
    inner = way.received * (2 * H + 2 + 2 * 3 * 256)
    router = T * (8 * 7 + 2 * 12 + (2 * 8 + 1) * 4)
    dense = kept(model=LLAMA | {"model_type": "qwen3"})
    norm_and_stream = T * (2 * (H + H) + 4)
    without = dense - norm_and_stream - T * 2 * 3 * F
    assert kept_bytes(layer_steps(shape, layer)) == without + norm_and_stream + router + inner


def test_uneven_experts_receive_more_and_no_more_than_there_is() -> None:
    def received(**keys: Any) -> int:
        recipe = recipe_of(model=MODELS["experts"], expert_parallel=4, num_gpus=4, megatron=keys)
        experts = recipe.model.runs[0].layer.experts
        assert experts is not None
        return routed(shape_of(recipe), experts).received

    assert received() == T * 2
    assert received(moe_expert_imbalance=1.5) == T * 3
    assert received(moe_expert_imbalance=100) == T * 2 * 4
    assert received(moe_expert_imbalance=100, moe_expert_capacity_factor=1.5) == T * 3


# -- schedules --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 32), st.integers(1, 16))
def test_one_forward_one_backward(micro_batches: int, stages: int) -> None:
    waiting = [in_flight(Parallel(stages, 1, stages, stage=stage), micro_batches, 0) for stage in range(stages)]
    assert waiting[0] == min(micro_batches, stages)
    assert waiting[-1] == 1
    assert waiting == sorted(waiting, reverse=True)


@given(st.integers(2, 8), st.integers(2, 6), st.integers(1, 6))
def test_interleaved(stages: int, chunks: int, rounds: int) -> None:
    """The chunks' forwards before the first backward, and one; never more than there are micro-batches."""
    for stage in range(stages):
        degrees = Parallel(stages, 1, stages, virtual=chunks, stage=stage)
        waiting = [in_flight(degrees, rounds * stages, chunk) for chunk in range(chunks)]
        warmup = (stages - stage - 1) * 2 + (chunks - 1) * stages
        assert sum(waiting) == min(rounds * stages * chunks, warmup + 1)
        assert max(waiting) <= rounds * stages


def test_the_first_stage_waits_the_longest() -> None:
    keys = {"pipeline_parallel": 4, "num_gpus": 4, "sequence_length": 8192}
    ranks = {rank.name: rank.allocated_bytes for rank in report_of(**keys).ranks}
    sizes = [ranks[f"each GPU of pipeline stage {stage} of 4"] for stage in (2, 3)]
    assert sizes[0] > sizes[1]


# -- what must always be so -------------------------------------------------------------------------------------------

KINDS = {
    "dense": ("core_attn", "mlp"),
    "experts": ("core_attn", "moe", "moe_act", "layernorm"),
    "latent": ("core_attn", "mlp", "moe", "moe_act", "shared_experts", "layernorm", "mla_up_proj"),
}


@given(
    st.sampled_from(list(KINDS)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1024, 4096]),
    st.data(),
)  # fmt: skip
@examples(40)
def test_recomputing_never_saves_more(name: str, tensor: int, context: int, length: int, data: Any) -> None:
    """Of modules but core_attn, whose v is a view; of full recomputation, with any number of layers."""
    keys = {
        "model": MODELS[name], "tensor_parallel": tensor, "context_parallel": context, "num_gpus": tensor * context,
        "sequence_length": length,
    }  # fmt: skip
    none = report_of(**keys).per_gpu.allocated_bytes
    modules = data.draw(st.sets(st.sampled_from(KINDS[name][1:]), min_size=1))
    assert report_of(**keys, **selective(*sorted(modules))).per_gpu.allocated_bytes <= none
    method, layers = data.draw(st.sampled_from(["uniform", "block"])), data.draw(st.integers(1, 8))
    how = {"recompute_method": method, "recompute_num_layers": layers}
    full = report_of(**keys, gradient_checkpointing="full", megatron=how)
    assert full.per_gpu.allocated_bytes <= none


def test_block_recomputation_of_more_layers_holds_less() -> None:
    def peak(layers: int) -> int:
        how = {"recompute_method": "block", "recompute_num_layers": layers}
        return report_of(sequence_length=8192, gradient_checkpointing="full", megatron=how).per_gpu.allocated_bytes

    sizes = [peak(layers) for layers in range(9)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == report_of(sequence_length=8192).per_gpu.allocated_bytes


@given(st.sampled_from(list(MODELS)), st.sampled_from(["tensor_parallel", "context_parallel", "expert_parallel"]))
@examples(15)
def test_more_ranks_hold_smaller_layers(name: str, key: str) -> None:
    if key == "expert_parallel" and name not in ("experts", "latent"):
        return
    keys = {"model": MODELS[name], "sequence_length": 4096, "num_gpus": 8}
    sizes = [kept(**keys, **{key: degree}) for degree in (1, 2, 4)]
    assert sizes == sorted(sizes, reverse=True)


def test_every_row_says_what_it_is() -> None:
    for row in report_of(num_gpus=8, tensor_parallel=2, pipeline_parallel=2).per_gpu.ledger:
        assert row.name
        assert row.formula
        assert row.why
        assert row.source


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", [{}, {"megatron": {"recompute_method": "block", "recompute_num_layers": 4}}], ids=str)
def test_every_instant_has_words(name: str, how: dict[str, Any]) -> None:
    model = MODELS[name] | ({"model_type": "qwen3"} if name == "dense" else {})
    keys = {"model": model, "gradient_checkpointing": "full" if how else "none", **how}
    for instant in report_of(**keys).per_gpu.instants:
        assert instant.name.split(".", 1)[1] in POINTS


def test_shapes_are_values() -> None:
    assert isinstance(shape_of(recipe_of()), Shape)
    assert shape_of(recipe_of()) == shape_of(recipe_of())


def test_scores_are_kept_by_head_query_and_key() -> None:
    """Probabilities, and keys and values of all heads; no statistics of a kernel. Dropout keeps a mask and a result."""
    scores, statistics = T * HEADS * T, T * HEADS * 4  # one sequence
    repeated = T * 2 * (Q - KV) * 2
    eager = kept(attention="eager")
    assert eager - kept(attention="flash") == 2 * scores + repeated - statistics
    assert kept(attention="eager", megatron={"attention_dropout": 0.1}) - eager == 3 * scores


def test_hidden_dropout_keeps_a_byte_an_element_of_each_branch() -> None:
    assert kept(megatron={"hidden_dropout": 0.1}) - kept() == 2 * T * H


def test_a_length_that_no_softmax_kernel_takes_is_kept_in_fp32_too() -> None:
    others = kept(attention="eager", sequence_length=1024) - 2 * HEADS * 1024**2
    assert kept(attention="eager", sequence_length=1023) == 6 * HEADS * 1023**2 + others * 1023 // 1024


def test_ranks_divide_the_heads_of_the_scores() -> None:
    alone = kept(attention="eager") - kept(attention="flash")
    halves = {"tensor_parallel": 2, "num_gpus": 2}
    assert 2 * (kept(attention="eager", **halves) - kept(attention="flash", **halves)) == alone


def test_scores_that_are_made_again_are_not_kept_and_their_high_figure_is_doubted() -> None:
    keys = {"attention": "eager", "sequence_length": 4096, "batch_size": 1}
    plain, again = report_of(**keys), report_of(**keys, gradient_checkpointing="selective")
    assert again.per_gpu.allocated_bytes < plain.per_gpu.allocated_bytes
    flash = report_of(**keys | {"attention": "flash"})
    assert flash.per_gpu.allocated_range.high == flash.per_gpu.allocated_bytes < plain.per_gpu.allocated_bytes
    assert plain.per_gpu.allocated_range.high > 1.1 * plain.per_gpu.allocated_bytes
