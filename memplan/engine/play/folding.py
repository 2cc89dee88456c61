"""Of a run of equal layers a few are played: where it repeats itself, and its step without most repeats.

Layers are alike where nothing that a pass knows of them differs: what they are made of, and whether they are
checkpointed. What repeats may be longer than one layer (sliding and full attention in turn, every fourth layer
checkpointed). Weights, buckets and the optimizer, which go tensor by tensor, are played of the whole model.
``unfolding.py`` puts the repeats back, and refuses where the layers that were played do not prove to be alike.

From the second step on all steps are alike, and the first differs in the optimizer's states alone, which come in it. So
a second step is the first without their births, and need not be played (``repeated``). That holds only where the first
step lets go of nothing that was there before it, and leaves nothing but states, which is looked at here; and where
hooks remember nothing from step to step (``Sharding.remembers``; tests/test_folding.py plays both)."""

from collections.abc import Sequence
from itertools import accumulate, count
from typing import NamedTuple

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.pass_plan import PassPlan
from memplan.engine.play.ddp import Ddp
from memplan.engine.play.fsdp1 import Fsdp1
from memplan.engine.play.fsdp2 import Fsdp2
from memplan.engine.play.notes import STEP
from memplan.engine.play.pieces import FoldedTape
from memplan.engine.play.sharding import Sharding
from memplan.engine.play.step import Player
from memplan.engine.play.zero.hooks import Gathering, Zero, Zero3
from memplan.engine.play.zero.whole import Whole
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe

FOLDED = (Sharding, Ddp, Fsdp1, Fsdp2, Zero, Zero3, Gathering, Whole)
"""Hooks that know a layer by its number in the pass, and hold nothing that depends on how many there are."""
BEFORE, AFTER = 3, 3
"""Layers, rounded up to whole repeats, that are played before the repeat that stands for others, and behind the one
after it: the first have no neighbour, what FSDP gathers ahead lives as long as two layers, and FSDP1's host waits for
the one two before."""
LONGEST = 16
"""Layers in a repeat."""


class Fold(NamedTuple):
    """Which layers of a model are played."""

    layers: int
    period: int
    """Layers that repeat together."""
    template: int
    """The first layer of the repeat that stands for those that are left out, which follow it."""
    left_out: int
    """Repeats."""

    @property
    def behind(self) -> int:
        """The first layer behind the template, as it is played."""
        return self.template + self.period

    @property
    def skipped(self) -> int:
        """Layers that are not played."""
        return self.left_out * self.period

    def without(self, spec: ModelSpec) -> ModelSpec:
        """The model that is played."""
        runs, at, first, end = [], 0, self.behind, self.behind + self.skipped
        for run in spec.runs:
            inside = max(0, min(at + run.count, end) - max(at, first))
            at += run.count
            if run.count > inside:
                runs.append(run.but(count=run.count - inside) if inside else run)
        return spec.but(runs=tuple(runs))

    def shorten(self, sharding: Sharding) -> Sharding:
        """Hooks of the layers that are played."""
        layers, end = sharding.layers, self.behind + self.skipped
        if len(layers) == self.layers:
            sharding.layers = [*layers[: self.behind], *layers[end:]]
        return sharding


def fold_of(plans: Sequence[PassPlan]) -> Fold | None:
    """How these passes are folded; None where that saves nothing, or the routers' loss goes back layer by layer."""
    counts = {plan.spec.num_layers for plan in plans}
    blocks = any(plan.spec.encoder is not None or any(run.blocks for run in plan.spec.runs) for plan in plans)
    if len(counts) != 1 or blocks or any(plan.mode.router.how for plan in plans):
        return None
    kinds = list(zip(*map(_kinds, plans), strict=True))
    found = [fold for period in range(1, min(LONGEST, len(kinds) // 2) + 1) if (fold := _fold(kinds, period))]
    return max(found, key=lambda fold: fold.skipped, default=None)


def _kinds(plan: PassPlan) -> list[tuple[object, ...]]:
    """What a pass knows of each layer."""
    again = plan.mode.recompute
    return [(layer, plan.style_of(i), again.policy_of(i)) for i, layer in enumerate(plan.spec.layers())]


def _fold(kinds: Sequence[object], period: int) -> Fold | None:
    """The longest stretch in which each layer is as the one a period before it."""
    best, first = (0, 0), 0
    for i in range(period, len(kinds) + 1):
        if i == len(kinds) or kinds[i] != kinds[i - period]:
            best, first = max(best, (i - first, -first)), i - period + 1
    length, first = best[0], -best[1]
    before, after = -(-BEFORE // period), -(-AFTER // period)
    repeats = length // period - before - after - 2
    return Fold(len(kinds), period, first + before * period, repeats) if repeats > 0 else None


class FoldedPlayer(Player):
    """Plays passes through fewer layers."""

    def __init__(self, recipe: Recipe, fold: Fold) -> None:
        self.fold = fold
        self.tape: FoldedTape
        super().__init__(recipe, FoldedTape())
        fold.shorten(self.sharding)
        self.short: dict[int, tuple[PassPlan, PassPlan]] = {}

    def through(self, plan: PassPlan) -> PassPlan:
        """The pass through the layers that are played."""
        if id(plan) not in self.short:
            again = plan.mode.recompute.without(self.fold.behind, self.fold.skipped)
            mode = plan.mode._replace(recompute=again)
            self.short[id(plan)] = plan, plan._replace(spec=self.fold.without(plan.spec), mode=mode)
        return self.short[id(plan)][1]

    def sharding_of(self, plan: PassPlan) -> Sharding:
        """Of the layers that are played."""
        return self.fold.shorten(super().sharding_of(plan))


STAYS = frozenset({"optimizer_states"})
"""Categories of what a first step makes for all later ones."""


def repeated(first: StepEvents, steps: int) -> StepEvents | None:
    """So many steps, of which the first begins at ``first.start``; None where it does not say what the others are."""
    begin, tags = first.start, first.tags
    events = first.events[begin:]
    made = {number for number, size in events if size > 0}
    gone = {number for number, size in events if size < 0}
    stays = made - gone
    if not made or gone - made or stays != {number for number in made if tags[number].category in STAYS}:
        return None
    again = [event for event in events if event[0] not in stays]
    born = [0, *accumulate(number in stays for number, _ in events)]
    """Of what stays, before each event."""
    marks = [(at - begin - born[at - begin], name) for at, name in first.marks if at > begin or name == STEP]
    numbers = [number for number in range(min(made), len(tags)) if tags[number].category not in STAYS]
    found = StepEvents(first.events, begin, dict(first.streams), dict(first.recorded), first.marks, list(tags))
    for _ in range(steps - 1):
        found = _with_another(found, first, again, marks, numbers)
    return found


def _with_another(
    found: StepEvents, first: StepEvents, again: list[tuple[int, int]], marks: list[tuple[int, str]], numbers: list[int]
) -> StepEvents:
    """One step more: its events and marks, and what it makes, under numbers of their own."""
    new, start = dict(zip(numbers, count(len(found.tags)), strict=False)), len(found.events)
    return StepEvents(
        (*found.events, *((new[number], size) for number, size in again)),
        start,
        {**found.streams, **{new[number]: stream for number, stream in first.streams.items() if number in new}},
        {**found.recorded, **{new[number]: users for number, users in first.recorded.items() if number in new}},
        (*found.marks, *((at + start, name) for at, name in marks)),
        [*found.tags, *(first.tags[number] for number in numbers)],
    )
