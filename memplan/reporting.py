"""Ledger -> Report: the peak, the three meters, the verdict."""

from dataclasses import replace
from typing import NamedTuple

from memplan.engine.allocator.reserved import Band, Play, Seek
from memplan.engine.ledger import Ledger
from memplan.engine.ranks import trained_elements
from memplan.engine.sums import Totalled
from memplan.generated import Engine, Host, as_engine
from memplan.meters import Totals, judge
from memplan.moments import LedgerRows, engine_row, first_crossing, moments_of, most_of
from memplan.priced import Priced, by_bound, never, played, price
from memplan.report import (
    SCHEMA_VERSION,
    Bytes,
    Crossing,
    Found,
    Group,
    Instant,
    Model,
    Parameters,
    PerGpu,
    Range,
    Rank,
    Report,
    Verdict,
)
from memplan.rollout.together import asleep_in, engine_of, most, processes_at, shown
from memplan.spec.recipe import Recipe
from memplan.tables.generation import PROCESS_MOST, RAY_KILLS


def _verdict(priced: list[Priced], recipe: Recipe, host: Host) -> Verdict | None:
    """On every card, whichever class expects or may need the most; no where the node's memory is short or the engine
    does not start; unknown for another job."""
    if recipe.hardware.gpu is None:
        return None
    fullest, needed = priced[0], most(each.to_fit for each in priced)
    verdict, alone = judge(needed, recipe.hardware.gpu, recipe.hardware.margin), _alone(recipe)
    refused = fullest.why_not or (alone is not None and not alone.starts)
    known = "no" if host.fits is False or refused else verdict.fits
    found = fullest.joint.start.figures if fullest.joint is not None else alone
    if known == "no" and verdict.fits != "no" and host.fits is not False and found is not None and found.may_start:
        known = "tight"
    known = "tight" if known == "yes" and (host.crowded or (found is not None and found.may_fail)) else known
    said = recipe.provenance
    doubt = bool(said.unclear or (known == "no" and said.bounded))
    of = recipe.generator
    if doubt and known == "no" and said.trains_alone and of is not None and of.engine != "hf":
        from memplan.engine.generation.figures import engine_figures

        empty = engine_figures(of, recipe.hardware.gpu)  # no training makes room for one that this card does not start
        doubt = empty.starts or empty.may_start
    return replace(verdict, fits="unclear" if doubt or fullest.refused else known)


def totals_of(recipe: Recipe) -> Totals:
    """The meters alone, of the class of ranks that needs the most; the device's of the step and every phase."""
    fullest = price(recipe, detailed=False)[0]
    return fullest.meters._replace(device=most_of(fullest.device, fullest.beside))


class Peak(NamedTuple):
    """The figures of a report, and nothing else of it: what a search compares."""

    allocated: Band
    reserved: Band
    device: Band
    phases: dict[str, int]
    """The most in forward, backward, step and the phases beside it, but the first step."""
    host: Host
    verdict: Verdict | None
    rank: str
    """The class of ranks that needs the most, whose figures these are."""


def peak(recipe: Recipe, search: bool = False, play: Seek | None = None) -> Peak:
    """What ``build_report`` says of a recipe without a play, to the byte, in about a tenth of a millisecond once jobs
    like it were asked for. Searches vary recipes by ``_replace``, or resolve each job anew. ``play``: what it says with
    one that seeks so much."""
    priced = price(recipe, detailed=False, search=search, leading=play is None)
    if play is not None:
        priced = played(priced, play)
    fullest, host = priced[0], host_of(priced, recipe)
    of = fullest.meters
    verdict = _verdict(priced, recipe, host)
    return Peak(of.allocated, of.reserved, fullest.device, fullest.phases, host, verdict, fullest.of.name)


def host_of(priced: list[Priced], recipe: Recipe) -> Host:
    """A node's own memory. Its GPUs hold the same stage, as ranks are laid out with the pipeline outermost."""
    processes, there = processes_of(recipe), recipe.hardware.cluster.host_memory
    joint, of = priced[0].joint, recipe.generator
    needed = max(_on_host(each.ledger) for each in priced) * processes
    phases = priced[0].beside.on_node(processes, asleep_in(joint))
    if joint is not None and (waiting := joint.host(processes)):
        phases["rollout"] = needed + waiting
    store = of.host_store if of is not None else 0
    there = int(RAY_KILLS * there) if there and store else there
    own = PROCESS_MOST * processes * (2 if of is not None and of.own_process else 1)
    return Host(needed, there, max(needed, *phases.values(), 0) <= there if there else None, phases, store, own)


def processes_of(recipe: Recipe) -> int:
    """Processes on one node: one for each of its GPUs."""
    return min(recipe.parallel.world, recipe.hardware.gpus_per_node)


def _on_host(ledger: Ledger | Totalled) -> int:
    """The most that one rank holds on the host at an instant, whichever meter sees it."""
    meters = [ledger.totals(meter, "host") for meter in ledger.meters("host")]
    return max(map(sum, zip(*meters, strict=True)), default=0)


def build_report(recipe: Recipe, play: Play = False) -> Report:
    """The report of one recipe, without remedies and cards, which a search adds.

    ``play``: the reserved meter from the simulated allocator; None: and what the job needs only where it is near the
    card's limit; "fits": and there only whether it fits; "unsure": as None, but none where it surely fits
    without, is unclear whatever it takes (``by_bound``), or never fits; False: from the band that searches take."""
    priced = price(recipe)
    bound = by_bound(priced) if play == "unsure" else []
    if bound:
        priced = bound
    elif play is not False and not (play == "unsure" and never(priced[0])):
        priced = played(priced, False if play == "unsure" else play or False)
    fullest, host = priced[0], host_of(priced, recipe)
    ledger, meters, where = fullest.ledger, fullest.meters, fullest.peak_instant
    assert isinstance(ledger, Ledger)
    instants = tuple(map(Instant, ledger.schedule, meters.totals))
    moments = Found(
        lambda: tuple(moments_of(ledger, fullest.of.recipe, processes_of(recipe), meters, asleep_in(fullest.joint)))
    )
    verdict, said, found = _verdict(priced, recipe, host), recipe.provenance, fullest.joint
    doubts = (
        said.unclear if verdict is None or verdict.fits == "unclear" else "",
        fullest.refused if verdict is not None else "",
        said.bounded if verdict is not None and verdict.fits == "unclear" else "",
    )
    per_gpu = PerGpu(
        rank=fullest.of.name,
        allocated_bytes=meters.allocated.expected,
        allocated_range=Range(meters.allocated.low, meters.allocated.high),
        peak_instant=where,
        instants=instants,
        phases=fullest.phases,
        reserved_bytes=meters.reserved_bytes,
        device_bytes=Bytes(*fullest.device),
        by_category=ledger.by_category(where),
        ledger=LedgerRows(ledger, fullest.of.recipe, engine_row(found.asleep, ledger.schedule) if found else ()),
        moments=moments,
        first_crossing=_crossing(fullest, instants),
        device_peak_instant=found.worst.name if found else where,
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        job=recipe.provenance.job,
        sources=dict.fromkeys(recipe.provenance.job, "default") | recipe.provenance.sources,
        origins=_origins(recipe),
        model=_model(recipe),
        per_gpu=per_gpu,
        ranks=tuple(_rank(each) for each in priced),
        host=host,
        verdict=verdict,
        engine=_alone(recipe) or engine_of(found),
        processes=processes_at(found.worst) if found else (),
        rollout=shown(found),
        assumptions=recipe.provenance.assumptions,
        warnings=recipe.provenance.warnings,
        unclear="; ".join(filter(None, doubts)),
        recipe=recipe,
    )


def _alone(recipe: Recipe) -> Engine | None:
    """The engine of a job that trains nothing."""
    of, gpu = recipe.generator, recipe.hardware.gpu
    if not recipe.method.generates or of is None or gpu is None:
        return None
    from memplan.engine.generation.figures import engine_figures

    return as_engine(of, engine_figures(of, gpu))


def _crossing(priced: Priced, instants: tuple[Instant, ...]) -> Crossing | None:
    """Where the job dies: in the step of all processes, or else of the trainer alone."""
    gpu, found = priced.of.recipe.hardware.gpu, priced.joint
    assert isinstance(priced.ledger, Ledger)
    alone = first_crossing(priced.ledger, instants, priced.meters, priced.beside, priced.of.recipe)
    if found is None or gpu is None or (alone is not None and alone.phase in ("load", "resume")):
        return alone
    here = found.crossing(gpu.usable_bytes)
    return here or (alone if alone is not None and alone.phase in ("save", "merge") else None)


def _origins(recipe: Recipe) -> dict[str, str]:
    """Where values came from, in words; what the trainer's row gives without a word of its own is its default."""
    version = recipe.provenance.job.get("trainer_version")
    own = f"{recipe.trainer.title}{f' {version}' if version else ''}'s default"
    given = {key: own for key, source in recipe.provenance.sources.items() if source == "trainer"}
    return given | dict(recipe.provenance.origins)


def _rank(priced: Priced) -> Rank:
    return Rank(
        priced.of.name, priced.of.gpus, priced.meters.allocated.expected, priced.peak_instant, Bytes(*priced.device)
    )


def _model(recipe: Recipe) -> Model:
    spec = recipe.model
    params = Parameters(spec.params.total, trained_elements(recipe), spec.params.active, spec.params.by_category)
    groups = tuple(Group(run.count, run.layer.parameters, run.layer.by_category) for run in spec.runs)
    return Model(spec.name, spec.family, params, groups)
