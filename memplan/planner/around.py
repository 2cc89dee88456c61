"""The jobs around one that does not fit: sets of moves, their time and their memory."""

from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from memplan.cost import card, seconds
from memplan.errors import MemplanError
from memplan.planner import tiers
from memplan.planner.candidates import allowed_of, floor_of
from memplan.planner.moves import LAYOUT, NUMERICS, UNORDERED, Move, compatible, moves, together, training_moves
from memplan.planner.pricing import ROWS, Priced, Pricing
from memplan.planner.rollout_moves import UNORDERED as OF_GENERATION
from memplan.planner.search import best
from memplan.reporting import Peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe

Keys = dict[str, Any]
Cost = tuple[bool, int, int, int, int, int, int, float]

SAME = 0.01
"""Times per token as near as that, as a share of the job's own, count as equal."""


EXCLUSIVE = ("8bit", "weights", "precision")
"""Axes whose moves other moves refuse: states that wait on the host in 8 bit, adapters whose base is in 16 bit."""


class Changed(NamedTuple):
    """A set of moves, and the job with them."""

    moves: tuple[Move, ...]
    keys: Keys
    recipe: Recipe
    slower: float
    """Time per token over the job's own."""

    @property
    def alike(self) -> Hashable:
        """What differs in the values of axes of which the last one holds the least."""
        return tuple(move.title if move.alters or move.axis in UNORDERED else move.axis for move in self.moves)

    @property
    def group(self) -> Hashable:
        """Nothing but its own price rules a set out, or that of the leanest of those alike."""
        return names(self.moves)

    @property
    def under(self) -> Hashable:
        """No other group is known to hold less."""
        return self.group

    @property
    def batch(self) -> int:
        """One for each group."""
        return 1

    @property
    def layout(self) -> Hashable:
        """Of sets that move the same axes one is shown."""
        return self.axes

    @property
    def axes(self) -> frozenset[str]:
        """What is moved."""
        return frozenset(move.axis for move in self.moves)

    @property
    def alters(self) -> int:
        """How much of the training it changes: nothing, numerics, all of it."""
        return max((1 if move.alters == NUMERICS else 2 for move in self.moves if move.alters), default=0)

    @property
    def tier(self) -> int:
        """That of its dearest move."""
        return max((move.tier for move in self.moves), default=tiers.FREE)

    @property
    def is_slow(self) -> bool:
        """Whether it is told last, if at all."""
        return self.slower > tiers.SLOWEST

    @property
    def cost(self) -> Cost:
        """What is told first of a tier: as little of data and cards, the fewest, the easiest to write, the fastest."""
        return self.cost_with(())

    def cost_with(self, free: Collection[str]) -> Cost:
        """The same with keys of what costs nothing beside it."""
        far, count = sum(move.far for move in self.moves), len(self.moves) + len(free)
        keys = {*free, *("sharding" if move.axis == LAYOUT else next(iter(move.keys)) for move in self.moves)}
        setup = sum(move.setup for move in self.moves)
        return self.is_slow, self.tier, far, count, tiers.place(keys), round(self.slower / SAME), setup, self.slower


class Around:
    """The jobs around one that does not fit."""

    def __init__(self, given: JobInput, recipe: Recipe) -> None:
        assert recipe.hardware.gpu is not None
        self.given, self.recipe, self.device = given, recipe, card(recipe.hardware.gpu)
        self.pricing = Pricing(self._free())
        self.before = seconds(recipe, self.device) / tokens(recipe)
        self.made: dict[Hashable, Changed | None] = {}
        self.nearest: tuple[Changed, Priced] | None = None
        self.priced: dict[Hashable, Priced] = {}
        self.anew: dict[str, Peak | None] = {}
        """Played, by their changes."""
        self.all = [*moves(given.job, recipe), *training_moves(given.job, recipe)]
        self.tiers: dict[int, list[Move]] = {}
        self.hopes: dict[Hashable, bool] = {}

    def moves(self, tier: int) -> list[Move]:
        """Those of a tier that can be made."""
        if tier not in self.tiers:
            self.tiers[tier] = [move for move in self.all if move.tier == tier and self.changed((move,)) is not None]
        return self.tiers[tier]

    def upto(self, tier: int) -> list[Move]:
        """Those of a tier and of all before it."""
        return [move for each in range(tier + 1) for move in self.moves(each)]

    def changed(self, chosen: tuple[Move, ...]) -> Changed | None:
        """The job with some moves; None where it cannot be, or is no other."""
        key = names(chosen)
        if key not in self.made:
            self.made[key] = self._changed(chosen)
        return self.made[key]

    def _changed(self, chosen: tuple[Move, ...]) -> Changed | None:
        keys = together(self.given.job, self.recipe, chosen)
        recipe = None if keys is None or not compatible(chosen) else self._resolved(keys)
        if keys is None or recipe is None:
            return None
        return Changed(chosen, keys, recipe, seconds(recipe, self.device) / tokens(recipe) / self.before)

    def _free(self) -> list[str]:
        """What costs nothing and is not refused."""
        return [row.name for row in ROWS if not row.applies(self.recipe) or self._resolved(row.keys) is not None]

    def _resolved(self, keys: Keys) -> Recipe | None:
        """The job with these keys; None where it cannot be."""
        try:
            return resolve(with_changes(self.given, keys)) if keys else self.recipe
        except MemplanError:
            return None

    def least(self, pool: Sequence[Move]) -> list[Move]:
        """Of each axis the move that holds the least, the last one; of unordered ones but the layout all, of those of
        generation the last, which makes the most room."""
        every = [move for move in pool if move.axis in UNORDERED and move.axis not in (LAYOUT, *OF_GENERATION)]
        return [*{move.axis: move for move in pool if move not in every and move.axis != LAYOUT}.values(), *every]

    def floored(self, each: Changed) -> bool:
        """Whether its model states alone are too large."""
        return floor_of(each.recipe) > allowed_of(each.recipe)

    def price(self, each: Changed) -> Priced:
        """Its memory, with what costs nothing as far as it is needed."""
        key = names(each.moves)
        priced = self.priced.get(key)
        if priced is not None:
            return priced
        priced = self.priced[key] = self.pricing.of(each.recipe)
        if self.nearest is None or _far(each, priced) < _far(*self.nearest):
            self.nearest = each, priced
        return priced

    def fitting(self, sets: Iterable[tuple[Move, ...]], wanted: int) -> list[tuple[Changed, Priced]]:
        """The cheapest of some sets that fit, one for each choice of axes, of which nothing can be left out. Of sets
        that differ in the values of their axes, none fits where the one that holds the least does not."""
        every: list[Changed] = []
        leanest: dict[Hashable, Changed] = {}
        for chosen in sets:
            made = self.changed(chosen)
            if made is not None and not self.floored(made):
                every.append(made)
                leanest[made.alike] = made

        def price(each: Changed) -> tuple[Priced, bool]:
            least = self.price(leanest[each.alike])
            priced = self.price(each) if least.fits else least
            return priced, priced.fits and self._is_needed(each, priced)

        every.sort(key=lambda each: each.cost)
        found = best(every, price, lambda found: found[1], wanted).plans
        return [(each, priced) for each, (priced, _) in found]

    def _is_needed(self, each: Changed, priced: Priced) -> bool:
        """Whether the job fits with no move less, and nothing beside them that is not there with all."""
        for i in range(len(each.moves)):
            less = self.changed((*each.moves[:i], *each.moves[i + 1 :]))
            if less is not None and not self.floored(less):
                found = self.price(less)
                if found.fits and set(found.keys) <= set(priced.keys):
                    return False
        return True

    def hopeful(self, root: tuple[Move, ...], pool: Sequence[Move]) -> bool:
        """Whether moves of a pool beside these may make the job fit: all that hold the least do, or cannot be."""
        name = names(root), names(pool)
        if name not in self.hopes:
            self.hopes[name] = self._hopeful(root, pool)
        return self.hopes[name]

    def _hopeful(self, root: tuple[Move, ...], pool: Sequence[Move]) -> bool:
        taken = {move.axis for move in root}
        if self.changed(root) is None:
            return False
        rest: dict[str, list[Move]] = {}
        for move in self.least(pool):
            if move.axis not in taken:
                rest.setdefault(move.axis, []).append(move)
        states = [values[-1] for axis, values in rest.items() if axis not in UNORDERED]
        plain = self.changed((*root, *states))
        if plain is not None and self.floored(plain):  # heads and pairs hold no states
            return False
        ways = ([*reversed(values), None] if axis in UNORDERED else values for axis, values in rest.items())
        for beside in product(*ways):
            chosen = [move for move in beside if move is not None]
            leanest = self.changed((*root, *chosen))
            if leanest is None:  # of what refuses one another, none
                leanest = self.changed((*root, *(move for move in chosen if move.axis not in EXCLUSIVE)))
            if leanest is None or (not self.floored(leanest) and self.price(leanest).fits):
                return True
        return False


def _far(each: Changed, priced: Priced) -> tuple[bool, tuple[Any, ...]]:
    """From fitting: what is tight, on its card or its node, comes first, the cheapest of it."""
    return (True, (priced.bytes,)) if priced.lacks else (False, each.cost)


def names(chosen: Sequence[Move]) -> tuple[str, ...]:
    """A set of moves as something to remember by."""
    return tuple(move.title for move in chosen)


def tokens(recipe: Recipe) -> int:
    """Of an optimizer step."""
    return recipe.rows * recipe.batch.accumulation * recipe.parallel.data * recipe.batch.sequence_length
