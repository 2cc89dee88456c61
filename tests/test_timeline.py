"""Proves the timeline: each point's categories add up to the report's own figure of that instant, to the byte, in every
class of ranks and every phase; the played curve reaches what the report says of the play.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from any_jobs import sparse_jobs
from hypothesis import assume, given

from memplan.api import estimate
from memplan.errors import InvalidJob
from memplan.jobs import job_names, read_target
from memplan.report import Instant, LedgerRow, PerGpu, Report
from memplan.tables.categories import STACK, stacked
from memplan.tables.terms import TERMS
from memplan.timeline import BESIDE, PLAYED, STEP, TOGETHER, Curve, Timeline, timeline

MEGATRON = {
    "model": "llama-3.1-8b",
    "method": "sft",
    "trainer": "megatron",
    "num_gpus": 16,
    "pipeline_parallel": 4,
    "tensor_parallel": 2,
}
JOBS: dict[str, dict[str, Any]] = {
    "stages": {**MEGATRON, "gpu": "h100-80gb", "gradient_accumulation_steps": 8},
    "rollout": {"model": "qwen2.5-7b", "method": "grpo", "trainer": "verl", "num_gpus": 8, "gpu": "h100-80gb"},
    "evaluated": {"model": "qwen3-0.6b", "eval_batch_size": 8, "trainer": "trl", "gpu": "24GB"},
    "sharded": {"model": "qwen3-0.6b", "num_gpus": 8, "sharding": "fsdp2", "gpu": "24GB"},
    "zero": {"model": "qwen3-0.6b", "num_gpus": 8, "sharding": "zero3", "trainer": "trl", "gpu": "24GB"},
    "without a card": {"model": "qwen3-0.6b", "method": "dpo"},
    "engine alone": {"model": "qwen2.5-7b", "method": "generate", "gpu": "h100-80gb", "rollout": {"engine": "vllm"}},
}


def by_category(ledger: Sequence[LedgerRow], instants: Sequence[Instant], at: str) -> Counter[str]:
    """What is alive at an instant, from the rows as a report shows them."""
    names = [instant.name for instant in instants]
    place, alive = names.index(at), Counter[str]()
    for row in ledger:
        if row.meter == "allocated" and row.place == "gpu" and names.index(row.born) <= place <= names.index(row.dies):
            alive[row.category] += row.bytes
    return +alive


def hold(curve: Curve, instants: Sequence[Instant], ledger: Sequence[LedgerRow]) -> None:
    """A curve against the report's instants and rows."""
    assert [(point.instant, point.bytes) for point in curve.points] == [
        (at.name, at.allocated_bytes) for at in instants
    ]
    for point in curve.points:
        assert point.by_category == by_category(ledger, instants, point.instant)


def hold_all(report: Report, found: Timeline) -> None:
    """Every curve that stands on a ledger."""
    per_gpu: PerGpu = report.per_gpu
    steps = found.of(STEP)
    hold(steps[0], per_gpu.instants, per_gpu.ledger)
    assert [(curve.name, curve.count, curve.peak_bytes, curve.peak_instant) for curve in steps] == [
        (rank.name, rank.count, rank.allocated_bytes, rank.peak_instant) for rank in report.ranks
    ]
    beside = found.of(BESIDE)
    assert [curve.name for curve in beside] == [moment.name for moment in per_gpu.moments]
    for curve, moment in zip(beside, per_gpu.moments, strict=True):
        hold(curve, moment.instants, moment.ledger)
    for curve in found.curves:
        for point in curve.points:
            assert point.bytes == sum(point.by_category.values())
            assert min(point.by_category.values(), default=1) > 0
            assert list(point.by_category) == [name for name in found.categories if name in point.by_category]


@pytest.mark.parametrize("name", JOBS)
def test_points_are_the_reports_own_figures(name: str) -> None:
    report = estimate(JOBS[name])
    hold_all(report, timeline(report, fine=False))


@pytest.mark.parametrize("name", job_names())
def test_points_of_every_preset_are_the_reports_own_figures(name: str) -> None:
    report = estimate(read_target(name, {}))
    hold_all(report, timeline(report, fine=False))


@given(keys=sparse_jobs())
def test_points_of_any_job_are_the_reports_own_figures(keys: dict[str, Any]) -> None:
    try:
        report = estimate(keys)
    except InvalidJob:
        assume(False)
        raise
    hold_all(report, timeline(report, fine=False))


def test_every_stage_of_a_pipeline_has_its_curve() -> None:
    report = estimate(JOBS["stages"])
    steps = timeline(report, fine=False).of(STEP)
    assert len(steps) == len(report.ranks) == 4
    assert steps[0].reserved_bytes == report.per_gpu.reserved_bytes.expected
    assert {curve.reserved_bytes for curve in steps[1:]} == {None}


def test_the_engine_stands_beside_the_trainer() -> None:
    report = estimate(JOBS["rollout"])
    first, later = timeline(report, fine=False).of(TOGETHER)
    points = [*first.points, *later.points]
    assert [(point.instant, point.bytes) for point in points] == [
        (at.name, at.device_bytes) for at in sorted(report.rollout, key=lambda at: not at.first)
    ]
    assert later.peak_bytes == max(at.device_bytes for at in report.rollout if not at.first)
    assert {"trainer", "engine"} <= set(later.points[0].by_category)
    assert {"rollout", "forward", "step", "sync"} <= {point.phase for point in points}


@pytest.mark.parametrize("name", ["stages", "rollout", "sharded", "zero"])
def test_the_played_curve_reaches_the_reports_figures(name: str) -> None:
    report = estimate(JOBS[name])
    [played] = timeline(report).of(PLAYED)
    held, allocated = report.per_gpu.reserved_bytes, report.per_gpu.allocated_bytes
    assert played.reserved_bytes == held.expected
    assert abs(played.peak_bytes - allocated) <= 0.01 * allocated
    assert 50 < len(played.points) <= 402
    assert all(point.reserved_bytes and point.reserved_bytes >= point.bytes for point in played.points)
    events = [point.event for point in played.points if point.event is not None]
    assert len(events) == len(played.points)
    assert events == sorted(set(events))
    unnamed = name == "stages"  # Megatron's play has no marks
    assert {point.phase for point in played.points} == ({""} if unnamed else {"forward", "backward", "step"})


def test_a_job_that_is_not_played_has_no_played_curve() -> None:
    assert not timeline(estimate(JOBS["without a card"])).of(PLAYED)


def test_every_kind_of_memory_has_its_place_in_a_stack() -> None:
    assert {name for row in TERMS.values() for name in row.categories} <= set(STACK)
    assert stacked({"zebra", "logits", "parameters"}) == ["parameters", "logits", "zebra"]
