"""The library for the world: from a job to its report, with what a search adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.errors import InvalidJob, UsageError
from memplan.generated import Share
from memplan.lengths.collators import longest_assumed
from memplan.lengths.longest import at_longest, with_lengths
from memplan.models import load_model
from memplan.remedies import cards, from_sft, remedies
from memplan.report import Found, Report
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.reading import JobInput, read_job
from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.comparison import Comparison
    from memplan.planner import Plans

__all__ = ["compare", "estimate", "load_model", "plan"]


def as_input(job: object) -> JobInput:
    """A job in any of its forms, with the keys that were given. Raises InvalidJob for anything else."""
    if isinstance(job, JobInput):
        return job
    if isinstance(job, Job):
        return JobInput(job, dict.fromkeys(job.model_fields_set, "option"))
    if not isinstance(job, Mapping):
        raise InvalidJob(f"a job is a mapping of keys, not {type(job).__name__}", 'write {"model": "llama-3.1-8b"}')
    return read_job(job)


def estimate(
    job: Job | Mapping[str, Any] | JobInput, spec: ModelSpec | None = None, play: bool | None = None
) -> Report:
    """What the job will use on each GPU, where it peaks and why, whether it fits, and what to change.

    ``spec``: its model, where it is described already (``memplan.trace.exact.exact_model(…).spec``). ``play``: whether
    the step is played through the simulated allocator for the reserved meter; None: and what it needs there is looked
    for only near the card's limit.

    Raises memplan.errors.InvalidJob for an impossible job, ModelError for a model not obtainable or not known."""
    given = at_longest(as_input(job) if spec is None else as_input(job)._replace(spec=spec))
    recipe = resolve(given)
    report = build_report(recipe, play)
    if recipe.method.generates:
        return report
    report = with_lengths(given, report, run=True)
    return replace(
        report,
        assumptions=(*report.assumptions, *longest_assumed(given, recipe)),
        remedies=Found(lambda: remedies(given, report)),
        cards=Found(lambda: cards(given, report)),
        from_sft=Found(lambda: from_sft(given, report)),
        shares=Found(lambda: _shares(recipe)),
    )


def _shares(recipe: Recipe) -> tuple[Share, ...]:
    """Shares that the engine of the job could have."""
    if recipe.generator is None or recipe.hardware.gpu is None:
        return ()
    from memplan.planner.shares import shares

    return shares(recipe)


def compare(
    job: Job | Mapping[str, Any] | JobInput | Sequence[Job | Mapping[str, Any] | JobInput],
    strategies: str | Path | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    add: Sequence[str] = (),
) -> Comparison:
    """Jobs side by side, least memory first.

    One job alone: under several strategies, memplan's seven or those of a YAML file, and with ``add`` those asked for
    by name: lora, qlora, fused-loss, fsdp2, 8bit-states, split-pairs, or all. Several jobs, or keys of a job in
    ``vary`` with the values of each (dotted keys for those inside another): every job at every point of the grid. The
    first is the baseline. Raises InvalidJob or ModelError as ``estimate`` does."""
    from memplan.comparison import axis, cases_of, compare_cases, compare_strategies

    if vary is not None and not isinstance(vary, Mapping):
        raise UsageError(f"vary is keys with their values, not {type(vary).__name__}", 'write {"batch_size": [1, 2]}')
    if strategies is not None and not isinstance(strategies, (str, Path)):
        raise UsageError(
            f"strategies is the path of a file, not {type(strategies).__name__}", "leave it out, or name one"
        )
    if isinstance(job, (Job, Mapping, JobInput)) or not isinstance(job, (list, tuple)):
        given = as_input(job)
        if vary is None:
            return compare_strategies(given, Path(strategies) if strategies else None, _names("add", add))
        jobs = [(str(given.job.model or "job"), given)]
    else:
        jobs = [(f"job {number}", as_input(each)) for number, each in enumerate(job, start=1)]
    if not jobs or strategies is not None or add:
        raise UsageError("strategies apply to one job, with nothing varied", "give one job, or leave strategies out")
    return compare_cases(cases_of(jobs, [axis(key, values) for key, values in (vary or {}).items()]))


def plan(
    job: Job | Mapping[str, Any] | JobInput,
    allow: Sequence[str] = (),
    pareto: bool = False,
    ask: Sequence[str] = (),
    budget: str | None = None,
) -> Plans:
    """The fastest ways to run the job that fit, ranked; what is given of the job is kept, the rest is searched.

    ``allow``: changes to the training that may be made where nothing fits without: lora, qlora, 8bit, offload, shorter.
    ``ask``: min_gpus, smallest_card, batch_size, sequence_length, model. ``budget``: 70GiB, or allocated:60GiB; the job
    stays as it is, but for what is kept, made again or sent to the host, so that its peak stays within."""
    from memplan.planner import plan as search
    from memplan.planner.budget import read_budget, within

    if budget is not None:
        if allow or pareto or ask:
            raise UsageError("a budget is of one job as it is", "leave allow, pareto and ask out, or budget")
        return within(as_input(job), *read_budget(budget))

    return search(as_input(job), _names("allow", allow), front=pareto, ask=_names("ask", ask))


def _names(what: str, names: object) -> Sequence[str]:
    """Several names; one alone is a list of one. Raises UsageError for anything else."""
    found = (names,) if isinstance(names, str) else names
    if not isinstance(found, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in found):
        raise UsageError(f"{what} is a list of names, not {type(names).__name__}", f'write {what}=["…"]')
    return tuple(found)
