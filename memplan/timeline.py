"""A step as curves: bytes by category at each instant, as plain data for whoever draws it.

One curve for the step of each class of ranks, one for each phase beside it, for a job with an engine one of all
processes on its card, and, where the reserved meter is played, one of the play itself. The sum at a point is the
report's own figure of that instant, to the byte: both are running sums over the rows of one ledger."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.phases.registry import ledger_of_phase
from memplan.engine.ranks import ledger_of, rank_classes
from memplan.engine.step_and_evaluation import EVALUATE
from memplan.generated import Together
from memplan.meters import measure, room_of
from memplan.moments import phase_of
from memplan.report import Rank, Report, plain
from memplan.spec.recipe import Recipe
from memplan.tables.categories import stacked

STEP, BESIDE, TOGETHER, PLAYED, MEASURED, TRACED = "step", "beside", "together", "played", "measured", "traced"
BY_EVENT = (PLAYED, MEASURED, TRACED)
"""Curves over requests and frees; the others are over instants."""
OF_STEP = ("forward", "backward", "step", EVALUATE)
FINEST = 400
"""Points of a played curve, about: more than a picture has columns for."""


@dataclass(slots=True, eq=False, repr=False)
class Point:
    """One instant of a curve."""

    instant: str
    """As the report names it; of a played curve the last that came, empty where its play names none."""
    phase: str
    """forward, backward, step, evaluate, rollout, sync, …; empty where the instant is."""
    bytes: int
    """The sum of the categories."""
    by_category: dict[str, int]
    """Without those that hold nothing then."""
    reserved_bytes: int | None = None
    """Of a played curve: the most that segments hold from the point before to this one."""
    event: int | None = None
    """Of a played curve: how many requests and frees came before, from the step's first."""


@dataclass(slots=True, eq=False, repr=False)
class Curve:
    """Points in the order of time."""

    kind: str
    """step; beside (a phase beside the step); together (trainer and engine on one card); played."""
    name: str
    """Of a step its class of ranks, else the phase."""
    meter: str
    """What the sums are: allocated, or device."""
    count: int
    """GPUs that hold this."""
    peak_instant: str
    peak_bytes: int
    points: tuple[Point, ...]
    reserved_bytes: int | None = None
    """Held by the caching allocator over the whole curve, as expected; null where it is not known of this class."""
    device_bytes: int | None = None
    """The most that the card holds over it, as expected: segments, and what is beside them."""


@dataclass(slots=True, eq=False, repr=False)
class Timeline:
    """All curves of a report."""

    categories: tuple[str, ...]
    """Every category of any curve, from the bottom of a stack to its top."""
    gpu: str | None
    usable_bytes: int | None
    """The card's; null where none is named."""
    margin_bytes: int | None
    """Of these, what is to stay free."""
    curves: tuple[Curve, ...]
    """The steps first, that of the fullest class of ranks before the others."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON."""
        return {name: plain(getattr(self, name)) for name in self.__slots__}

    def rows(self) -> list[dict[str, Any]]:
        """A line for each point, as a table has it: a column for each category."""
        own = ("instant", "phase", "event", "bytes", "reserved_bytes")
        return [
            {"kind": curve.kind, "name": curve.name}
            | {key: getattr(point, key) for key in own}
            | {category: point.by_category.get(category, 0) for category in self.categories}
            for curve in self.curves
            for point in curve.points
        ]

    def of(self, kind: str) -> list[Curve]:
        """The curves of one kind."""
        return [curve for curve in self.curves if curve.kind == kind]


def timeline(report: Report, fine: bool = True) -> Timeline:
    """The curves of a report; ``fine``: with the played one, where the report's reserved meter is played."""
    assert report.recipe is not None, "a report that was read back has no rows to add up"
    recipes = {of.name: of.recipe for of in rank_classes(report.recipe)}
    ledgers = {name: ledger_of(recipe) for name, recipe in recipes.items()}
    rank = report.per_gpu.rank
    curves = [_step(each, ledgers[each.name], report) for each in report.ranks]
    curves += _beside(recipes[rank], ledgers[rank], report)
    curves += _together(report)
    if fine and report.per_gpu.reserved_bytes.played:
        curves += _played(recipes[rank], ledgers[rank], report)
    gpu = report.recipe.hardware.gpu
    there = {name for curve in curves for point in curve.points for name in point.by_category}
    return Timeline(
        categories=tuple(stacked(there)),
        gpu=gpu.name if gpu else None,
        usable_bytes=gpu.usable_bytes if gpu else None,
        margin_bytes=gpu.usable_bytes - int(gpu.usable_bytes * (1 - report.recipe.hardware.margin)) if gpu else None,
        curves=tuple(curves),
    )


def running_sums(ledger: Ledger) -> list[dict[str, int]]:
    """Allocated bytes at each instant by category, from a stack's bottom to its top: sums over births and deaths."""
    changes: list[dict[str, int]] = [{} for _ in range(len(ledger.schedule) + 1)]
    for row in ledger.rows:
        if row.meter == "allocated" and row.place == "gpu":
            for at, size in ((row.born, row.bytes), (row.dies + 1, -row.bytes)):
                changes[at][row.category] = changes[at].get(row.category, 0) + size
    order = stacked({name for change in changes for name in change})
    total, sums = dict.fromkeys(order, 0), []
    for change in changes[:-1]:
        for name, size in change.items():
            total[name] += size
        sums.append({name: size for name, size in total.items() if size})
    return sums


def _points(ledger: Ledger, phase: str = "") -> tuple[Point, ...]:
    """Of a ledger: of one phase, or each of its own."""
    sums = running_sums(ledger)
    return tuple(
        Point(name, phase or _phase(name), sum(parts.values()), parts)
        for name, parts in zip(ledger.schedule, sums, strict=True)
    )


def _curve(kind: str, name: str, points: Iterable[Point], count: int, meter: str = "allocated") -> Curve:
    kept = tuple(points)
    peak = max(kept, key=lambda point: point.bytes)
    return Curve(kind, name, meter, count, peak.instant, peak.bytes, kept)


def _step(rank: Rank, ledger: Ledger, report: Report) -> Curve:
    """The steady step of a class of ranks."""
    curve = _curve(STEP, rank.name, _points(ledger), rank.count)
    fullest = rank.name == report.per_gpu.rank
    curve.reserved_bytes = report.per_gpu.reserved_bytes.expected if fullest else None
    if not report.rollout:
        curve.device_bytes = rank.device_bytes.expected
    elif fullest:  # the rank's own figure has an engine that is awake beside it
        later = [_of_processes(at) for at in report.rollout if not at.first]
        curve.device_bytes = max(point.bytes for point in later if point.phase in OF_STEP)
    return curve


def _beside(recipe: Recipe, step: Ledger, report: Report) -> Iterator[Curve]:
    """The phases beside the step, of the fullest class."""
    count = report.ranks[0].count
    devices = {moment.name: moment.device_bytes.expected for moment in report.per_gpu.moments}
    for name in recipe.moments.names:
        if name != EVALUATE:  # whose instants are the step's
            curve = _curve(BESIDE, name, _points(ledger_of_phase(name, recipe, step), name), count)
            curve.device_bytes = devices[name]
            yield curve


def _together(report: Report) -> Iterator[Curve]:
    """Trainer and engine on one card: the start with the first step, then a later step."""
    for first, name in ((True, "first step"), (False, "step")):
        points = [_of_processes(at) for at in report.rollout if at.first is first]
        if points:
            curve = _curve(TOGETHER, name, points, report.ranks[0].count, "device")
            curve.device_bytes = curve.peak_bytes
            yield curve


def _of_processes(at: Together) -> Point:
    """What each process holds: of the trainer what is allocated, what its allocator caches, and what is beside."""
    parts: dict[str, int] = {}
    for each in at.processes:
        if each.name == "trainer":
            parts["trainer"] = each.allocated_bytes
            parts["trainer_cache"] = each.reserved_bytes - each.allocated_bytes
            parts["trainer_context"] = each.device_bytes - each.reserved_bytes
        else:
            parts[each.name] = parts.get(each.name, 0) + each.device_bytes
    shown = {name: size for name, size in parts.items() if size}
    return Point(at.name, _phase(at.name, at.at), sum(shown.values()), shown)


def _phase(name: str, of: str = "") -> str:
    """Of an instant; of an engine's, start, rollout or sync. ``of``: the ledger's, where a pass has another name."""
    head = name.partition(".")[0]
    return head if head in ("start", "rollout", "sync") else phase_of(of or name) if "." in (of or name) else head


def _played(recipe: Recipe, ledger: Ledger, report: Report) -> Iterator[Curve]:
    """The last of two played steps, on this card where they run on it, else on one without end."""
    from memplan.engine.allocator.curve import last_step

    gpu, held = recipe.hardware.gpu, report.per_gpu.reserved_bytes
    limited = gpu is not None and held.endless is not None and held.expected < held.endless
    room = room_of(measure(ledger, recipe), recipe).most if limited else None
    samples = last_step(recipe, room, FINEST)
    points = [
        Point(at.instant, _phase(at.instant), sum(at.by_category.values()), at.by_category, at.reserved, at.event)
        for at in samples
    ]
    if points:
        curve = _curve(PLAYED, report.per_gpu.rank, points, report.ranks[0].count)
        curve.reserved_bytes = max(at.reserved for at in samples)
        yield curve
