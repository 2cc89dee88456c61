"""Many ways to run one job: the strategies of a file, priced and ranked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memplan.comparison.pricing import Case, priced_cases, ranked, said
from memplan.comparison.recommend import of_strategies
from memplan.comparison.result import Comparison
from memplan.errors import InvalidJob
from memplan.report import SCHEMA_VERSION
from memplan.resolve import resolve_training
from memplan.spec.job import Job
from memplan.spec.reading import JobInput, with_changes
from memplan.strategies import Strategy, load_strategies
from memplan.tables.choices import ALIASES

ALL = ("all",)
"""In place of names: every row of ``more``."""


def compare_strategies(given: JobInput, path: Path | None = None, add: Sequence[str] = ()) -> Comparison:
    """Price every strategy of a file on the job, and of its ``more`` those that ``add`` names; what cannot be is listed
    with its reason. Raises InvalidJob where the first, the baseline, cannot be.
    """
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
    """The job's values with the defaults of its trainer; its own where it cannot be as it is, and a strategy may mend
    that."""
    try:
        return resolve_training(given).provenance.job
    except InvalidJob:
        return given.job.model_dump()


def _case(given: JobInput, strategy: Strategy, base: dict[str, Any]) -> Case:
    changes = strategy.changes(base)
    over = {"sharding": None, "zero_stage": None} if {"sharding", "zero_stage"} & set(changes) else {}
    return Case(strategy.name, strategy.title, changes, with_changes(given, {**over, **changes}))
