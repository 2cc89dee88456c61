"""What would make a job fit: the moves around it, one alone or the fewest together, each priced as plans are.

What costs nothing is added where it is needed. A set of moves is a remedy if the job then fits, and if nothing of it
can be left out; the cheapest come first, those that change the training after those that do not. Sets are gone through
by their size: two together where no one move does, or where each is cheaper than the cheapest one that does; more where
no two do, of each axis the value that holds the least, in the fastest layouts that may do.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from memplan.errors import MemplanError
from memplan.planner.around import SAME, Around, Changed, names
from memplan.planner.moves import LAYOUT, Move, training_moves
from memplan.planner.pricing import Priced
from memplan.report import Remedy
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe

SHOWN = 3
MOST = 6
"""Moves in a set."""
PLACES = 2
"""Layouts that other moves are tried beside: the fastest of those that may do, beside the job's own."""


def remedies(given: JobInput, recipe: Recipe, device_bytes: int) -> tuple[Remedy, ...]:
    """Up to three ways to make a job fit, the cheapest first; where none is found, what comes nearest.

    ``device_bytes``: what the job is expected to hold as it is.
    """
    around = Around(given, recipe)
    found = keeping(around)
    if len(found) < SHOWN:
        found += altering(around, found)
    found = [pair for pair in found if not any(_within(other, pair) for other in found)][:SHOWN]
    if not found and around.nearest is not None:
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
        found = _cheapest([_mildest(around, pair, alone) for pair in around.fitting(sets, SHOWN)])
    return found


def _mildest(around: Around, pair: tuple[Changed, Priced], alone: Sequence[Move]) -> tuple[Changed, Priced]:
    """The same set with as little taken of the data as fits."""
    chosen = pair[0].moves
    for far in (move for move in chosen if move.far):
        for near in (move for move in alone if move.axis == far.axis and move.far < far.far):
            made = around.changed(tuple(near if move is far else move for move in chosen))
            if made is not None and (priced := around.price(made)).fits:
                return made, priced
    return pair


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
    tried = 0
    for place in ((), *_places(around, pool)):
        here, rest = (*root, *place), more - len(place)
        if rest == 0:
            yield here
        elif tried < PLACES and around.hopeful(here):
            tried += bool(place)
            yield from ((*here, *chosen) for chosen in combinations(others, rest))


def _places(around: Around, pool: Sequence[Move]) -> list[tuple[Move, ...]]:
    """Other layouts, the fastest first."""
    every = [
        (made.slower, i, move)
        for i, move in enumerate(pool)
        if move.axis == LAYOUT and (made := around.changed((move,)))
    ]
    return [(move,) for _, _, move in sorted(every)]


def remedy(around: Around, each: Changed, priced: Priced, before: int) -> Remedy | None:
    """A set of moves as it is told: its figures are those of the job with its changes, resolved anew."""
    changes = {**each.keys, **priced.keys}
    try:
        figures = peak(resolve(with_changes(around.given, changes)), search=True, play=True)
    except MemplanError:
        return None
    if figures.verdict is None or (priced.fits and figures.verdict.fits != "yes"):
        return None
    if not priced.fits and figures.device.expected >= before:
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
    if each.recipe.batch.accumulation != around.recipe.batch.accumulation:
        said.append(f"accumulation {each.recipe.batch.accumulation}")
    stored = each.recipe.storage.precision.name
    words = "" if stored == around.recipe.storage.precision.name else f" (precision {stored})"
    return " + ".join([*said, *priced.free]) + words


def kind(each: Changed) -> str:
    """What is paid for it most."""
    if each.alters:
        return ("numerics", "training")[each.alters - 1]
    if 1 / each.slower < 1 - SAME / 2:
        return "speed"
    return "setup" if any(move.setup for move in each.moves) else "nothing"
