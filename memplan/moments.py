"""Phases beside the steady step, as a report shows them and as a verdict counts them."""

from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple, overload

from memplan.engine.allocator.reserved import Band, reserved_band
from memplan.engine.ledger import Ledger, Row
from memplan.engine.phases.first_step import FIRST, first_step_totals
from memplan.engine.phases.registry import FIRST_STEP, PhaseSums, ledger_of_phase, sums_of_phases
from memplan.engine.step_and_evaluation import EVALUATE, EVALUATION
from memplan.engine.sums import Totalled
from memplan.meters import Totals
from memplan.report import Bytes, Crossing, Instant, LedgerRow, Moment
from memplan.spec.recipe import Recipe

AsleepIn = Callable[[str], int]
"""Bytes on the host for one card's engines that sleep in a phase."""
BEFORE = ("load", "first-step")
"""Phases that come before the steady step."""


class Beside(NamedTuple):
    """The phases of one class of ranks."""

    sums: list[PhaseSums]
    device: Band | None
    """The most that the device holds in those that allocate more than the step; None where none does."""

    def on_node(self, processes: int, asleep: AsleepIn) -> dict[str, int]:
        """Bytes of a node's own memory in each phase that needs any."""
        sizes = ((each.name, (each.process + asleep(each.name)) * processes + each.node) for each in self.sums)
        return {name: size for name, size in sizes if size}


def beside(ledger: Ledger | Totalled, recipe: Recipe, step: Totals) -> Beside:
    """The phases beside a step of these figures. One that allocates no more than the step needs no more of the device,
    so that its segments are not asked for."""
    sums, device = sums_of_phases(recipe, ledger), None
    for each in sums:
        if each.card[1] > step.allocated.expected or each.card[2] > step.allocated.high:
            here = _device(Band(*each.card), ledger, recipe, others_in(each.name, step))
            device = here if device is None else most_of(here, Beside(sums, device))
    return Beside(sums, device)


def most_of(step: Band, beside: Beside) -> Band:
    """What has to fit of the step, or of a phase that needs more."""
    return step if beside.device is None else Band(*map(max, zip(step, beside.device, strict=True)))


ALONE = ("load", "sync")
"""Phases whose figures are the trainer's alone: before the engine starts, and where ``rollout`` has it beside them."""


def others_in(phase: str, step: Totals) -> Band:
    """What other processes hold of the card in a phase."""
    return Band(0, 0, 0) if phase in ALONE else step.others


def _device(allocated: Band, ledger: Ledger | Totalled, recipe: Recipe, others: Band) -> Band:
    """Segments and what is outside of torch, for so much in a phase."""
    lasting = min(ledger.lasting(), allocated.low)
    reserved = reserved_band(allocated, lasting, recipe.hardware.expandable_segments)
    outside = map(max, ledger.bounds("device"))
    return Band(*map(sum, zip(reserved, outside, others, strict=True)))


def moments_of(ledger: Ledger, recipe: Recipe, processes: int, step: Totals, asleep: AsleepIn) -> Iterator[Moment]:
    """Every phase in the order of the run."""
    for name in recipe.moments.names:
        if name != EVALUATE:
            own = ledger_of_phase(name, recipe, ledger)
            device = _device(Band(*map(max, own.bounds())), ledger, recipe, others_in(name, step))
            yield _moment(name, own, device, processes, recipe, asleep(name))


def _moment(name: str, own: Ledger, device: Band, processes: int, recipe: Recipe, asleep: int) -> Moment:
    totals = own.totals()
    host = [own.totals(meter, "host") for meter in own.meters("host")] or [[0]]
    process = max(map(sum, zip(*host, strict=True)))
    return Moment(
        name=name,
        allocated_bytes=max(totals),
        device_bytes=Bytes(*device),
        host_bytes_per_node=(process + asleep) * processes + max(own.totals(place="node")),
        peak_instant=own.schedule[totals.index(max(totals))],
        instants=tuple(map(Instant, own.schedule, totals)),
        ledger=LedgerRows(own, recipe),
    )


def first_crossing(
    ledger: Ledger, steady: Sequence[Instant], step: Totals, beside: Beside, recipe: Recipe
) -> Crossing | None:
    """The first instant of the run at which the card is full; None where what is expected fits it. ``steady``: the
    instants of the steady step. Beyond what is allocated, an instant needs what the run's peak does, in proportion."""
    gpu = recipe.hardware.gpu
    most = most_of(step.to_fit, beside).expected  # a play of the step has the making of the model in it
    if gpu is None or most <= gpu.usable_bytes:
        return None
    share = most / max(step.allocated.expected, *(each.card[1] for each in beside.sums), 1)
    small = {each.name for each in beside.sums if each.card[1] * share <= gpu.usable_bytes and beside.device is None}
    fullest = Crossing("", "", 0)
    for phase, at in _run(ledger, steady, step.totals, recipe, small):
        held = int(at.allocated_bytes * share)
        if held > fullest.device_bytes:
            fullest = Crossing(phase, at.name, held)
        if held > gpu.usable_bytes:
            break
    return fullest


def _run(
    ledger: Ledger, steady: Sequence[Instant], totals: Sequence[int], recipe: Recipe, small: Container[str]
) -> Iterator[tuple[str, Instant]]:
    """Every instant of a run in its order, with its phase; none of the phases that are known to be small."""
    names = [name for name in recipe.moments.names if name not in small]
    for name in (name for name in names if name in BEFORE):
        if name == FIRST_STEP:
            sizes = first_step_totals(ledger, totals, recipe)
            yield from ((name, Instant(f"{FIRST}-{at.name}", size)) for at, size in zip(steady, sizes, strict=False))
        else:
            yield from ((name, at) for at in _instants(ledger_of_phase(name, recipe, ledger)))
    yield from ((phase_of(at.name), at) for at in steady)
    for name in (name for name in names if name not in (*BEFORE, EVALUATE)):
        yield from ((name, at) for at in _instants(ledger_of_phase(name, recipe, ledger)))


def _instants(ledger: Ledger) -> Iterator[Instant]:
    return map(Instant, ledger.schedule, ledger.totals())


def phase_of(instant: str) -> str:
    """forward (with the loss, and scoring passes), backward, step or evaluate."""
    name, point = instant.split(".", 1)
    if name.startswith(EVALUATION):
        return EVALUATE
    if name == "step" or point == "optimizer":
        return "step"
    return "backward" if point.endswith(("backward", "reduce")) else "forward"


class LedgerRows(Sequence[LedgerRow]):
    """The rows of a ledger, each written out, formula and all, only when it is read."""

    def __init__(self, ledger: Ledger, recipe: Recipe, beside: tuple[LedgerRow, ...] = ()) -> None:
        self._ledger, self._recipe, self._beside = ledger, recipe, beside

    def __len__(self) -> int:
        return len(self._ledger.rows) + len(self._beside)

    @overload
    def __getitem__(self, index: int) -> LedgerRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LedgerRow, ...]: ...
    def __getitem__(self, index: int | slice) -> LedgerRow | tuple[LedgerRow, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        at = range(len(self))[index]
        own = len(self._ledger.rows)
        return self._beside[at - own] if at >= own else _ledger_row(self._ledger.rows[at], self._ledger, self._recipe)


def engine_row(asleep: Band, schedule: Sequence[str]) -> tuple[LedgerRow, ...]:
    """What an engine on the trainer's card holds of it over the passes; nothing is no row."""
    low, size, high = asleep
    facts = ("gpu", "device", "", "what generates, over the passes: asleep where it sleeps", "")
    row = LedgerRow("engine", "engine", size, schedule[0], schedule[-1], *facts, low, high, "engine", "")
    return (row,) if high else ()


def stream_of(row: Row, sharding: str) -> str:
    """The stream of a row's memory (``engine/play/fsdp1.py``, ``fsdp2.py``); empty outside torch and the card."""
    if row.place != "gpu" or row.meter == "device":
        return ""
    if sharding in ("fsdp", "fsdp2"):
        if "all-gather" in row.name or (sharding == "fsdp" and row.category == "gathered_parameters"):
            return "gather"
        if "shards of the gradients" in row.name or row.name == "segments of gradient shards":
            return "reduce"
    return "compute"


def _ledger_row(row: Row, ledger: Ledger, recipe: Recipe) -> LedgerRow:
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
        "engine" if recipe.method.generates else "trainer",
        stream_of(row, recipe.sharding.name),
    )
