"""Ledger -> meters, phases and all processes, of each class of ranks: from a band, or its step played."""

from functools import lru_cache
from typing import NamedTuple

from memplan.engine.allocator.reserved import BY_BOUND, Band, Seek
from memplan.engine.ledger import Ledger
from memplan.engine.phases.first_step import first_step_totals
from memplan.engine.phases.registry import FIRST_STEP
from memplan.engine.ranks import RankClass, leading_classes, ledger_of, rank_classes, totals_of_rank
from memplan.engine.sums import Totalled
from memplan.meters import Totals, measure, with_play
from memplan.moments import Beside, beside, most_of, phase_of
from memplan.rollout.instants import GENERATE
from memplan.rollout.together import Joint, joint, start
from memplan.spec.recipe import Recipe


class Priced(NamedTuple):
    """A class of ranks, its ledger and its meters."""

    of: RankClass
    ledger: Ledger | Totalled
    meters: Totals
    beside: Beside
    """The phases beside the step."""
    joint: Joint | None = None
    """Trainer and engine over a step, where something generates."""

    @property
    def to_fit(self) -> Band:
        """What the card must hold, of all processes and phases."""
        return most_of(self.joint.to_fit if self.joint else self.meters.to_fit, self.beside)

    @property
    def device(self) -> Band:
        """What the card holds at the worst instant of the step, in all processes."""
        return self.meters.device if self.joint is None else self.joint.device

    @property
    def why_not(self) -> str:
        """Why the engine does not start."""
        return self.joint.why_not[0] if self.joint is not None else ""

    @property
    def may_fail(self) -> bool:
        """Whether the engine's start hangs on what is uncertain."""
        figures = self.joint.start.figures if self.joint is not None else None
        return figures is not None and figures.may_fail

    @property
    def refused(self) -> str:
        """Why nothing is known of the engine."""
        return self.joint.start.refused if self.joint is not None else ""

    @property
    def peak_instant(self) -> str:
        """The first instant with the largest expected figure."""
        return self.ledger.schedule[self.meters.totals.index(self.meters.allocated.expected)]

    @property
    def fullest_at(self) -> str:
        """Where the card must hold the most: an instant of the step, of an engine beside it, or a phase beside both."""
        step = self.joint.to_fit if self.joint else self.meters.to_fit
        if self.beside.device is not None and self.beside.device.high > step.high:
            return max(self.beside.sums, key=lambda each: each.card[2]).name
        return self.peak_instant if self.joint is None else max(self.joint.instants, key=lambda at: at.to_fit.high).name

    @property
    def phases(self) -> dict[str, int]:
        """The most in forward, backward, step and the phases beside it; the first step where there are rows."""
        totals, names = self.meters.totals, self.of.recipe.moments.names
        found = {phase: max(totals[i] for i in at) for phase, at in _instants_of_phases(self.ledger.schedule)}
        if FIRST_STEP in names and isinstance(self.ledger, Ledger):
            found[FIRST_STEP] = max(first_step_totals(self.ledger, totals, self.of.recipe))
        found |= {each.name: each.card[1] for each in self.beside.sums}
        if self.joint is not None:
            found["rollout"] = max(at.allocated for at in self.joint.instants if at.name == GENERATE)
        return found


@lru_cache(maxsize=256)
def _instants_of_phases(schedule: tuple[str, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Positions of each phase's instants, phases in the order in which they first come."""
    phases: dict[str, list[int]] = {}
    for i, instant in enumerate(schedule):
        phases.setdefault(phase_of(instant), []).append(i)
    return tuple((phase, tuple(at)) for phase, at in phases.items())


def price(recipe: Recipe, detailed: bool = True, search: bool = False, leading: bool = False) -> list[Priced]:
    """Every class of ranks, the fullest card first (by the expected device figure); ``detailed``: with rows;
    ``leading``: without the classes that hold no more than another."""
    ledger_by = ledger_of if detailed else totals_of_rank
    classes = leading_classes(recipe) if leading else rank_classes(recipe)
    priced = (_measured(of, ledger_by(of.recipe), search) for of in classes)
    return sorted(priced, key=lambda each: -each.device.expected)


def _measured(of: RankClass, ledger: Ledger | Totalled, search: bool) -> Priced:
    started = start(of.recipe, ledger)
    meters = measure(ledger, of.recipe, search, started.beside_update if started else Band(0, 0, 0))
    phases = beside(ledger, of.recipe, meters)
    return Priced(of, ledger, meters, phases, joint(started, of.recipe, ledger, meters, phases))


NEARLY, MOST = 0.9, 3
"""Classes of ranks that are played: nearly as full as the fullest, and how many."""


def played(priced: list[Priced], seek: Seek) -> list[Priced]:
    """With the reserved meter as the allocator has it, which decides anew what class holds most."""
    found = []
    for each in (each for each in priced[:MOST] if each.device.expected >= NEARLY * priced[0].device.expected):
        meters = with_play(each.meters, each.ledger, each.of.recipe, seek)
        started = each.joint.start if each.joint else None
        together = joint(started, each.of.recipe, each.ledger, meters, each.beside)
        found.append(each._replace(meters=meters, joint=together))
    return sorted([*found, *priced[len(found) :]], key=lambda each: -each.device.expected)


SURE = 0.95
"""Of what the verdict yes allows: where no more is needed by the band above plays, no step is played. A twentieth is
over ten times what the fullest of 1,700 drawn plays needed beyond its band (``reserved.STAGED``)."""


def never(fullest: Priced) -> bool:
    """Whether the card is too small for the low figure: a play needs no less than what is allocated."""
    gpu = fullest.of.recipe.hardware.gpu
    return gpu is not None and fullest.to_fit.low > gpu.usable_bytes


def by_bound(priced: list[Priced]) -> list[Priced]:
    """With the high figure above every play, the class with the highest first, where all of them surely fit the card,
    or the job is unclear and no play would tell; else none."""
    found = []
    for each in priced:
        gpu, margin = each.of.recipe.hardware.gpu, each.of.recipe.hardware.margin
        most = _measured(each.of, each.ledger, True)
        unclear = bool(each.of.recipe.provenance.unclear)
        if gpu is None or not (unclear or most.to_fit.high <= SURE * (1 - margin) * gpu.usable_bytes):
            return []
        found.append(most._replace(meters=most.meters._replace(why_not=BY_BOUND)))
    return sorted(found, key=lambda each: -each.to_fit.high)
