"""What is on a card beside the job's tensors: each row with its band and its source."""

from typing import Any

import pytest

from memplan.engine.build import build_ledger
from memplan.engine.ledger import Row
from memplan.engine.nccl import (
    Communicator,
    collective_bytes,
    communicator_bytes,
    deepep_bytes,
    exchange_bytes,
    neighbour_bytes,
    numbers_bytes,
)
from memplan.engine.overhead import CONTEXTS, context_bytes, workspace_bytes
from memplan.gpus import find_gpu, load_gpus
from memplan.resolve import resolve
from memplan.spec.gpu import Gpu
from memplan.spec.reading import read_job
from memplan.units import KiB, MiB


def rows(**job: Any) -> dict[str, Row]:
    ledger = build_ledger(resolve(read_job({"model": "llama-3.2-1b", "method": "sft", **job})))
    return {row.name: row for row in ledger.rows if row.category in ("workspaces", "context", "communication")}


@pytest.mark.parametrize("gpu", load_gpus().values(), ids=lambda gpu: gpu.name)
def test_every_card_has_a_context_with_a_band(gpu: Gpu) -> None:
    low, expected, high = context_bytes(gpu)
    assert 0 < low < expected < high
    assert workspace_bytes(gpu) % (128 * KiB) == 0


def test_every_architecture_of_the_catalogue_has_a_row() -> None:
    assert {gpu.architecture for gpu in load_gpus().values() if gpu.vendor == "nvidia"} == set(CONTEXTS)


@pytest.mark.parametrize(
    ("gpu", "seen"),
    [
        ("t4-16gb", (110, 205)),
        ("v100-32gb", (369, 472)),
        ("a100-80gb", (492, 676)),
        ("rtx-3090-24gb", (253, 416)),
        ("rtx-4090-24gb", (461, 522)),
        ("h100-80gb", (601, 754)),
    ],
)
def test_contexts_of_real_runs_are_in_the_band(gpu: str, seen: tuple[int, int]) -> None:
    low, expected, high = (size // MiB for size in context_bytes(find_gpu(gpu)))
    assert low <= seen[0] <= expected <= seen[1] < high


@pytest.mark.parametrize(
    ("gpu", "size"),
    [
        ("h100-80gb", 32 * MiB),
        ("b200-180gb", 32 * MiB),
        ("a100-80gb", 8 * MiB + 128 * KiB),
        ("rtx-4090-24gb", 8 * MiB + 128 * KiB),
        ("mi300x-192gb", 128 * MiB),
        ("ascend-910b-64gb", 0),
    ],
)
def test_the_workspace_follows_from_the_compute_capability(gpu: str, size: int) -> None:
    assert workspace_bytes(find_gpu(gpu)) == size


def test_a_card_of_unknown_make_has_a_band() -> None:
    row = rows(gpu="80GB")["matmul workspace"]
    assert (row.low_bytes, row.bytes) == (2 * (8 * MiB + 128 * KiB), 2 * 32 * MiB)


def test_amd_cards_have_a_second_workspace_that_may_not_be_taken() -> None:
    row = rows(gpu="mi300x-192gb")["hipBLASLt workspace"]
    assert (row.low_bytes, row.bytes, row.high_bytes) == (0, 76 * MiB, 76 * MiB)
    assert "hipBLASLt workspace" not in rows(gpu="h100-80gb")


def test_of_megatron_the_head_alone_runs_in_the_workspaces_of_torch() -> None:
    """Forward's thread and backward's; layers have Transformer Engine's. No stage but the last has a head."""
    job = {"trainer": "megatron", "gpu": "h100-80gb"}
    assert rows(**job)["matmul workspace"].bytes == 2 * 32 * MiB
    assert rows(**job, pipeline_parallel=2, num_gpus=2)["matmul workspace"].bytes == 32 * MiB


def test_megatron_has_groups_for_numbers_alone() -> None:
    """Norms cross all ranks, log lines one model's, counts the experts': each with channels of its own."""
    found = rows(
        trainer="megatron", model="qwen3-30b-a3b", num_gpus=8, pipeline_parallel=2, expert_parallel=4, gpu="h100-80gb"
    )
    few = numbers_bytes(find_gpu("h100-80gb"))
    for name in ("all ranks", "model parallel", "experts' counts"):
        row = found[f"communication buffers, {name}"]
        assert (row.low_bytes, row.bytes, row.high_bytes) == few
    alone = rows(trainer="megatron", num_gpus=8, gpu="h100-80gb")
    assert {name.rpartition(", ")[2] for name in alone if name.startswith("comm")} == {"data parallel", "all ranks"}


def test_communicators_are_for_several_ranks() -> None:
    assert "communication buffers, data parallel" in rows(num_gpus=8, sharding="ddp")
    assert not [name for name in rows() if name.startswith("communication")]


@pytest.mark.parametrize(
    ("gpu", "ranks", "measured"), [("a100-80gb", 2, 544e6), ("a100-80gb", 4, 688e6), ("h100-80gb", 8, 1.6e9)]
)
def test_published_communicators_are_in_the_band(gpu: str, ranks: int, measured: float) -> None:
    """nccl#964 and nccl#864."""
    low, expected, high = collective_bytes(find_gpu(gpu), ranks)
    assert low < measured < high
    assert low < expected < high


def test_an_all_to_all_takes_the_most() -> None:
    """nccl#1685: 3.28 GB over eight H100."""
    card = find_gpu("h100-80gb")
    low, expected, high = exchange_bytes(card, 8, 8)
    assert low < 3.28e9 < high
    assert expected > collective_bytes(card, 8)[1] > neighbour_bytes(card, 8)[1]


def test_deepep_takes_slots_for_the_ranks_of_a_node_and_for_other_nodes() -> None:
    """Worked by hand from DeepEP's csrc/legacy/config.hpp for DeepSeek-V3's 7,168 numbers: slots of 16,392 bytes."""
    near = 10 * 8 * 256 * 16_392 + 32 * 2**20
    assert deepep_bytes(7168, 8, 8) == (near, near, near)
    low, expected, high = deepep_bytes(7168, 64, 8)
    near = 10 * 8 * 288 * 16_392 + 32 * 2**20
    assert low == near + 2 * 10 * 8 * 128 * 16_408
    assert (expected, high) == (near + 2**30, near + 3 * 2**29)


def test_ascend_takes_two_buffers_for_each_communicator() -> None:
    row = rows(gpu="ascend-910b-64gb", num_gpus=8, sharding="ddp")["communication buffers, data parallel"]
    assert (row.low_bytes, row.bytes, row.high_bytes) == (400_000_000,) * 3


@pytest.mark.parametrize("job", [{}, {"gpu": "h100-80gb"}, {"gpu": "mi300x-192gb", "num_gpus": 8, "sharding": "ddp"}])
def test_every_row_has_a_source_and_bounds_that_hold_it(job: dict[str, Any]) -> None:
    for row in rows(**job).values():
        assert row.source
        assert row.low_bytes <= row.bytes <= row.high_bytes


@pytest.mark.parametrize(("card", "ranks", "over"), [
    ("rtx-3090-24gb", 4, "l40s-48gb"), ("rtx-3090-24gb", 2, "a100-80gb"), ("h100-nvl-94gb", 4, "l40s-48gb"),
    ("a100-80gb", 4, "a100-80gb"),
])  # fmt: skip
def test_a_bridge_joins_two_cards(card: str, ranks: int, over: str) -> None:
    """Four RTX 3090 under vLLM 0.9.2: 0.16 GiB of a 14B's start outside PyTorch, as over PCIe."""
    group = Communicator("tensor parallel", ranks, "collective", ranks)
    assert communicator_bytes(group, find_gpu(card), True) == collective_bytes(find_gpu(over), ranks)
