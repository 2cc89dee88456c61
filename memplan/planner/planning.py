"""From a job to its plans: the space, the search, and what is said of it.

The examples of an optimizer step that plans share, and when there are more than anybody trains on."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from memplan.calibrations import calibrated
from memplan.cost import card, speed
from memplan.cost.rates import Device
from memplan.errors import InvalidJob, UsageError
from memplan.generic import generic_model
from memplan.gpus import find_gpu
from memplan.lengths.longest import with_lengths
from memplan.models import load_model
from memplan.planner.candidates import Candidate, Candidates, allowed_of
from memplan.planner.freed import with_half_base, without_critics_batch, without_settings
from memplan.planner.generating import bounded, usual_trainers
from memplan.planner.pricing import Priced, Pricing
from memplan.planner.result import Instead, Plan, Point, billed
from memplan.planner.search import Found, best, front
from memplan.planner.space import BATCH, CHOSEN, Space
from memplan.planner.splits import candidates
from memplan.planner.words import of_switches, plan_name
from memplan.report import Report
from memplan.reporting import build_report, peak
from memplan.resolve import resolve
from memplan.resolve.clusters import with_cluster
from memplan.resolve.notes import Notes
from memplan.resolve.packing import sequences_of
from memplan.spec.gpu import Gpu
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.reading import JobInput, build_job, understood
from memplan.tables.methods import METHODS
from memplan.tables.trainers import find_trainer
from memplan.units import ceil_div, parse_count

GLOBAL_BATCH = 64
"""Examples of a silent job's step, or the next that all GPUs share: SimPO's recipe has 128, zephyr's DPO 64."""
LARGEST_BATCH = 15_360 * 4_096
"""Tokens of the largest global batch that is published: DeepSeek-V3's (arXiv:2412.19437, section 4.2)."""


def global_batch(given: JobInput, fixed: dict[str, Any], assumptions: list[str]) -> int:
    """The examples of a step: given, of a job file's own batch, or the default; 0 where both its factors are fixed."""
    job, sources = given.job, given.sources
    if job.token_budget is not None:
        rows = ceil_div(job.global_batch_size or GLOBAL_BATCH, sequences_of(job) * job.num_gpus) * job.num_gpus
        assumptions.append(f"token_budget: an optimizer step is counted as {rows} packed rows")
        fixed.setdefault("batch_size", 1)
        return rows
    if job.global_batch_size is not None:
        return job.global_batch_size
    if "batch_size" in fixed and "gradient_accumulation_steps" in fixed:
        return 0
    if "batch_size" in sources and "gradient_accumulation_steps" in sources and "num_gpus" in sources:
        ranks = job.num_gpus // (job.tensor_parallel * job.pipeline_parallel * job.context_parallel)
        return job.batch_size * job.gradient_accumulation_steps * max(ranks, 1)
    batch = ceil_div(GLOBAL_BATCH, job.num_gpus) * job.num_gpus
    why = (
        "none given" if batch == GLOBAL_BATCH else f"none given; {GLOBAL_BATCH} or more that {job.num_gpus} GPUs share"
    )
    assumptions.append(f"global_batch_size: {batch} ({why})")
    return batch


def too_large(tokens: int) -> list[str]:
    """A word where a batch is beyond all that is published, and more cards only make it larger."""
    if tokens <= LARGEST_BATCH:
        return []
    return [
        f"global_batch_size: {tokens / 1e6:,.0f} million tokens an optimizer step, more than any published run has "
        "(DeepSeek-V3's 63): tokens per second are no measure of training there; fewer GPUs may train as far"
    ]


WANTED = 5
AGAIN = 8
"""Searches for plans in place of those whose play does not fit; each plays at most as many as are wanted."""
Tell = Callable[[str, int, int], None]
"""Says what is being done, how far it is, and of how many; 0 where nobody knows."""


def nothing(text: str, done: int, whole: int) -> None:
    """Say nothing."""


class Question(NamedTuple):
    """A job ready to be planned."""

    given: JobInput
    fixed: dict[str, Any]
    gpu: Gpu
    device: Device
    space: Space
    assumptions: tuple[str, ...]


def question(given: JobInput) -> Question:
    """What is fixed and what is free. Raises UsageError where the job names no card, InvalidJob where it is unclear."""
    given = understood(given, "a plan")
    given, gone = without_settings(given, dict.fromkeys(k for k, s in given.sources.items() if s == "option"))
    given, own = without_critics_batch(given)
    given, loaded = with_half_base(given)
    job, _ = with_cluster(given.job, Notes(dict(given.sources)))
    if job.gpu is None:
        raise UsageError("a plan is for a card", "add --gpu, such as --gpu h100-80gb")
    if job.model is None and job.total_params is None:
        raise UsageError("a plan is for a model", "memplan plan llama-3.1-8b --gpu h100-80gb --num-gpus 8")
    gpu, _ = calibrated(find_gpu(job.gpu), job.calibration)
    device = card(gpu)
    fixed = {key: getattr(job, key) for key in CHOSEN if given.sources.get(key) == "option"}
    assumptions = [*([device.assumed] if device.assumed else []), *loaded]
    batch = global_batch(given, fixed, assumptions)
    freed = [*(key for key in CHOSEN if given.sources.get(key) == "file" and key not in BATCH), *gone, *own]
    if freed:
        assumptions.append(f"chosen anew, whatever the job file says: {', '.join(freed)} (--fix key=value keeps one)")
    trainer = find_trainer(job.trainer, job.trainer_version or "")
    assumptions += of_switches(job, trainer)
    if usual := usual_trainers(job, job.num_gpus):
        assumptions.append(f"trainer: {' or '.join(usual)}, which generate; --trainer pytorch plans the update alone")
    for name in usual or [job.trainer]:
        for key, value in bounded(job.model_copy(update={"trainer": name})).items():
            words = f"prompt and completion ({name} takes the model's whole context)"
            assumptions.append(f"rollout.{key}: {value}, {words}")
    spec = given.spec or _spec(job, assumptions)
    if job.precision == "auto" and job.lora is None:
        assumptions.append(
            "precision: fp32 weights, or fp32 master weights, in every plan; --fix precision=bf16 allows pure bf16"
        )
    assumptions += too_large(batch * (2 if METHODS[job.method].pairs else 1) * job.sequence_length)
    space = Space(job, fixed, spec, job.num_gpus, batch, job.gpus_per_node, gpu.vendor)
    given = given._replace(job=given.job.but(num_gpus=job.num_gpus))
    return Question(given, fixed, gpu, device, space, tuple(assumptions))


def _spec(job: Job, assumptions: list[str]) -> ModelSpec:
    """The model, or a shape of its size where nothing else is said of it."""
    if job.model is not None:
        return load_model(job.model, job.revision)
    assert job.total_params is not None
    spec = generic_model(parse_count(job.total_params))
    assumptions.append(
        "total_params: the shape is interpolated: speeds are that shape's, and a plan fits where it does at the high "
        "end of the range of real models of that size, which is wide"
    )
    return spec


class Searched(NamedTuple):
    """A search and what it went through."""

    of: Candidates
    found: Found[Candidate, Priced]
    pricing: Pricing
    reports: dict[int, Report]
    """Of its plans, by the ``id`` of the candidate."""


def pricing_of(asked: Question) -> Pricing:
    """Free choices are those that the user did not fix."""
    sources = asked.given.sources
    keys = {"allocator": "allocator", "views": "gradient_as_bucket_view", "flash": "attention", "gathered": "sync"}
    return Pricing([name for name, key in keys.items() if sources.get(key) != "option"])


def reported(asked: Question, each: Candidate, priced: Priced) -> tuple[Priced, Report | None]:
    """A plan as it is played, and its report; none where its play, or the report, does not fit."""
    played = priced.as_played()
    if not played.fits:
        return played, None
    recipe = resolve(job_input(asked, each, priced))
    figures = peak(recipe, play="yes")  # what it needs is looked for where it fits alone
    report = build_report(recipe, None) if figures.verdict is None or figures.verdict.fits == "yes" else None
    if report is not None and report.verdict is not None and report.verdict.fits != "yes":
        figures, report = figures._replace(verdict=report.verdict), None
    return played if report else played._replace(figures=figures), report


def search(
    asked: Question, wanted: int = WANTED, tell: Tell = nothing, of: Candidates | None = None, alone: bool = False
) -> Searched:
    """The best plans of a question. One whose play reaches more than the ledger, so that it may not fit, is none.
    ``of``: its candidates, where they are listed; ``alone``: of the same plans the first."""
    tell("finding plans", 0, 0)
    of, pricing = of or candidates(asked.given, asked.space, asked.device), pricing_of(asked)
    whole = len(of.legal)

    def found_among(plans: Sequence[Candidate], wanted: int) -> Found[Candidate, Priced]:
        return best(
            plans,
            pricing.lean,
            lambda priced: priced.fits,
            wanted,
            lambda done: tell("pricing plans", done, whole),
            pricing.misses_by,
            METHODS[asked.given.job.method].online,
        )

    found, doubted = found_among(of.legal, 1 if alone else wanted), list[tuple[Candidate, Priced]]()
    reports = dict[int, Report]()
    for again in reversed(range(AGAIN)):
        if len(found.plans) == wanted >= WANTED and all(each.recipe.trainer.megatron for each, _ in found.plans):
            # The fastest for those who do not run Megatron.
            others = found_among([each for each in of.legal if not each.recipe.trainer.megatron], 1)
            found.plans[wanted - len(others.plans) :] = others.plans
        found.plans = [(each, pricing(each)) for each, _ in found.plans]
        unsure = []
        for each, priced in found.plans:
            if id(each) not in reports:
                figures, report = reported(asked, each, priced)
                if report is None:
                    unsure.append((each, figures))
                else:
                    reports[id(each)] = report
            if alone and not unsure:
                break
        doubted += unsure
        if not unsure or not again:
            break
        without = {id(each) for each, _ in doubted}
        found = found_among([each for each in of.legal if id(each) not in without], wanted)
    found.plans = [pair for pair in found.plans if id(pair[0]) in reports][: 1 if alone else None]
    found.rejected += doubted
    return Searched(of, found, pricing, reports)


def pareto(asked: Question, of: Candidates, tell: Tell = nothing) -> Found[Candidate, Priced]:
    """The front of speed against memory."""
    whole, pricing = len(of.legal), pricing_of(asked)
    return front(
        of.legal,
        pricing,
        lambda priced: priced.fits,
        lambda priced: priced.bytes,
        lambda priced: tell("pricing plans for the front", priced, whole),
        (pricing.rests, pricing.starts),
        allowed_of(of.legal[0].recipe) if of.legal else 0,
    )


def job_input(asked: Question, candidate: Candidate, priced: Priced) -> JobInput:
    """The job of a plan, as a user would write it."""
    stay = {k: v for k, v in asked.given.job.model_dump(exclude_unset=True).items() if k not in CHOSEN}
    keys = {k: v for k, v in {**candidate.keys, **priced.keys}.items() if v is not None}
    for key, value in keys.items():
        stay[key] = {**stay.get(key, {}), **value} if isinstance(value, dict) else value
    sources = {k: s for k, s in asked.given.sources.items() if k not in CHOSEN}
    sources |= dict.fromkeys(keys, "option")
    return JobInput(build_job(stay), sources, asked.given.ignored, asked.space.spec)


def shown(asked: Question, of: Searched, training: tuple[str, ...], price: float | None) -> Iterator[Plan]:
    """The plans with their reports, their speed and, at a ``price`` of a GPU hour, their cost."""
    for each, priced in of.found.plans:
        report = with_lengths(job_input(asked, each, priced), of.reports[id(each)])
        assert report.recipe is not None
        name = plan_name({**each.keys, **priced.keys})
        found, peak = speed(report.recipe), report.per_gpu.peak_instant
        yield Plan(name, report.job, report, found, peak, training, *billed(found, asked.space.gpus, price))


def instead(of: Searched, training: tuple[str, ...], names: Sequence[str]) -> Instead:
    """The first plan of a search, as one beside others."""
    each, priced = of.found.plans[0]
    report = of.reports[id(each)]
    assert report.recipe is not None
    assert report.verdict is not None
    name, tokens = plan_name({**each.keys, **priced.keys}), speed(report.recipe).tokens_per_second
    return Instead(training, ",".join(names), name, report.job, tokens, report.verdict.high_bytes)


def point(candidate: Candidate, priced: Priced) -> Point:
    """A plan of the front."""
    recipe = candidate.recipe
    tokens = recipe.rows // recipe.batch.size * recipe.batch.sequence_length / candidate.seconds
    keys = {**candidate.keys, **priced.keys}
    return Point(plan_name(keys), keys, tokens, priced.bytes)


def check_legal(searched: Searched) -> None:
    """Raises InvalidJob where nothing can run at all, whatever the memory, with what is said most often."""
    of = searched.of
    if of.refused and not of.legal and not of.floored:
        counts = Counter[tuple[str, str]]()
        for each in of.refused:
            counts[each.reason, each.hint] += each.plans
        (reason, hint), _ = counts.most_common(1)[0]
        raise InvalidJob(reason, hint)
