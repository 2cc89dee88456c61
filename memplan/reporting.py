"""Ledger -> Report: the peak, the three meters, the verdict."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, overload

from memplan.engine.allocator.reserved import Band
from memplan.engine.ledger import Ledger, Row
from memplan.engine.rank_ledger import ledger_of, totals_of_rank
from memplan.engine.ranks import RankClass, rank_classes
from memplan.engine.step_and_evaluation import EVALUATION
from memplan.engine.tensors import count, model_weights
from memplan.engine.totals import Totalled
from memplan.meters import Totals, judge, measure, with_play
from memplan.report import (
    SCHEMA_VERSION,
    Bytes,
    Group,
    Host,
    Instant,
    LedgerRow,
    Model,
    Parameters,
    PerGpu,
    Range,
    Rank,
    Report,
    Verdict,
)
from memplan.spec.recipe import Recipe


def _verdict(of: Totals, recipe: Recipe, host: Host) -> Verdict | None:
    """On the card, and no wherever the node's own memory is short; of another job than the one that runs, nobody
    knows."""
    if recipe.hardware.gpu is None:
        return None
    verdict = judge(of.to_fit, recipe.hardware.gpu, recipe.hardware.margin)
    known = "no" if host.fits is False else verdict.fits
    return replace(verdict, fits="unclear" if recipe.provenance.unclear else known)


def phase_of(instant: str) -> str:
    """forward (with the loss, and scoring passes), backward, step or evaluation."""
    name, point = instant.split(".", 1)
    if name.startswith(EVALUATION):
        return EVALUATION
    if name == "step" or point == "optimizer":
        return "step"
    return "backward" if point.endswith(("backward", "reduce")) else "forward"


class Priced(NamedTuple):
    """A class of ranks, its ledger and its meters."""

    of: RankClass
    ledger: Ledger | Totalled
    meters: Totals

    @property
    def peak_instant(self) -> str:
        """The first instant with the largest expected figure."""
        return self.ledger.schedule[self.meters.totals.index(self.meters.allocated.expected)]

    @property
    def phases(self) -> dict[str, int]:
        """The most in forward, backward and step."""
        totals = self.meters.totals
        return {phase: max(totals[i] for i in at) for phase, at in _instants_of_phases(self.ledger.schedule)}


@lru_cache(maxsize=256)
def _instants_of_phases(schedule: tuple[str, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Positions of each phase's instants, phases in the order in which they first come."""
    phases: dict[str, list[int]] = {}
    for i, instant in enumerate(schedule):
        phases.setdefault(phase_of(instant), []).append(i)
    return tuple((phase, tuple(at)) for phase, at in phases.items())


def price(recipe: Recipe, detailed: bool = True, search: bool = False) -> list[Priced]:
    """Every class of ranks, the fullest card first (by the expected device figure); sums without rows where nobody
    needs details.
    """
    priced = []
    for of in rank_classes(recipe):
        ledger = ledger_of(of.recipe) if detailed else totals_of_rank(of.recipe)
        priced.append(Priced(of, ledger, measure(ledger, of.recipe, search)))
    return sorted(priced, key=lambda each: -each.meters.device.expected)


def totals_of(recipe: Recipe) -> Totals:
    """The meters alone, of the class of ranks that needs the most."""
    return price(recipe, detailed=False)[0].meters


class Peak(NamedTuple):
    """The figures of a report, and nothing else of it: what a search compares."""

    allocated: Band
    reserved: Band
    device: Band
    phases: dict[str, int]
    """The most in forward, backward and step."""
    host: Host
    verdict: Verdict | None
    rank: str
    """The class of ranks that needs the most, whose figures these are."""


def peak(recipe: Recipe, search: bool = False) -> Peak:
    """What ``build_report`` says of a recipe without a play, to the byte, in about a tenth of a millisecond once jobs
    like it were asked for. Searches vary recipes by ``_replace``, or resolve each job anew.
    """
    priced = price(recipe, detailed=False, search=search)
    fullest, host = priced[0], host_of(priced, recipe)
    of = fullest.meters
    verdict = _verdict(of, recipe, host)
    return Peak(of.allocated, of.reserved, of.device, fullest.phases, host, verdict, fullest.of.name)


def host_of(priced: list[Priced], recipe: Recipe) -> Host:
    """A node's own memory. Its GPUs hold the same stage, as ranks are laid out with the pipeline outermost."""
    of_rank = max(_on_host(each.ledger) for each in priced)
    needed, there = (
        of_rank * min(recipe.parallel.world, recipe.hardware.gpus_per_node),
        recipe.hardware.cluster.host_memory,
    )
    return Host(needed, there, needed <= there if there else None)


def _on_host(ledger: Ledger | Totalled) -> int:
    """The most that one rank holds on the host at an instant, whichever meter sees it."""
    meters = [ledger.totals(meter, "host") for meter in ledger.meters("host")]
    return max(map(sum, zip(*meters, strict=True)), default=0)


def build_report(recipe: Recipe, play: bool | None = False) -> Report:
    """The report of one recipe, without remedies and cards, which a search adds.

    ``play``: the reserved meter from the simulated allocator; None: and what the job needs only where it is near the
    card's limit; False: from the band that searches take.
    """
    priced = price(recipe)
    if play is not False:
        first = priced[0]
        priced[0] = first._replace(meters=with_play(first.meters, first.ledger, first.of.recipe, bool(play)))
    fullest, host = priced[0], host_of(priced, recipe)
    ledger, meters, where = fullest.ledger, fullest.meters, fullest.peak_instant
    assert isinstance(ledger, Ledger)
    per_gpu = PerGpu(
        rank=fullest.of.name,
        allocated_bytes=meters.allocated.expected,
        allocated_range=Range(meters.allocated.low, meters.allocated.high),
        peak_instant=where,
        instants=tuple(map(Instant, ledger.schedule, meters.totals)),
        phases=fullest.phases,
        reserved_bytes=meters.reserved_bytes,
        device_bytes=Bytes(*meters.device),
        by_category=ledger.by_category(where),
        ledger=LedgerRows(ledger),
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
        verdict=_verdict(meters, recipe, host),
        assumptions=recipe.provenance.assumptions,
        warnings=recipe.provenance.warnings,
        unclear=recipe.provenance.unclear,
        recipe=recipe,
    )


def _origins(recipe: Recipe) -> dict[str, str]:
    """Where values came from, in words; what the trainer's row gives without a word of its own is its default."""
    version = recipe.provenance.job.get("trainer_version")
    own = f"{recipe.trainer.title}{f' {version}' if version else ''}'s default"
    given = {key: own for key, source in recipe.provenance.sources.items() if source == "trainer"}
    return given | dict(recipe.provenance.origins)


def _rank(priced: Priced) -> Rank:
    return Rank(
        priced.of.name,
        priced.of.gpus,
        priced.meters.allocated.expected,
        priced.peak_instant,
        Bytes(*priced.meters.device),
    )


class LedgerRows(Sequence[LedgerRow]):
    """The rows of a ledger, each written out, formula and all, only when it is read."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __len__(self) -> int:
        return len(self._ledger.rows)

    @overload
    def __getitem__(self, index: int) -> LedgerRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LedgerRow, ...]: ...
    def __getitem__(self, index: int | slice) -> LedgerRow | tuple[LedgerRow, ...]:
        if isinstance(index, slice):
            return tuple(_ledger_row(row, self._ledger) for row in self._ledger.rows[index])
        return _ledger_row(self._ledger.rows[index], self._ledger)


def _ledger_row(row: Row, ledger: Ledger) -> LedgerRow:
    return LedgerRow(
        row.name,
        row.category,
        row.bytes,
        ledger.schedule[row.born],
        ledger.schedule[row.dies],
        row.place,
        row.meter,
        row.formula,
        row.why,
        row.source,
        row.low_bytes,
        row.high_bytes,
    )


def _model(recipe: Recipe) -> Model:
    spec = recipe.model
    weights = model_weights(spec, recipe.adapter is None, recipe.adapter)
    trainable = count([weight for weight in weights if weight.trained])
    params = Parameters(spec.params.total, trainable, spec.params.active, spec.params.by_category)
    groups = tuple(Group(run.count, run.layer.parameters, run.layer.by_category) for run in spec.runs)
    return Model(spec.name, spec.family, params, groups)
