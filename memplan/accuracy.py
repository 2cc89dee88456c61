"""How far estimates are from truth: each row of the truth files estimated, and errors summed up by what a row is.

The error of a figure is estimated / measured − 1; of what an engine's weights take, what is beyond the rounding of its
log. A row has one figure for each meter it tells, and one for each phase
of the allocated meter. Meters are never mixed: groups are of the allocated peak, unless they say otherwise. A row that
memplan refuses is counted with the reason."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from memplan.errors import InternalError, MemplanError, UsageError
from memplan.generated import Engine
from memplan.report import Report, plain
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.truth import ROUNDED, STARTS, TruthRow, TruthSet, read_sets

SCHEMA_VERSION = 1
PEAK = "peak"
ENGINE = "engine"
"""The phase of figures of a generation engine alone."""
ONE_GPU = "one GPU"
BOUNDS = {"median": 0.001, "p95": 0.01, "worst": 0.03}
"""Of traced rows with one GPU, in the peak and in each phase."""


class Figure(NamedTuple):
    """One figure of one row, and its estimate."""

    set: str
    kind: str
    id: str
    family: str
    method: str
    sharding: str
    meter: str
    phase: str
    measured_bytes: int
    estimated_bytes: int
    low_bytes: int = 0
    high_bytes: int = 0
    trainer: str = ""
    quality: str = ""
    rounding: int = 0
    """Bytes that the measured figure may be off because it was rounded; what is within them is no error."""

    @property
    def inside(self) -> bool:
        """Whether the measured figure is within the estimate's range."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes

    @property
    def error(self) -> float:
        """Above zero where the estimate is too high."""
        off = self.estimated_bytes - self.measured_bytes
        return max(0, abs(off) - self.rounding) * (1 if off > 0 else -1) / self.measured_bytes


class Refusal(NamedTuple):
    """A row without an estimate."""

    set: str
    kind: str
    id: str
    reason: str
    one_gpu: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Errors of some figures, in absolute value; ``worst`` has its sign."""

    name: str
    rows: int
    median: float
    p95: float
    """The smallest error that 95 of 100 do not exceed."""
    worst: float
    worst_id: str
    inside: int
    """How many measured figures are within the range of their estimate."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups by one property of a row, and of which figures they are."""

    by: str
    of: str
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class SetCount:
    """What became of the rows of a set: estimated and refused make up all."""

    name: str
    kind: str
    source: str
    rows: int
    estimated: int
    refused: int


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How many rows of a set were refused for one reason."""

    set: str
    reason: str
    rows: int
    first_id: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Every error, and its sums."""

    sets: tuple[SetCount, ...]
    groupings: tuple[Grouping, ...]
    refused: tuple[ReasonCount, ...]
    figures: tuple[Figure, ...]
    refusals: tuple[Refusal, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON, as plain dicts, lists, numbers and strings."""
        return {
            "schema_version": SCHEMA_VERSION,
            "sets": plain(self.sets),
            "groupings": plain(self.groupings),
            "refused": plain(self.refused),
            "bounds": dict(BOUNDS),
            "figures": [figure._asdict() | {"error": figure.error} for figure in self.figures],
            "refusals": [refusal._asdict() for refusal in self.refusals],
        }

    def missed_bounds(self) -> list[str]:
        """What is out of bounds among traced rows with one GPU, a line for each; a row that is refused is, too.

        Raises UsageError where there is no such row: a check of nothing holds nothing."""
        of = ("traced", ONE_GPU, "allocated")
        figures = [figure for figure in self.figures if (figure.kind, figure.sharding, figure.meter) == of]
        refused = [each for each in self.refusals if each.kind == "traced" and each.one_gpu]
        if not figures and not refused:
            raise UsageError("--check: no traced row with one GPU in these files", "the bounds are of such rows alone")
        missed = [f"{each.id} of {each.set} is refused: {each.reason}" for each in refused]
        return missed + [line for group in groups_of(figures, lambda figure: figure.phase) for line in _missed(group)]


def _missed(group: Group) -> Iterator[str]:
    for name, bound in BOUNDS.items():
        value = abs(getattr(group, name))
        if value > bound:
            of = f"(worst row: {group.worst_id})"
            yield f"{group.name}: {name} error {100 * value:.3f} % is above {100 * bound:g} % {of}"


def accuracy(paths: Sequence[str | Path] = ()) -> Accuracy:
    """Hold estimates against truth files, or folders of them; against memplan's own where none is named.

    Raises UsageError that names the file and the row for a file that is broken."""
    return errors_of(read_sets(paths))


def errors_of(sets: Sequence[TruthSet]) -> Accuracy:
    """Estimate every row of these sets."""
    counts: list[SetCount] = []
    figures: list[Figure] = []
    refusals: list[Refusal] = []
    for each in sets:
        before = len(refusals)
        for row in each.rows:
            found = _estimate(each, row)
            if isinstance(found, Refusal):
                refusals.append(found)
            else:
                figures += _figures(each, row, found)
        refused, rows = len(refusals) - before, len(each.rows)
        counts.append(SetCount(each.name, each.kind, each.source, rows, rows - refused, refused))
    return Accuracy(
        tuple(counts), tuple(_groupings(figures)), tuple(_by_reason(refusals)), tuple(figures), tuple(refusals)
    )


def _estimate(of: TruthSet, row: TruthRow) -> Report | Refusal:
    one_gpu = row.job.get("num_gpus", 1) == 1
    if row.unusable:
        return Refusal(of.name, of.kind, row.id, row.unusable, one_gpu)
    try:
        tells_segments = row.meters.keys() > {"allocated"} or "allocated" not in row.meters
        return build_report(resolve(read_job(row.job)), None if tells_segments else False)
    except InternalError:
        raise
    except MemplanError as error:
        reason = "".join(char if char.isprintable() else "?" for char in " ".join(error.message.split()))
        return Refusal(of.name, of.kind, row.id, reason, one_gpu)


def _figures(of: TruthSet, row: TruthRow, report: Report) -> Iterator[Figure]:
    """The peak on each meter that the row tells, then its phases."""
    if report.engine is not None and report.recipe is not None and report.recipe.method.generates:
        yield from _of_engine(of, row, report, report.engine)
        return
    sharding = str(report.job["sharding"]) if report.ranks[0].count > 1 else ONE_GPU
    facts = (of.name, of.kind, row.id, report.model.family, str(report.job["method"]), sharding)
    more = (str(report.job["trainer"]), row.quality)
    for meter, measured in row.meters.items():
        low, expected, high = _on_meter(report, meter, row.first_rank)
        yield Figure(*facts, meter, PEAK, measured, expected, low, high, *more)
    for phase, measured in row.phases.items():
        size = report.per_gpu.phases[phase]
        yield Figure(*facts, "allocated", phase, measured, size, size, size, *more)


def _of_engine(of: TruthSet, row: TruthRow, report: Report, engine: Engine) -> Iterator[Figure]:
    """What an engine alone said of itself, a meter each: one that died must not fit, one that started may start."""
    fits = report.verdict is not None and report.verdict.fits == "yes"
    found = {
        "weights": engine.weights_bytes,
        "fall of free memory": engine.weights_bytes,
        "bytes of a token": engine.kv_bytes_per_token,
        "tokens of the cache": engine.kv_tokens,
        "cache": engine.kv_bytes,
        "asleep": engine.asleep_bytes,
        "device": engine.awake_bytes,
        STARTS: 1 if fits or (row.meters.get(STARTS) == 1 and (engine.starts or engine.may_start)) else 2,
    }
    where = f"{engine.name} {engine.version}"
    facts = (of.name, of.kind, row.id, report.model.family, str(report.job["method"]), where)
    for meter, measured in row.meters.items():
        low, _, high = _on_meter(report, meter) if meter == "device" else (found[meter],) * 3
        rounded = row.rounding if meter in ROUNDED else 0
        yield Figure(*facts, meter, ENGINE, measured, found[meter], low, high, engine.name, row.quality, rounded)


def _on_meter(report: Report, meter: str, first_rank: bool = False) -> tuple[int, int, int]:
    """The lowest, expected and highest figure; allocated: of the rank that allocates most."""
    per_gpu = report.per_gpu
    if meter == "allocated":
        found = per_gpu.allocated_range
        more = max(each.allocated_bytes for each in report.ranks) - per_gpu.allocated_bytes
        return found.low + more, per_gpu.allocated_bytes + more, found.high + more
    band = per_gpu.reserved_bytes if meter == "reserved" else per_gpu.device_bytes
    return band.low, band.expected - (per_gpu.reserved_bytes.first_rank_less if first_rank else 0), band.high


def _groupings(figures: Sequence[Figure]) -> Iterator[Grouping]:
    """The tables: each holds every figure of its kind once."""
    peaks = [figure for figure in figures if figure.phase == PEAK]
    allocated, allocated_peaks = ([each for each in of if each.meter == "allocated"] for of in (figures, peaks))
    yield _grouping("set", "allocated, peak", allocated_peaks, lambda figure: figure.set)
    yield _grouping("meter", "peak", peaks, lambda figure: f"{figure.meter}, {figure.kind}")
    graded = [figure for figure in peaks if figure.quality]
    yield _grouping("quality", "peak, published", graded, lambda figure: f"{figure.quality}, {figure.meter}")
    yield _grouping("family", "allocated, peak", allocated_peaks, lambda figure: figure.family)
    yield _grouping("method", "allocated, peak", allocated_peaks, lambda figure: figure.method)
    yield _grouping("trainer", "allocated, peak", allocated_peaks, lambda figure: figure.trainer)
    yield _grouping("sharding", "allocated, peak", allocated_peaks, lambda figure: figure.sharding)
    alone, sharded = ([each for each in allocated if (each.sharding == ONE_GPU) == one] for one in (True, False))
    engines = [figure for figure in figures if figure.phase == ENGINE]
    yield _grouping("engine", "alone", engines, lambda figure: figure.meter)
    yield _grouping("phase", f"allocated, {ONE_GPU}", alone, lambda figure: figure.phase)
    yield _grouping("phase", "allocated, sharded", sharded, lambda figure: figure.phase)


def _grouping(by: str, of: str, figures: Sequence[Figure], key: Callable[[Figure], str]) -> Grouping:
    return Grouping(by, of, tuple(groups_of(figures, key)))


def groups_of(figures: Sequence[Figure], key: Callable[[Figure], str]) -> Iterator[Group]:
    """A group for each value of ``key``, in the order of first appearance."""
    members: dict[str, list[Figure]] = {}
    for figure in figures:
        members.setdefault(key(figure), []).append(figure)
    return (summarise(name, found) for name, found in members.items())


def summarise(name: str, figures: Iterable[Figure]) -> Group:
    """Median, 95th percentile and worst of the errors of some figures."""
    ordered = sorted(figures, key=lambda figure: abs(figure.error))
    sizes = [abs(figure.error) for figure in ordered]
    p95, worst = sizes[-(-95 * len(sizes) // 100) - 1], ordered[-1]
    inside = sum(figure.inside for figure in ordered)
    return Group(name, len(sizes), statistics.median(sizes), p95, worst.error, worst.id, inside)


def _by_reason(refusals: Sequence[Refusal]) -> Iterator[ReasonCount]:
    """A count for each set and reason, the most frequent first."""
    first = {(each.set, each.reason): each.id for each in reversed(refusals)}
    for (of, reason), rows in Counter((each.set, each.reason) for each in refusals).most_common():
        yield ReasonCount(of, reason, rows, first[of, reason])
