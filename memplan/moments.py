"""Phases beside the steady step, as a report shows them and as a verdict counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from memplan.engine.allocator.reserved import Band, reserved_band
from memplan.engine.ledger import Ledger, Row
from memplan.engine.phases.registry import PhaseSums, ledger_of_phase, sums_of_phases
from memplan.engine.step_and_evaluation import EVALUATE
from memplan.engine.totals import Totalled
from memplan.meters import Totals
from memplan.report import Bytes, Crossing, Instant, LedgerRow, Moment
from memplan.spec.recipe import Recipe

BEFORE = ("load", "first-step")
"""Phases that come before the steady step."""


class Beside(NamedTuple):
    """The phases of one class of ranks."""

    sums: list[PhaseSums]
    device: Band | None
    """The most that the device holds in those that allocate more than the step; None where none does."""

    def on_node(self, processes: int) -> dict[str, int]:
        """Bytes of a node's own memory in each phase that needs any."""
        sizes = ((each.name, each.process * processes + each.node) for each in self.sums)
        return {name: size for name, size in sizes if size}


def beside(ledger: Ledger | Totalled, recipe: Recipe, step: Totals) -> Beside:
    """The phases beside a step of these figures. One that allocates no more than the step needs no more of the device,
    so that its segments are not asked for."""
    sums, device = sums_of_phases(recipe, ledger), None
    for each in sums:
        if each.card[1] > step.allocated.expected or each.card[2] > step.allocated.high:
            here = _device(Band(*each.card), ledger, recipe)
            device = here if device is None else most_of(here, Beside(sums, device))
    return Beside(sums, device)


def most_of(step: Band, beside: Beside) -> Band:
    """What has to fit of the step, or of a phase that needs more."""
    return step if beside.device is None else Band(*map(max, zip(step, beside.device, strict=True)))


def _device(allocated: Band, ledger: Ledger | Totalled, recipe: Recipe) -> Band:
    """Segments and what is outside of torch, for so much in a phase."""
    lasting = min(ledger.lasting(), allocated.low)
    reserved = reserved_band(allocated, lasting, recipe.hardware.expandable_segments)
    outside = map(max, ledger.bounds("device"))
    return Band(*map(sum, zip(reserved, outside, strict=True)))


def moments_of(ledger: Ledger, recipe: Recipe, processes: int) -> Iterator[Moment]:
    """Every phase in the order of the run."""
    for name in recipe.moments.names:
        if name != EVALUATE:
            own = ledger_of_phase(name, recipe, ledger)
            yield _moment(name, own, _device(_most(own), ledger, recipe), processes)


def _most(ledger: Ledger) -> Band:
    return Band(*map(max, ledger.bounds()))


def _moment(name: str, own: Ledger, device: Band, processes: int) -> Moment:
    totals = own.totals()
    host = [own.totals(meter, "host") for meter in own.meters("host")] or [[0]]
    process = max(map(sum, zip(*host, strict=True)))
    return Moment(
        name=name,
        allocated_bytes=max(totals),
        device_bytes=Bytes(*device),
        host_bytes_per_node=process * processes + max(own.totals(place="node")),
        peak_instant=own.schedule[totals.index(max(totals))],
        instants=tuple(map(Instant, own.schedule, totals)),
        ledger=LedgerRows(own),
    )


def first_crossing(
    moments: Sequence[Moment],
    steps: Sequence[tuple[str, Instant]],
    device: Band,
    allocated: Band,
    most: Band,
    recipe: Recipe,
) -> Crossing | None:
    """The first instant of the run at which the card is full; None where the expected figure fits it. ``steps``: the
    steady step's instants, each with its phase; ``device``, ``allocated``: the step's; ``most``: of every phase. Beyond
    what is allocated the device holds what it does at the step's peak, in proportion."""
    gpu = recipe.hardware.gpu
    if gpu is None or most.expected <= gpu.usable_bytes:
        return None
    beyond = (device.expected - allocated.expected) / max(allocated.expected, 1)
    before = [(each.name, at) for each in moments if each.name in BEFORE for at in each.instants]
    after = [(each.name, at) for each in moments if each.name not in BEFORE for at in each.instants]
    for phase, at in (*before, *steps, *after):
        held = int(at.allocated_bytes * (1 + beyond))
        if held > gpu.usable_bytes:
            return Crossing(phase, at.name, held)
    fullest = max(moments, key=lambda each: each.device_bytes.expected, default=None)
    return Crossing(fullest.name, fullest.peak_instant, fullest.device_bytes.expected) if fullest else None


class LedgerRows(Sequence[LedgerRow]):
    """The rows of a ledger, each written out, formula and all, only when it is read."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __len__(self) -> int:
        return len(self._ledger.rows)

    @overload
    def __getitem__(self, index: int) -> LedgerRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LedgerRow, ...]: ...
    def __getitem__(self, index: int | slice) -> LedgerRow | tuple[LedgerRow, ...]:
        if isinstance(index, slice):
            return tuple(_ledger_row(row, self._ledger) for row in self._ledger.rows[index])
        return _ledger_row(self._ledger.rows[index], self._ledger)


def _ledger_row(row: Row, ledger: Ledger) -> LedgerRow:
    return LedgerRow(
        row.name,
        row.category,
        row.bytes,
        ledger.schedule[row.born],
        ledger.schedule[row.dies],
        row.place,
        row.meter,
        row.formula,
        row.why,
        row.source,
        row.low_bytes,
        row.high_bytes,
    )
