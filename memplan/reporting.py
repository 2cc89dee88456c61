"""Ledger -> Report: the peak, the three meters, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

from memplan.engine.allocator import Band, reserved_band
from memplan.engine.build import ledger
from memplan.engine.ledger import Ledger, Row
from memplan.engine.tensors import count, model_weights
from memplan.report import (
    SCHEMA_VERSION,
    Bytes,
    Group,
    Host,
    Instant,
    LedgerRow,
    Model,
    Parameters,
    PerGpu,
    Range,
    Rank,
    Report,
    Verdict,
)
from memplan.spec.gpu import Gpu
from memplan.spec.recipe import Recipe


class Totals(NamedTuple):
    """The three meters of a ledger, without the rest of a report: what a search needs."""

    totals: tuple[int, ...]
    allocated: Band
    reserved: Band
    device: Band


def measure(book: Ledger, recipe: Recipe) -> Totals:
    """Low, expected and high each run through the ledger as a whole."""
    totals = book.totals()
    allocated = Band(max(book.totals(bound="low_bytes")), max(totals), max(book.totals(bound="high_bytes")))
    if recipe.model.spread:
        allocated = of_assumed_layers(allocated, book.lasting(), recipe.model.spread)
    outside = [
        sum(getattr(row, bound) for row in book.rows if row.meter == "device")
        for bound in ("low_bytes", "bytes", "high_bytes")
    ]
    reserved = reserved_band(allocated, book.lasting(), recipe.expandable_segments, recipe.checkpointing)
    device = Band(*(a + b for a, b in zip(reserved, outside, strict=True)))
    return Totals(tuple(totals), allocated, reserved, device)


def of_assumed_layers(allocated: Band, lasting: int, spread: tuple[float, float]) -> Band:
    """The range of a model whose layers are assumed: only what comes and goes depends on them."""
    low, high = (int(share * (allocated.expected - lasting)) + lasting for share in spread)
    return Band(min(low, allocated.low), allocated.expected, max(high, allocated.high))


def judge(device: Band, gpu: Gpu, margin: float) -> Verdict:
    """Yes if the high device figure fits the usable memory less the margin, tight if the expected one fits it, else
    no.
    """
    allowed = int(gpu.usable_bytes * (1 - margin))
    fits = "yes" if device.high <= allowed else "tight" if device.expected <= gpu.usable_bytes else "no"
    return Verdict(gpu.name, fits, gpu.usable_bytes, gpu.usable_bytes - device.expected, max(0, device.high - allowed))


def phase_of(instant: str) -> str:
    """forward (with the loss, and scoring passes), backward or step."""
    name, point = instant.split(".", 1)
    if name == "step" or point == "optimizer":
        return "step"
    return "backward" if point.endswith("backward") or point == "reduce" else "forward"


def build_report(recipe: Recipe) -> Report:
    """The report of one recipe, without remedies and cards, which a search adds."""
    book = ledger(recipe)
    meters = measure(book, recipe)
    peak = book.schedule[meters.totals.index(meters.allocated.expected)]
    phases: dict[str, int] = {}
    for instant, size in zip(book.schedule, meters.totals, strict=True):
        phases[phase_of(instant)] = max(phases.get(phase_of(instant), 0), size)
    rank = "the only GPU" if recipe.ranks == 1 else f"each of {recipe.ranks} GPUs"
    per_gpu = PerGpu(
        rank=rank,
        allocated_bytes=meters.allocated.expected,
        allocated_range=Range(meters.allocated.low, meters.allocated.high),
        peak_instant=peak,
        instants=tuple(map(Instant, book.schedule, meters.totals)),
        phases=phases,
        reserved_bytes=Bytes(*meters.reserved),
        device_bytes=Bytes(*meters.device),
        by_category=book.by_category(peak),
        ledger=LedgerRows(book),
    )
    verdict = judge(meters.device, recipe.gpu, recipe.margin) if recipe.gpu else None
    host = sum(row.bytes for row in book.rows if row.place == "host") * min(recipe.ranks, recipe.gpus_per_node)
    return Report(
        schema_version=SCHEMA_VERSION,
        job=recipe.job,
        sources=recipe.sources,
        model=_model(recipe),
        per_gpu=per_gpu,
        ranks=(Rank(rank, recipe.ranks, meters.allocated.expected),),
        host=Host(host),
        verdict=verdict,
        assumptions=recipe.assumptions,
        warnings=recipe.warnings,
        recipe=recipe,
    )


class LedgerRows(Sequence[LedgerRow]):
    """The rows of a ledger, each written out, formula and all, only when it is read."""

    def __init__(self, book: Ledger) -> None:
        self._book = book

    def __len__(self) -> int:
        return len(self._book.rows)

    @overload
    def __getitem__(self, index: int) -> LedgerRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LedgerRow, ...]: ...
    def __getitem__(self, index: int | slice) -> LedgerRow | tuple[LedgerRow, ...]:
        if isinstance(index, slice):
            return tuple(_ledger_row(row, self._book) for row in self._book.rows[index])
        return _ledger_row(self._book.rows[index], self._book)


def _ledger_row(row: Row, book: Ledger) -> LedgerRow:
    return LedgerRow(
        row.name,
        row.category,
        row.bytes,
        book.schedule[row.born],
        book.schedule[row.dies],
        row.place,
        row.meter,
        row.formula,
        row.why,
        row.source,
        row.low_bytes,
        row.high_bytes,
    )


def _model(recipe: Recipe) -> Model:
    spec = recipe.model
    weights = model_weights(spec, recipe.adapter is None, recipe.adapter)
    trainable = count([weight for weight in weights if weight.trained])
    params = Parameters(spec.params.total, trainable, spec.params.active, spec.params.by_category)
    groups = tuple(Group(run.count, run.layer.parameters, run.layer.by_category) for run in spec.runs)
    return Model(spec.name, spec.family, params, groups)
