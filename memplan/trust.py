"""How sure an estimate is: the errors of estimates for measured rows of its kind, and the measured row nearest to it.

A kind is method, trainer and sharding. Where nobody measured one, the rows that share the most of it stand for it, and
that is said. Rows are estimated when this is asked, so the errors are those of this version."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from memplan.accuracy import ENGINE, ONE_GPU, PEAK, Figure, Group, errors_of, groups_of
from memplan.errors import MemplanError
from memplan.models import load_model
from memplan.report import Report, plain
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.reading import read_job
from memplan.truth import TruthRow, TruthSet, read_sets

MOST = 16
"""Rows that are estimated: the nearest of a kind."""
KIND = ("method", "trainer", "sharding")
LEVELS: tuple[tuple[str, ...], ...] = (
    KIND,
    ("trainer", "sharding"),
    ("method", "sharding"),
    ("sharding",),
    ("method",),
    (),
)
"""What rows have to share with the job, most first."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The measured row that is most like the job."""

    id: str
    kind: str
    """traced, measured or published."""
    source: str
    meter: str
    measured_bytes: int
    estimated_bytes: int
    error: float
    differs: tuple[str, ...]
    """What of it is not as in the job, in words."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Rows like the job, measured in one way."""

    traced: bool
    """Counted tensor by tensor without a card; else measured on one."""
    shared: tuple[str, ...]
    """What of the kind they share."""
    rows: int
    groups: tuple[Group, ...]
    """Errors by meter, of the nearest of them."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How far estimates are from what was measured of jobs like this one."""

    kind: dict[str, str]
    """Method, trainer and sharding of the job."""
    alike: tuple[Alike, ...]
    nearest: Nearest | None
    """Of those measured on a card, where there are any."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON."""
        return {name: plain(getattr(self, name)) for name in self.__slots__}


def trust(report: Report, sets: Sequence[TruthSet] | None = None) -> Trust:
    """Hold the job against measured rows: memplan's own, or those of ``sets``."""
    job, params, kind = report.job, report.model.params.total, _kind(report.job)
    rows = [row for row in _rows(read_sets() if sets is None else sets) if _shares(row, kind, ())]
    alike, nearest = [], None
    for traced in (False, True):
        of = [row for row in rows if (row.of.kind == "traced") == traced]
        shared = next((level for level in LEVELS if any(_shares(row, kind, level) for row in of)), None)
        if shared is None:
            continue
        near = sorted((row for row in of if _shares(row, kind, shared)), key=lambda row: _distance(row, job, params))
        figures = [(row, _peaks(row)) for row in near[:MOST]]
        groups = groups_of([figure for _, found in figures for figure in found], lambda figure: figure.meter)
        alike.append(Alike(traced, shared, len(near), tuple(groups)))
        sized = ((row, [figure for figure in found if figure.meter in BYTES]) for row, found in figures)
        first = next(((row, found) for row, found in sized if found), None)
        nearest = nearest or (_nearest(*first, job, params) if first else None)
    return Trust(kind, tuple(alike), nearest)


@dataclass(frozen=True, slots=True)
class Row:
    """A measured row with its job."""

    of: TruthSet
    truth: TruthRow
    job: Job
    kind: Mapping[str, str]


def _rows(sets: Sequence[TruthSet]) -> Iterator[Row]:
    for each in sets:
        for row in each.rows:
            try:
                job = None if row.unusable else read_job(row.job).job
            except MemplanError:
                continue
            if job is not None:
                sharding = job.sharding or (f"zero{job.zero_stage}" if job.zero_stage is not None else "ddp")
                yield Row(each, row, job, _kind({**job.model_dump(), "sharding": sharding}))


def _shares(row: Row, kind: Mapping[str, str], keys: Sequence[str]) -> bool:
    return row.kind.keys() == kind.keys() and all(row.kind[key] == kind[key] for key in keys if key in kind)


TELLING: dict[str, Callable[[Any], object]] = {
    "lora": bool,
    "quantization": lambda value: value or "none",
    "gradient_checkpointing": lambda value: value or "none",
    "optimizer": lambda value: value or "adamw",
}
"""What else makes a job another, as it counts here."""


def _size(job: Job) -> int:
    """Parameters of a row's model; 0 where they are not to be had."""
    try:
        return int(job.total_params or 0) or _loaded(job).params.total
    except MemplanError:
        return 0


def _loaded(job: Job) -> ModelSpec:
    return load_model(job.model, job.revision)  # type: ignore[arg-type]


def _distance(row: Row, job: Mapping[str, Any], params: int) -> tuple[int, float]:
    """How many telling keys differ, then octaves of parameters and tokens."""
    size = _size(row.job)
    octaves = abs(log2(size / params)) if size and params else 10.0
    return len(list(_keys(row, job))), octaves + abs(log2(_tokens(row.job.model_dump()) / _tokens(job)))


def _keys(row: Row, job: Mapping[str, Any]) -> Iterator[str]:
    own = row.job.model_dump()
    return (key for key, told in TELLING.items() if told(own.get(key)) != told(job.get(key)))


def _tokens(job: Mapping[str, Any]) -> int:
    return max(1, int(job.get("token_budget") or (job.get("batch_size") or 1) * (job.get("sequence_length") or 1)))


def _peaks(row: Row) -> list[Figure]:
    """The figures of the row's peak on each meter, by this version's estimate; none where it is refused."""
    one = TruthSet(row.of.name, row.of.kind, row.of.source, (row.truth,))
    return [figure for figure in errors_of([one]).figures if figure.phase in (PEAK, ENGINE)]


BYTES = ("device", "reserved", "allocated", "weights")
"""What a row is told by, the nearest to what a card shows first."""


def _nearest(row: Row, figures: Sequence[Figure], job: Mapping[str, Any], params: int) -> Nearest:
    """The row by the figure of the meter that is nearest to what a card shows."""
    last = min(figures, key=lambda figure: BYTES.index(figure.meter))
    size, tokens = _size(row.job), _tokens(row.job.model_dump())
    other = [f"{key} {row.kind[key]}" for key, value in _kind(job).items() if row.kind[key] != value]
    differs = [*other, *(key.replace("_", " ") for key in _keys(row, job))]
    if size and abs(log2(size / params)) > 0.5:
        differs.append(f"{size / 1e9:.2g} B parameters")
    if "trainer" in row.kind and abs(log2(tokens / _tokens(job))) > 0.5:
        differs.append(f"{tokens:,} tokens a micro-step")
    source = row.truth.source or row.of.source
    return Nearest(
        row.truth.id,
        row.of.kind,
        source,
        last.meter,
        last.measured_bytes,
        last.estimated_bytes,
        last.error,
        tuple(differs),
    )


def _kind(job: Mapping[str, Any]) -> dict[str, str]:
    """Of a job as it was resolved; of an engine alone there is the method only."""
    if job["method"] == "generate":
        return {"method": "generate"}
    sharding = str(job["sharding"]) if job["num_gpus"] > 1 else ONE_GPU
    return {"method": str(job["method"]), "trainer": str(job["trainer"]), "sharding": sharding}
