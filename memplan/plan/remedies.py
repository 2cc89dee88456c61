"""What would make a job fit: the moves around it, one alone or the fewest together, each priced as plans are.

What costs nothing is added where it is needed. A set of moves is a remedy if the job then fits, and if nothing of it
can be left out; the cheapest come first, those that change the training after those that do not. Sets are gone through
by their size: two together where no one move does, or where each is cheaper than the cheapest one that does; more where
no two do, of each axis the value that holds the least.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from memplan.cost import card, seconds
from memplan.errors import MemplanError
from memplan.plan.candidates import Floors
from memplan.plan.moves import HEAD, LAYOUT, NUMERICS, Move, compatible, moves, together, training_moves
from memplan.plan.pricing import ROWS, Priced, Pricing
from memplan.plan.search import best
from memplan.report import Remedy
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe

Keys = dict[str, Any]

SHOWN = 3
MOST = 5
"""Moves in a set."""
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
        return tuple(move.title if move.alters or move.axis in (LAYOUT, HEAD) else move.axis for move in self.moves)

    @property
    def group(self) -> Hashable:
        """Nothing but its own price rules a set out, or that of the leanest of those alike."""
        return names(self.moves)

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
        assert recipe.gpu is not None
        self.given, self.recipe, self.device = given, recipe, card(recipe.gpu)
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
        """Of each axis the move that holds the least, the last one; all loss heads, of which any may."""
        last = {move.axis: move for move in self.moves if move.axis not in (LAYOUT, HEAD)}
        return [*last.values(), *(move for move in self.moves if move.axis == HEAD)]

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
        rest = tuple(move for move in self.least if move.axis not in {*taken, HEAD})
        heads = [(move,) for move in self.least if move.axis == HEAD and HEAD not in taken]
        for head in (*reversed(heads), ()):
            leanest = self.changed((*root, *rest, *head))
            if leanest is None or self.price(leanest).fits:
                return True
        return False


def names(chosen: Sequence[Move]) -> tuple[str, ...]:
    """A set of moves as something to remember by."""
    return tuple(move.title for move in chosen)


def tokens(recipe: Recipe) -> int:
    """Of an optimizer step."""
    return recipe.rows * recipe.accumulation * recipe.parallel.data * recipe.sequence_length


def remedies(given: JobInput, recipe: Recipe, device_bytes: int) -> tuple[Remedy, ...]:
    """Up to three ways to make a job fit, the cheapest first; where none is found, what comes nearest.

    ``device_bytes``: what the job is expected to need as it is.
    """
    around = Around(given, recipe)
    found = keeping(around)
    if len(found) < SHOWN:
        found += altering(around, found)
    found = [pair for pair in found if not any(_within(other, pair) for other in found)][:SHOWN]
    if not found and around.nearest is not None and around.nearest[1].figures.device.expected < device_bytes:
        found = [around.nearest]
    made = (remedy(around, each, priced, device_bytes) for each, priced in found)
    return tuple(each for each in made if each is not None)


Found = list[tuple[Changed, Priced]]


def _within(less: tuple[Changed, Priced], more: tuple[Changed, Priced]) -> bool:
    """Whether a remedy holds all of another, and more."""
    (one, free), (other, more_free) = less, more
    inside = set(names(one.moves)) <= set(names(other.moves)) and set(free.free) <= set(more_free.free)
    return less is not more and inside


def keeping(around: Around) -> Found:
    """What leaves the training as it is."""
    plain = around.changed(())
    found = [] if plain is None else [(plain, priced) for priced in around.pricing.fewest(around.recipe)]
    found += around.fitting([(move,) for move in around.moves], SHOWN)
    pool = around.moves
    if found:
        least = min(each.cost for each, _ in found)
        pool = [move for move in pool if (made := around.changed((move,))) is not None and made.cost < least]
    for size in range(2, MOST + 1):
        sets = list(_beside(around, (), size, pool))
        found = _cheapest([*found, *around.fitting(sets, SHOWN)])
        if found or not sets:
            break
    return found


def altering(around: Around, others: Found) -> Found:
    """What changes the training: one move, or the fewest that do; where there are ``others``, which leave it as it is,
    no more than one beside it, which is none of theirs."""
    single = training_moves(around.given.job, around.recipe)
    alone = [move for move in single if around.changed((move,)) is not None]
    found = _cheapest(around.fitting([(move,) for move in alone], len(alone)))
    ends = [move for i, move in enumerate(alone) if not move.far or i + 1 == len(alone) or not alone[i + 1].far]
    roots: list[tuple[Move, ...]] = [(move,) for move in ends]
    if not others:
        roots += [pair for pair in combinations(ends, 2) if around.changed(pair) is not None]
    known = {LAYOUT, *(axis for each, _ in others if len(each.moves) == 1 for axis in each.axes)} if others else set()
    pool = [move for move in around.moves if move.axis not in known]
    for size in range(2, (2 if others else MOST) + 1):
        if found:
            break
        sets = (chosen for root in roots if len(root) <= size for chosen in _beside(around, root, size, pool))
        found = _cheapest(around.fitting(sets, SHOWN))
    return found


def _cheapest(found: Found) -> Found:
    """Cheapest first."""
    return sorted(found, key=lambda pair: pair[0].cost)


def _beside(around: Around, root: tuple[Move, ...], size: int, pool: Sequence[Move]) -> Iterator[tuple[Move, ...]]:
    """Sets of so many moves, those of ``root`` among them."""
    more = size - len(root)
    if more == 0:
        yield root
        return
    others = [move for move in pool if move.axis != LAYOUT and (size == 2 or move in around.least)]
    for place in ((), *((move,) for move in pool if move.axis == LAYOUT)):
        here, rest = (*root, *place), more - len(place)
        if rest == 0:
            yield here
        elif around.hopeful(here):
            yield from ((*here, *chosen) for chosen in combinations(others, rest))


def remedy(around: Around, each: Changed, priced: Priced, before: int) -> Remedy | None:
    """A set of moves as it is told: its figures are those of the job with its changes, resolved anew."""
    changes = {**each.keys, **priced.keys}
    try:
        figures = peak(resolve(with_changes(around.given, changes)))
    except MemplanError:
        return None
    if figures.verdict is None or (priced.fits and figures.verdict.fits != "yes"):
        return None
    return Remedy(
        title=title(around, each, priced),
        changes=changes,
        cost=kind(each),
        frees_bytes=before - figures.device.expected,
        device_bytes=figures.device.expected,
        allocated_bytes=figures.allocated.expected,
        host_bytes_per_node=figures.host.bytes_per_node,
        fits=figures.verdict.fits,
        relative_speed=round(1 / each.slower, 3),
        alters_training=each.alters > 0,
    )


def title(around: Around, each: Changed, priced: Priced) -> str:
    """All that is changed, and what follows from it."""
    said = [move.title for move in each.moves]
    if each.recipe.accumulation != around.recipe.accumulation:
        said.append(f"accumulation {each.recipe.accumulation}")
    stored = each.recipe.precision.name
    words = "" if stored == around.recipe.precision.name else f" (precision {stored})"
    return " + ".join([*said, *priced.free]) + words


def kind(each: Changed) -> str:
    """What is paid for it most."""
    if each.alters:
        return ("numerics", "training")[each.alters - 1]
    if 1 / each.slower < 1 - SAME / 2:
        return "speed"
    return "setup" if any(move.setup for move in each.moves) else "nothing"
