"""Many ways to run one job: the strategies of a file, priced and ranked."""

from pathlib import Path
from typing import Any

from memplan.comparison.pricing import Case, fastest_that_fits, played, ranked, recommended
from memplan.comparison.result import Comparison
from memplan.engine.allocator.reserved import Seek
from memplan.errors import InvalidJob, MemplanError
from memplan.remedies import changed
from memplan.report import SCHEMA_VERSION, Report
from memplan.reporting import build_report
from memplan.spec.job import Job
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe
from memplan.strategies import Strategy, StrategyFile, load_strategies
from memplan.tables.choices import ALIASES

EXAMPLE_GPUS = 4
"""GPUs of the comparison where the job names none: the number in the strategies' original example."""


def compare_strategies(given: JobInput, path: Path | None = None) -> Comparison:
    """Price every strategy of a file on the job. Raises InvalidJob where a strategy cannot be applied to it."""
    strategies = load_strategies(path, [*Job.model_fields, *ALIASES])
    assumptions = []
    if not given.sources.get("num_gpus"):
        job = given.job.model_copy(update={"num_gpus": EXAMPLE_GPUS})
        given = given._replace(job=job, sources=given.sources | {"num_gpus": "default"})
        assumptions.append(f"num_gpus: {EXAMPLE_GPUS} (no number given: that of the strategies' original example)")
    base = given.job.model_dump()
    play = played(len(strategies.strategies))
    priced = [
        (Case(strategy.name, strategy.title, strategy.changes(base), given), _apply(given, strategy, base, play))
        for strategy in strategies.strategies
    ]
    first = priced[0][1].recipe
    assert first is not None
    rows, speed_from, more = ranked(priced)
    where = first.hardware.gpu.title if first.hardware.gpu else ""
    lines = [] if first.provenance.unclear else _recommendation(strategies, first, fastest_that_fits(rows, where))
    return Comparison(
        SCHEMA_VERSION, priced[0][0].name, rows, recommended(rows, *lines), (*assumptions, *more), speed_from
    )


def _apply(given: JobInput, strategy: Strategy, base: dict[str, Any], play: Seek) -> Report:
    changes = strategy.changes(base)
    if "sharding" in changes or "zero_stage" in changes:
        changes = {"sharding": None, "zero_stage": None, **changes}
    try:
        return build_report(changed(given, changes), play)
    except MemplanError as error:
        raise InvalidJob(f"strategy {strategy.name}: {error.message}", error.hint) from None


def _recommendation(strategies: StrategyFile, recipe: Recipe, choice: str) -> list[str]:
    """By class of card where one is named, else all classes in a line each."""
    if recipe.hardware.gpu is None:
        return [f"{row.title}: {row.words}" for row in strategies.recommendations]
    found = strategies.recommendation(recipe.hardware.gpu.memory_bytes)
    return [choice, f"{found.title}: {found.words}" if found else ""]
