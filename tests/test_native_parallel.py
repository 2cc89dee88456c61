"""torch's own tensor, context and pipeline parallelism: what each rank holds, and what is refused."""

from typing import Any

import pytest

from memplan import estimate
from memplan.engine.allocator.events import step_events
from memplan.engine.parallel.pipeline import in_flight
from memplan.engine.parallel.tensor import part_of, stage_layers
from memplan.engine.ranks import rank_classes
from memplan.engine.tensors import count, model_weights
from memplan.errors import InvalidJob
from memplan.report import Report
from memplan.resolve import resolve
from memplan.spec.parallel import Parallel
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

JOB = {
    "model": "llama-3.1-8b",
    "method": "sft",
    "trainer": "pytorch",
    "sharding": "fsdp2",
    "precision": "bf16-amp",
    "num_gpus": 16,
    "sequence_length": 4096,
}


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({**JOB, **keys}))


def report(**keys: Any) -> Report:
    return estimate({**JOB, **keys})


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 5])
def test_the_parts_of_a_model_are_the_whole(tensor: int, pipeline: int) -> None:
    """Over all ranks: every weight once, norms once for each tensor-parallel rank."""
    spec = recipe().model
    degrees = Parallel(world=tensor * pipeline, tensor=tensor, pipeline=pipeline)
    parts = [model_weights(part_of(spec, degrees._replace(stage=stage))) for stage in range(pipeline)]
    held = tensor * sum(count(weights) for weights in parts)
    norms = sum(count([weight for weight in weights if weight.norm]) for weights in parts)
    assert held == spec.params.total + (tensor - 1) * norms


@pytest.mark.parametrize(("layers", "stages", "expected"), [(32, 4, [8] * 4), (10, 4, [3, 3, 2, 2]), (3, 3, [1, 1, 1])])
def test_layers_of_stages(layers: int, stages: int, expected: list[int]) -> None:
    assert stage_layers(layers, stages) == expected


@pytest.mark.parametrize(("stage", "micro_batches", "held"), [(0, 8, 4), (3, 8, 1), (0, 2, 2), (1, 8, 3)])
def test_one_forward_one_backward_holds_fewer_micro_batches_down_the_pipeline(
    stage: int, micro_batches: int, held: int
) -> None:
    assert in_flight(Parallel(world=4, pipeline=4, stage=stage), micro_batches) == held


def test_a_sequence_is_shared_by_tensor_and_context_parallel_ranks() -> None:
    """Of checkpointed layers the inputs are kept: each of the two degrees halves them."""

    def checkpoints(**keys: Any) -> int:
        rows = report(gradient_checkpointing="full", **keys).per_gpu.ledger
        return sum(row.bytes for row in rows if row.name.startswith("checkpoints: the layer's input"))

    assert checkpoints() == 2 * checkpoints(tensor_parallel=2) == 2 * checkpoints(context_parallel=2)
    assert checkpoints() == 4 * checkpoints(tensor_parallel=2, context_parallel=2)


@pytest.mark.parametrize("degree", ["tensor_parallel", "context_parallel"])
def test_every_degree_lowers_the_peak(degree: str) -> None:
    keys = {"gradient_accumulation_steps": 2, "gradient_checkpointing": "full"}
    assert report(**keys, **{degree: 2}).per_gpu.allocated_bytes < report(**keys).per_gpu.allocated_bytes


@pytest.mark.parametrize(
    "keys",
    [
        {"tensor_parallel": 2},
        {"tensor_parallel": 4, "gradient_checkpointing": "full", "attention": "flash"},
        {"context_parallel": 2, "gradient_accumulation_steps": 2},
        {"tensor_parallel": 2, "context_parallel": 2, "precision": "bf16"},
    ],
)
def test_a_rank_of_several_degrees_is_played_to_the_bytes_of_its_ledger(keys: dict[str, Any]) -> None:
    """Sequences, vocabulary and heads are divided in the play as they are in the rows; what it holds is the play's."""
    small = {"model": "llama-3.2-1b", "gpu": "h100-80gb"}
    found = report(**keys, **small)
    of_rank = rank_classes(recipe(**keys, **small))[0].recipe
    recorded = step_events(of_rank)
    assert recorded is not None
    assert recorded.peak == pytest.approx(found.per_gpu.allocated_bytes, rel=1e-4)
    assert found.per_gpu.reserved_bytes.played


def test_states_are_shared_by_all_ranks_that_hold_the_same_part() -> None:
    """Context-parallel ranks share states as data-parallel ones do."""
    assert recipe(context_parallel=4).sharding.ranks == 16
    assert recipe(tensor_parallel=4).sharding.ranks == 4
    states = [
        sum(row.bytes for row in report(**keys).per_gpu.ledger if row.category == "optimizer_states")
        for keys in ({}, {"context_parallel": 4}, {"tensor_parallel": 4})
    ]
    assert states[0] == states[1]
    assert states[0] <= states[2] < 1.01 * states[0]


def test_gradients_that_wait_whole_are_of_a_ranks_own_experts() -> None:
    """Of 30B, 29 in 128 experts, in two stages: of experts that four share, weights and gradients are a quarter."""
    keys = {"model": "qwen3-30b-a3b", "num_gpus": 8, "pipeline_parallel": 2, "gradient_checkpointing": True}
    shared, alone = (
        report(**keys, gradient_accumulation_steps=4, expert_parallel=ranks).per_gpu.allocated_bytes for ranks in (4, 1)
    )
    assert alone - shared > 0.85 * 29e9 / 2 * 3 / 4 * (2 + 2)


def test_stages_differ_and_the_fullest_is_reported() -> None:
    found = report(pipeline_parallel=4, gradient_accumulation_steps=8)
    assert [rank.count for rank in found.ranks] == [4] * 4
    assert found.per_gpu.allocated_bytes == max(rank.allocated_bytes for rank in found.ranks)
    assert len({rank.allocated_bytes for rank in found.ranks}) > 1
    resolved = recipe(pipeline_parallel=4, gradient_accumulation_steps=8)
    assert (resolved.sharding.reshard_after_forward, resolved.sharding.sync_each_batch) == (False, False)
    assert {each.recipe.parallel.stage for each in rank_classes(resolved)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tensor_parallel": 3}, "num_gpus: 16 is no multiple of tensor"),
        ({"tensor_parallel": 16, "num_gpus": 16, "model": "qwen2.5-0.5b"}, "tensor_parallel: 16 does not divide"),
        ({"tensor_parallel": 2, "method": "dpo"}, "with method dpo"),
        ({"tensor_parallel": 2, "lora": {"r": 8}}, "with lora"),
        ({"tensor_parallel": 2, "expert_tensor_parallel": 4}, "expert_tensor_parallel is 1 or tensor_parallel"),
        ({"tensor_parallel": 2, "model": "qwen1.5-moe-a2.7b"}, "its shared experts are not three products"),
        ({"tensor_parallel": 2, "sharding": "zero3", "precision": "auto"}, "and sharding zero3 is not modelled"),
        ({"context_parallel": 16, "sequence_length": 1000}, "sequence_length: 1000 is no multiple"),
        ({"pipeline_parallel": 16, "num_gpus": 16, "model": "gemma-2-2b"}, "eager"),
        ({"expert_parallel": 2}, "expert_parallel: 2, but llama-3.1-8b has no experts"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        recipe(**keys)
    assert message in refused.value.message


RING = {"trainer": "trl", "precision": "auto", "context_parallel": 2}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"lora": {"r": 8}, "precision": "bf16"},
        {"trainer": "transformers"},
        {"sharding": None, "zero_stage": 3, "attention": "flash"},
    ],
)
def test_trainers_on_accelerate_share_a_sequence(keys: dict[str, Any]) -> None:
    small = {**RING, "model": "llama-3.2-1b", "gpu": "h100-80gb", "gradient_checkpointing": "full", **keys}
    shared, whole = report(**small), report(**{**small, "context_parallel": 1})
    found = [
        sum(row.bytes for row in each.per_gpu.ledger if row.name.startswith("checkpoints: the layer's input"))
        for each in (shared, whole)
    ]
    assert 2 * found[0] == found[1] > 0
    assert shared.per_gpu.allocated_bytes < whole.per_gpu.allocated_bytes
    how = "heads exchanged for sequence (Ulysses)" if "zero_stage" in keys else "torch's ring"
    assert [text for text in shared.assumptions if text.startswith(f"context_parallel: {how}")]
    if "zero_stage" not in keys:
        assert shared.per_gpu.reserved_bytes.played
    assert not [text for text in whole.assumptions if text.startswith("context_parallel")]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "dpo"}, "context_parallel: 2 with TRL does not run with method dpo"),
        ({"attention": "flash"}, "context_parallel: 2 with TRL does not run with attention flash"),
        ({"model": "mistral-7b-v0.1"}, "does not run with sliding windows (mistral-7b-v0.1)"),
        ({"sequence_length": 4098}, "sequence_length: 4098 is no multiple of 4, the parts"),
        ({"sharding": "zero3", "method": "kto"}, "context_parallel: 2 with TRL does not run with method kto"),
        ({"sharding": "zero3", "sequence_length": 4097}, "sequence_length: 4097 is no multiple of 2, the parts"),
        ({"sharding": "zero3", "context_parallel": 16, "model": "qwen2.5-32b"}, "does not divide the 40 heads of"),
        ({"sharding": "fsdp"}, "context_parallel: 2 with TRL and sharding fsdp is not modelled"),
    ],
)
def test_what_accelerates_ring_does_not_take_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        recipe(**{**RING, **keys})
    assert message in refused.value.message


@pytest.mark.parametrize("ranks", [2, 4])
def test_openrlhf_gathers_keys_and_values(ranks: int) -> None:
    """Beside what one GPU holds of as many tokens: two buffers of keys and values and one of their gradients."""
    small = {"trainer": "openrlhf", "sharding": "zero3", "precision": "auto", "attention": "flash", "num_gpus": 8,
             "model": "llama-3.2-1b", "gradient_checkpointing": "full"}  # fmt: skip
    alone, shared = (report(**small, context_parallel=each, sequence_length=4096 * each) for each in (1, ranks))
    assert shared.per_gpu.allocated_bytes == alone.per_gpu.allocated_bytes, "at the loss, which each has of its part"
    assert recipe(**small, context_parallel=ranks).sharding.ranks == 8, "states are shared by all"
    rows = shared.per_gpu.ledger
    gathered = sum(row.bytes for row in rows if row.name.startswith("keys and values of all ranks, layer 15"))
    of_keys = 4096 * ranks * 8 * 64 * 2
    assert gathered == 3 * 2 * of_keys
    heads = sum(row.bytes for row in rows if row.name.startswith("gradients of keys of every head, layer 15"))
    assert heads == 2 * 4 * of_keys
    with pytest.raises(InvalidJob, match="is not modelled with sdpa attention"):
        recipe(**{**small, "attention": "sdpa"}, context_parallel=ranks)


def test_other_streams_keep_their_segments() -> None:
    """On the reserved meter alone: gradient shards wait for the next step's in the reduction's pool."""
    found = report(gpu="h100-80gb", allocator={"expandable_segments": True})
    kept = {row.name: row for row in found.per_gpu.ledger if row.meter == "reserved"}
    shards = sum(row.bytes for row in found.per_gpu.ledger if row.name.startswith("shards of the gradients"))
    assert kept["segments of gradient shards"].bytes == shards > 0
    assert kept["segments of all-gathers"].bytes > 0
    assert found.per_gpu.reserved_bytes.expected >= found.per_gpu.allocated_bytes
    assert not [row for row in report(sharding="ddp").per_gpu.ledger if row.meter == "reserved"]


LAYERS = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 6,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 2000, "tie_word_embeddings": False,
}  # fmt: skip
HEAD = LAYERS | {"num_hidden_layers": 3, "vocab_size": 32000}
AGAIN = {"gradient_checkpointing": "full"}
TRACED = [
    ({"model": LAYERS, "tensor_parallel": 2}, (1803830272, 1797175296, 716639232)),
    ({"model": LAYERS, "tensor_parallel": 4, **AGAIN}, (580998144, 762473472, 716772352)),
    (
        {"model": LAYERS, "tensor_parallel": 2, "precision": "bf16", "reshard_after_forward": False},
        (1853180416, 1806630400, 358336512),
    ),
    ({"model": HEAD, "tensor_parallel": 2, "sequence_length": 1024}, (1366522368, 1427891712, 675765248)),
    (
        {"model": HEAD, "tensor_parallel": 4, "num_gpus": 16, "sequence_length": 4096, **AGAIN},
        (1303682560, 1426473472, 337976320),
    ),
    (
        {"model": HEAD, "tensor_parallel": 2, "sequence_length": 1024, "reshard_after_forward": False, **AGAIN},
        (1219264000, 1234225664, 675765248),
    ),
]
"""The classes of transformers 5.24 divided as torchtitan 0.2 divides its own (models/llama3/infra/parallelize.py, its
loss parallel too), under FSDP2 on a mesh of two axes; torch 2.13's fake tensors and ranks: forward, backward, step in
bytes."""


@pytest.mark.parametrize(("keys", "traced"), TRACED)
def test_tensor_parallel_ranks_hold_what_dtensors_do(keys: dict[str, Any], traced: tuple[int, ...]) -> None:
    """Where the loss is within the class's forward, as in no torchtitan, this holds the head's input over it."""
    job = {"method": "sft", "trainer": "pytorch", "sharding": "fsdp2", "num_gpus": 8, "batch_size": 2}
    phases = estimate({**job, "sequence_length": 2048, **keys}).per_gpu.phases
    for name, size, within in zip(("forward", "backward", "step"), traced, (7e-3, 1e-3, 1e-3), strict=True):
        assert phases[name] == pytest.approx(size, rel=within)
