"""Cases -> rows: reports, savings and relative speeds against the first, least memory first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memplan.comparison.recommend import fastest_that_fits, of_strategies
from memplan.comparison.result import CompareRow, Comparison, Difference, Impossible, JobChange, Move
from memplan.cost import card, speed
from memplan.engine.allocator.reserved import Seek
from memplan.errors import InvalidJob
from memplan.lengths.longest import at_longest, with_lengths
from memplan.report import SCHEMA_VERSION, PerGpu, Report
from memplan.reporting import build_report
from memplan.resolve import resolve_training
from memplan.spec.job import Job
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe
from memplan.strategies import Strategy, load_strategies
from memplan.tables.choices import ALIASES

MOST_PLAYED = 16
"""Rows: a play takes up to a tenth of a second."""
BY_COST, BY_PASSES = "cost model", "passes"


class Case(NamedTuple):
    """A job to compare, and what it is called."""

    name: str
    title: str
    changes: dict[str, Any]
    given: JobInput


def compare_cases(cases: Sequence[Case]) -> Comparison:
    """Price every case; the first that can be is the baseline. A combination that cannot be is listed with its reason.

    Raises InvalidJob where none can be, ModelError for a model that is not obtainable or not known."""
    priced, impossible = priced_cases(cases, any_first=True)
    rows, speed_from, assumptions = ranked(priced)
    baseline = priced[0][0].name
    trained = {(row.report.model.name, row.report.job["method"]) for row in rows}  # of several none is better, faster
    return Comparison(
        SCHEMA_VERSION,
        baseline,
        rows,
        said(rows, [fastest_that_fits(rows)] if len(trained) == 1 else []),
        tuple(assumptions),
        speed_from,
        tuple(impossible),
        difference(*sorted(rows, key=lambda row: row.name != baseline)) if len(rows) == 2 else None,
        "jobs",
    )


def priced_cases(cases: Sequence[Case], any_first: bool = False) -> tuple[list[tuple[Case, Report]], list[Impossible]]:
    """The report of every case that can be, the baseline before all; and the others with why they cannot.
    ``any_first``: the baseline is the first that can be. Raises InvalidJob where there is none."""
    priced: list[tuple[Case, Report]] = []
    refused: list[tuple[Case, InvalidJob]] = []
    for case in cases:
        found = _priced(case, played(len(cases)))
        if isinstance(found, Report):
            priced.append((case, found))
            continue
        refused.append((case, found))
        if case is cases[0] and not any_first:
            break
    if not priced:
        raise _of_baseline(*refused[0], len(cases))
    return priced, [Impossible(case.name, case.title, case.changes, no.message, no.hint) for case, no in refused]


def _priced(case: Case, play: Seek) -> Report | InvalidJob:
    try:
        given = at_longest(case.given)
        report = build_report(resolve_training(given), play)
        return with_lengths(given, report) if play else report
    except InvalidJob as error:
        return error


def played(rows: int) -> Seek:
    """How the reports of so many rows are made: their steps played, or, of very many, by the band of searches."""
    return "fits" if rows <= MOST_PLAYED else False


def _of_baseline(case: Case, error: InvalidJob, cases: int) -> InvalidJob:
    if cases == 1:
        return error
    said = InvalidJob(f"the baseline, {case.title}: {error.message}", error.hint, error.changes)
    said.given = error.given
    return said


def ranked(priced: Sequence[tuple[Case, Report]]) -> tuple[tuple[CompareRow, ...], str, list[str]]:
    """Rows, least memory first; what the relative speeds are from; and what that assumes."""
    recipes = [report.recipe for _, report in priced if report.recipe is not None]
    speeds, speed_from, assumptions = speeds_of(recipes)
    before = priced[0][1].per_gpu.allocated_bytes
    rows = [
        CompareRow(
            case.name,
            case.title,
            case.changes,
            report,
            1 - report.per_gpu.allocated_bytes / before,
            report.verdict.fits if report.verdict else None,
            round(rate / speeds[0], 3),
            round(rate, 1) if speed_from == BY_COST else None,
        )
        for (case, report), rate in zip(priced, speeds, strict=True)
    ]
    rows.sort(key=lambda row: row.report.per_gpu.allocated_bytes)
    return tuple(rows), speed_from, assumptions


def speeds_of(recipes: Sequence[Recipe]) -> tuple[list[float], str, list[str]]:
    """Tokens per second by the cost model where each names a card; else in proportion to it, from passes alone."""
    cards = [recipe.hardware.gpu for recipe in recipes if recipe.hardware.gpu is not None]
    if len(cards) == len(recipes):
        assumed = dict.fromkeys(card(gpu).assumed for gpu in cards)
        return [speed(recipe).tokens_per_second for recipe in recipes], BY_COST, [text for text in assumed if text]
    return [1 / (_passes(recipe) * recipe.model.params.active) for recipe in recipes], BY_PASSES, []


def _passes(recipe: Recipe) -> float:
    """Passes over the model per trained token, a backward counting as two: checkpointing repeats the forward."""
    extra = {"split": 0.5, "gradcache": 1.0}.get(recipe.loss.pair_pass, 0.0) if recipe.method.pairs else 0.0
    reference = 1.0 if recipe.others.reference in ("resident", "adapter") else 0.0
    return 3 + (1 if recipe.checkpointing.layers else 0) + extra + reference


def said(rows: Sequence[CompareRow], lines: Iterable[str]) -> str:
    """What makes rows unclear, then these lines."""
    doubts = dict.fromkeys(row.report.unclear for row in rows if row.report.unclear)
    unclear = [f"Unclear: {text}; the figures are those without that." for text in doubts]
    return "\n".join(line for line in (*unclear, *lines) if line)


def difference(before: CompareRow, after: CompareRow) -> Difference:
    """What changed from one job to the other, and what that moved at the peaks."""
    holds = [at_peak(row.report.per_gpu) for row in (before, after)]
    moves = []
    unchanged = 0
    for key in dict.fromkeys((*holds[0], *holds[1])):
        first, second = (found.get(key, 0) for found in holds)
        if first == second:
            unchanged += first
        else:
            moves.append(Move(key[1], key[0], first, second))
    moves.sort(key=lambda move: (-abs(move.after - move.before), move.category, move.name))
    changes = tuple(job_changes(before.report, after.report))
    return Difference(before.name, after.name, changes, tuple(moves), unchanged)


def at_peak(per_gpu: PerGpu) -> dict[tuple[str, str], int]:
    """Allocated bytes of each row alive at the peak, by category and name; rows of one name are added up."""
    order = {instant.name: number for number, instant in enumerate(per_gpu.instants)}
    peak = order[per_gpu.peak_instant]
    held: dict[tuple[str, str], int] = {}
    for row in per_gpu.ledger:
        if row.place == "gpu" and row.meter == "allocated" and order[row.born] <= peak <= order[row.dies]:
            key = row.category, row.name
            held[key] = held.get(key, 0) + row.bytes
    return held


def job_changes(before: Report, after: Report) -> Iterator[JobChange]:
    """The resolved keys that differ; those that somebody gave first."""
    jobs = [dict(_leaves(report.job)) for report in (before, after)]
    found = []
    for key in dict.fromkeys((*jobs[0], *jobs[1])):
        values = [job.get(key) for job in jobs]
        if values[0] != values[1]:
            outer = key.split(".")[0]
            given = any(report.sources.get(outer) in ("option", "file") for report in (before, after))
            found.append(JobChange(key, values[0], values[1], given))
    yield from sorted(found, key=lambda change: not change.given)


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """('lora.r', 16) of nested mappings. A model that is written out is one value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value and key != "model":
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


ALL = ("all",)
"""In place of names: every row of ``more``."""


def compare_strategies(given: JobInput, path: Path | None = None, add: Sequence[str] = ()) -> Comparison:
    """Price every strategy of a file on the job, and of its ``more`` those that ``add`` names; what cannot be is listed
    with its reason. Raises InvalidJob where the first, the baseline, cannot be."""
    file = load_strategies(path, [*Job.model_fields, *ALIASES])
    whole = tuple(add) == ALL
    base = _resolved(given)
    priced, impossible = priced_cases([_case(given, each, base) for each in file.chosen(None if whole else add)])
    rows, speed_from, assumptions = ranked(priced)
    baseline = next(row for row in rows if row.name == priced[0][0].name)
    if not given.sources.get("num_gpus") and given.job.cluster is None:
        gpus = baseline.report.job["num_gpus"]
        assumptions = [f"num_gpus: {gpus} (no number given: as estimate counts; --num-gpus says another)", *assumptions]
    lines = [] if baseline.report.unclear else of_strategies(rows, baseline, file, whole)
    return Comparison(
        SCHEMA_VERSION, baseline.name, rows, said(rows, lines), tuple(assumptions), speed_from, tuple(impossible)
    )


def _resolved(given: JobInput) -> dict[str, Any]:
    """The job's values with the defaults of its trainer; its own where it cannot be so, and a strategy may mend it."""
    try:
        return resolve_training(given).provenance.job
    except InvalidJob:
        return given.job.model_dump()


def _case(given: JobInput, strategy: Strategy, base: dict[str, Any]) -> Case:
    changes = strategy.changes(base)
    over = {"sharding": None, "zero_stage": None} if {"sharding", "zero_stage"} & set(changes) else {}
    return Case(strategy.name, strategy.title, changes, with_changes(given, {**over, **changes}))
