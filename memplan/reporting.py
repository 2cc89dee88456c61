"""Ledger -> Report: the peak, the three meters, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

from memplan.engine.allocator import Band, reserved_band
from memplan.engine.build import ledger
from memplan.engine.ledger import Ledger, Row
from memplan.engine.ranks import RankClass, rank_classes
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


class Priced(NamedTuple):
    """A class of ranks, its ledger and its meters."""

    of: RankClass
    book: Ledger
    meters: Totals

    @property
    def peak_instant(self) -> str:
        """The first instant with the largest expected figure."""
        return self.book.schedule[self.meters.totals.index(self.meters.allocated.expected)]


def price(recipe: Recipe, detailed: bool = True) -> list[Priced]:
    """Every class of ranks, the fullest card first (by the expected device figure)."""
    priced = []
    for of in rank_classes(recipe):
        book = ledger(of.recipe, detailed)
        priced.append(Priced(of, book, measure(book, of.recipe)))
    return sorted(priced, key=lambda each: -each.meters.device.expected)


def totals_of(recipe: Recipe) -> Totals:
    """The meters alone, of the class of ranks that needs the most."""
    return price(recipe, detailed=False)[0].meters


def host_bytes(priced: list[Priced], recipe: Recipe) -> int:
    """Of one node: a node's GPUs hold the same stage, as ranks are laid out with the pipeline outermost."""
    of_rank = max(max(each.book.totals(place="host"), default=0) for each in priced)
    return of_rank * min(recipe.parallel.world, recipe.gpus_per_node)


def build_report(recipe: Recipe) -> Report:
    """The report of one recipe, without remedies and cards, which a search adds."""
    priced = price(recipe)
    fullest = priced[0]
    book, meters, peak = fullest.book, fullest.meters, fullest.peak_instant
    phases: dict[str, int] = {}
    for instant, size in zip(book.schedule, meters.totals, strict=True):
        phases[phase_of(instant)] = max(phases.get(phase_of(instant), 0), size)
    per_gpu = PerGpu(
        rank=fullest.of.name,
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
    return Report(
        schema_version=SCHEMA_VERSION,
        job=recipe.job,
        sources=recipe.sources,
        model=_model(recipe),
        per_gpu=per_gpu,
        ranks=tuple(_rank(each) for each in priced),
        host=Host(host_bytes(priced, recipe)),
        verdict=judge(meters.device, recipe.gpu, recipe.margin) if recipe.gpu else None,
        assumptions=recipe.assumptions,
        warnings=recipe.warnings,
        recipe=recipe,
    )


def _rank(priced: Priced) -> Rank:
    return Rank(
        priced.of.name,
        priced.of.gpus,
        priced.meters.allocated.expected,
        priced.peak_instant,
        Bytes(*priced.meters.device),
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
