"""Many ways to run one job, side by side: the strategies of a file, priced and ranked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplan.errors import InvalidJob, MemplanError
from memplan.remedies import changed
from memplan.report import SCHEMA_VERSION, Report, plain
from memplan.reporting import build_report
from memplan.spec.job import Job
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe
from memplan.strategies import Strategy, StrategyFile, load_strategies
from memplan.tables.choices import ALIASES

EXAMPLE_GPUS = 4
"""GPUs of the comparison where the job names none: the number in the strategies' original example."""


@dataclass(frozen=True, slots=True)
class CompareRow:
    """One strategy's report, and what it saves against the first."""

    name: str
    title: str
    changes: dict[str, Any]
    report: Report
    saving: float
    """Share of the first row's allocated peak that is saved."""
    fits: str | None
    relative_speed: float | None
    """Arithmetic only: passes over the model per token, against the first row's; communication is not counted."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Strategies, cheapest in memory first."""

    schema_version: int
    baseline: str
    rows: tuple[CompareRow, ...]
    recommendation: str
    assumptions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON, as plain dicts, lists, numbers and strings."""
        rows = [
            {**{k: plain(getattr(row, k)) for k in row.__slots__ if k != "report"}, "report": row.report.to_dict()}
            for row in self.rows
        ]
        return {
            "schema_version": self.schema_version,
            "baseline": self.baseline,
            "rows": rows,
            "recommendation": self.recommendation,
            "assumptions": list(self.assumptions),
        }


def compare_strategies(given: JobInput, path: Path | None = None) -> Comparison:
    """Price every strategy of a file on the job. Raises InvalidJob where a strategy cannot be applied to it."""
    strategies = load_strategies(path, [*Job.model_fields, *ALIASES])
    assumptions = []
    if not given.sources.get("num_gpus"):
        given = JobInput(
            given.job.model_copy(update={"num_gpus": EXAMPLE_GPUS}),
            given.sources | {"num_gpus": "default"},
            given.ignored,
            given.spec,
        )
        assumptions.append(f"num_gpus: {EXAMPLE_GPUS} (no number given: that of the strategies' original example)")
    base = given.job.model_dump()
    priced = [(strategy, _apply(given, strategy, base)) for strategy in strategies.strategies]
    first = priced[0][1]
    assert first.recipe is not None
    rows = [_row(strategy, report, first, base) for strategy, report in priced]
    rows.sort(key=lambda row: row.report.per_gpu.allocated_bytes)
    return Comparison(
        SCHEMA_VERSION,
        priced[0][0].name,
        tuple(rows),
        _recommendation(strategies, first.recipe, rows),
        tuple(assumptions),
    )


def _apply(given: JobInput, strategy: Strategy, base: dict[str, Any]) -> Report:
    changes = strategy.changes(base)
    if "sharding" in changes or "zero_stage" in changes:
        changes = {"sharding": None, "zero_stage": None, **changes}
    try:
        return build_report(changed(given, changes))
    except MemplanError as error:
        raise InvalidJob(f"strategy {strategy.name}: {error.message}", error.hint) from None


def _row(strategy: Strategy, report: Report, first: Report, base: dict[str, Any]) -> CompareRow:
    peak, before = report.per_gpu.allocated_bytes, first.per_gpu.allocated_bytes
    speed = None
    if report.recipe and first.recipe:
        speed = round(_passes(first.recipe) / _passes(report.recipe), 3)
    fits = report.verdict.fits if report.verdict else None
    return CompareRow(strategy.name, strategy.title, strategy.changes(base), report, 1 - peak / before, fits, speed)


def _passes(recipe: Recipe) -> float:
    """Passes over the model per trained token, a backward counting as two: checkpointing repeats the forward."""
    extra = {"split": 0.5, "gradcache": 1.0}.get(recipe.pair_pass, 0.0) if recipe.method.pairs else 0.0
    reference = 1.0 if recipe.reference in ("resident", "adapter") else 0.0
    return 3 + (1 if recipe.checkpointing else 0) + extra + reference


def _recommendation(strategies: StrategyFile, recipe: Recipe, rows: list[CompareRow]) -> str:
    """By class of card where one is named, else all classes in a line each."""
    if recipe.gpu is None:
        return "\n".join(f"{row.title}: {row.words}" for row in strategies.recommendations)
    found = strategies.recommendation(recipe.gpu.memory_bytes)
    fitting = [row for row in rows if row.fits == "yes"]
    best = max(fitting, key=lambda row: (row.relative_speed or 0, row.report.per_gpu.allocated_bytes), default=None)
    words = f"{found.title}: {found.words}" if found else ""
    choice = (
        f"Fastest of these that fits {recipe.gpu.title}: {best.title}."
        if best
        else f"None of these fits {recipe.gpu.title}."
    )
    return "\n".join(line for line in (choice, words) if line)
