"""The jobs around one that does not fit: sets of moves, their time and their memory."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from memplan.cost import card, seconds
from memplan.errors import MemplanError
from memplan.planner.candidates import Floors
from memplan.planner.moves import LAYOUT, NUMERICS, UNORDERED, Move, compatible, moves, together
from memplan.planner.pricing import ROWS, Priced, Pricing
from memplan.planner.rollout_moves import UNORDERED as OF_GENERATION
from memplan.planner.search import best
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe

Keys = dict[str, Any]

SAME = 0.01
"""Times per token as near as that, as a share of the job's own, count as equal."""


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
    def cost(self) -> tuple[int, int, int, int, int, float]:
        """Cheapest first: the training stays, its data too, the time per token, the fewest, the least to set up."""
        times, setup = round(self.slower / SAME), sum(move.setup for move in self.moves)
        return self.alters, sum(move.far for move in self.moves), times, len(self.moves), setup, self.slower


class Around:
    """The jobs around one that does not fit."""

    def __init__(self, given: JobInput, recipe: Recipe) -> None:
        assert recipe.hardware.gpu is not None
        self.given, self.recipe, self.device = given, recipe, card(recipe.hardware.gpu)
        self.pricing, self.floors = Pricing(self._free()), Floors()
        self.before = seconds(recipe, self.device) / tokens(recipe)
        self.made: dict[Hashable, Changed | None] = {}
        self.nearest: tuple[Changed, Priced] | None = None
        self.priced: dict[Hashable, Priced] = {}
        self.moves = [move for move in moves(given.job, recipe) if self.changed((move,)) is not None]
        self.least = self._least()

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

    def _least(self) -> list[Move]:
        """Of each axis the move that holds the least, the last one; of unordered ones but the layout all, of those of
        generation the last, which makes the most room.
        """
        every = [move for move in self.moves if move.axis in UNORDERED and move.axis not in (LAYOUT, *OF_GENERATION)]
        return [*{move.axis: move for move in self.moves if move not in every and move.axis != LAYOUT}.values(), *every]

    def floored(self, each: Changed) -> bool:
        """Whether its model states alone are too large."""
        return self.floors(each.recipe)

    def price(self, each: Changed) -> Priced:
        """Its memory, with what costs nothing as far as it is needed."""
        key = names(each.moves)
        priced = self.priced.get(key)
        if priced is not None:
            return priced
        priced = self.priced[key] = self.pricing.of(each.recipe)
        if self.nearest is None or priced.bytes < self.nearest[1].bytes:
            self.nearest = each, priced
        return priced

    def fitting(self, sets: Iterable[tuple[Move, ...]], wanted: int) -> list[tuple[Changed, Priced]]:
        """The cheapest of some sets that fit, one for each choice of axes. Of sets that differ in the values of their
        axes, none does where the one that holds the least does not."""
        every: list[Changed] = []
        leanest: dict[Hashable, Changed] = {}
        for chosen in sets:
            made = self.changed(chosen)
            if made is not None and not self.floored(made):
                every.append(made)
                leanest[made.alike] = made

        def price(each: Changed) -> Priced:
            least = self.price(leanest[each.alike])
            return self.price(each) if least.fits else least

        every.sort(key=lambda each: each.cost)
        return best(every, price, lambda priced: priced.fits, wanted).plans

    def hopeful(self, root: tuple[Move, ...]) -> bool:
        """Whether moves beside these may make the job fit: all that hold the least do, or cannot be."""
        alone, taken = self.changed(root), {move.axis for move in root}
        if alone is None or self.floored(alone):
            return False
        rest: dict[str, list[Move]] = {}
        for move in self.least:
            if move.axis not in taken:
                rest.setdefault(move.axis, []).append(move)
        ways = ([*reversed(values), None] if axis in UNORDERED else values for axis, values in rest.items())
        for beside in product(*ways):
            leanest = self.changed((*root, *(move for move in beside if move is not None)))
            if leanest is None or self.price(leanest).fits:
                return True
        return False


def names(chosen: Sequence[Move]) -> tuple[str, ...]:
    """A set of moves as something to remember by."""
    return tuple(move.title for move in chosen)


def tokens(recipe: Recipe) -> int:
    """Of an optimizer step."""
    return recipe.rows * recipe.batch.accumulation * recipe.parallel.data * recipe.batch.sequence_length
