"""What would make a job fit: the moves around it, one alone or the fewest together, each priced as plans are.

What costs nothing is added where it is needed. A set of moves is a remedy if the job then fits, and if nothing of it
can be left out. They are told tier by tier (``tiers``), of each tier the smallest sets with which the job fits: of axes
beside the layout the value that holds the least, in the fastest layouts that may do."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from memplan.planner import tiers
from memplan.planner.around import Around, Changed, Cost, names
from memplan.planner.moves import LAYOUT, UNORDERED, Move
from memplan.planner.pricing import Priced
from memplan.planner.told import anew, fits, remedy
from memplan.report import Remedy
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe

SHOWN = 3
OF_THE_FIRST = 2
"""Remedies of the first tier that has any, before one of each tier after it: ways that differ, not ways alike."""
MOST = 6
"""Moves in a set."""
PLACES = 2
"""Layouts that other moves are tried beside: the fastest of those that may do, beside the job's own."""
ALL_VALUES = 2
"""Of a set up to this size every value of an axis is tried; of larger ones the least, then nearer ones."""
TRIED = 8
"""Moves alone that are looked for."""

PLAYED = 4
"""Of the sets that nearly fit."""

Found = list[tuple[Changed, Priced]]


def remedies(given: JobInput, recipe: Recipe, device_bytes: int) -> tuple[Remedy, ...]:
    """Up to three ways to make a job fit, in the order of their tiers; where none is found, what comes nearest.

    ``device_bytes``: what the job is expected to need as it is."""
    around = Around(given, recipe)
    found: Found = []
    more: Found = []
    for tier in tiers.ALL:
        if len(found) >= SHOWN:
            break
        own, rest = _that_hold(around, of_tier(around, tier, [*found, *more]), found, 1 if found else OF_THE_FIRST)
        found += own
        more += rest
        if tier == tiers.LITTLE and not found:
            found = _that_nearly_fit(around, tier, [])
    found += _that_hold(around, sorted(more, key=_order), found, SHOWN - len(found))[0]
    if any(each.tier == tiers.FREE for each, _ in found):
        near = _that_nearly_fit(around, tiers.FREE, found)
        found = [*near, *(pair for pair in found if not any(_within(less, pair) for less in near))]
    found = sorted(found, key=_order)[:SHOWN]
    if len(found) < SHOWN:
        slow = of_tier(around, tiers.HOST, found, slow=True)
        found += _that_hold(around, slow, found, SHOWN - len(found))[0]
    if not found and around.nearest is not None:
        found = [around.nearest]
    made = (remedy(around, each, priced, device_bytes) for each, priced in found)
    return tuple(each for each in made if each is not None)


def _that_hold(around: Around, own: Found, known: Found, wanted: int) -> tuple[Found, Found]:
    """The first of ``own`` that hold nothing of another one and more, and with which the job fits when it is resolved
    anew and played; then those that were not looked at."""
    kept: Found = []
    for place, pair in enumerate(own):
        if len(kept) >= wanted:
            return kept, own[place:]
        if not any(_within(other, pair) for other in [*known, *kept]) and fits(anew(around, pair)):
            kept.append(pair)
    return kept, []


def _that_nearly_fit(around: Around, tier: int, known: Found) -> Found:
    """The cheapest set that is above the card by less than its band is wide, and fits once it is played; where others
    are known, one change of another axis than theirs."""
    plain = around.changed(())
    if plain is not None:
        around.price(plain)
    taken = [each.moves[0].axis for each, _ in known if len(each.moves) == 1]
    near = [
        (made, priced)
        for name, priced in around.priced.items()
        if (made := around.made[name]) is not None and made.tier <= tier and not made.is_slow
        if not known or (len(made.moves) == 1 and made.moves[0].axis not in taken)
        if not priced.fits and priced.short <= priced.figures.device.high - priced.figures.device.expected
    ]
    near = [pair for pair in near if not any(_within(other, pair) for other in known)]
    found = next((pair for pair in sorted(near, key=_order)[:PLAYED] if fits(anew(around, pair))), None)
    if found is None:
        return []
    made, kept = found
    for key in kept.keys:  # what costs nothing may be left out too
        less = kept._replace(keys={other: value for other, value in kept.keys.items() if other != key})
        kept = less if fits(anew(around, (made, less))) else kept
    return [(made, kept)]


def _order(pair: tuple[Changed, Priced]) -> Cost:
    """First what is told first."""
    each, priced = pair
    return each.cost_with(priced.keys)


def _within(less: tuple[Changed, Priced], more: tuple[Changed, Priced]) -> bool:
    """Whether a remedy holds all of another, and more."""
    (one, free), (other, more_free) = less, more
    inside = set(names(one.moves)) <= set(names(other.moves)) and set(free.keys) <= set(more_free.keys)
    return less is not more and inside


def of_tier(around: Around, tier: int, known: Found, slow: bool = False) -> Found:
    """The smallest sets of moves with which the job fits, of which the dearest is of this tier and that hold none of
    those ``known``: beside moves that are free or cost little; where nothing does yet, beside another training too."""
    own, pool = around.moves(tier), around.upto(min(tier, tiers.LITTLE))
    found: Found = []
    if tier == tiers.FREE:
        plain = around.changed(())
        found = [] if plain is None else [(plain, priced) for priced in around.pricing.fewest(around.recipe)]
    sets = [set(names(each.moves)) for each, _ in known if each.moves]

    def is_new(made: Changed) -> bool:
        return not any(each <= set(names(made.moves)) for each in sets)

    pools = [pool if tier <= tiers.LITTLE else [*pool, *own]]
    if tier > tiers.TRAINING and not known:
        pools.append([*around.upto(tiers.TRAINING), *own])
    for each in pools:
        found += _smallest(around, own, each, tier == tiers.FREE, is_new, slow)
        if found:
            break
    if tier == tiers.SHORTER and not known:
        found += _longest(around, own, pools[-1])
    return sorted(found, key=_order)


def _longest(around: Around, own: Sequence[Move], pool: Sequence[Move]) -> Found:
    """The smallest set around the longest sequences with which the job can fit at all: others keep less of the data."""
    for move in own:
        if move.axis == "shorter" and around.hopeful((move,), pool):
            for size in range(2, MOST + 1):
                if found := around.fitting(_beside(around, (move,), size, pool), 1):
                    return found
    return []


def _smallest(
    around: Around,
    own: Sequence[Move],
    pool: Sequence[Move],
    alone: bool,
    wanted: Callable[[Changed], bool],
    slow: bool,
) -> Found:
    """The smallest sets of a pool, one of ``own`` among them, with which the job fits. ``alone``: all are its own."""

    def fitting(sets: Iterable[tuple[Move, ...]], size: int) -> Found:
        kept = (each for each in sets if (made := around.changed(each)) is not None and wanted(made))
        if size <= ALL_VALUES:
            kept = (each for each in kept if (made := around.changed(each)) is not None and made.is_slow == slow)
        found = [_mildest(around, pair) for pair in around.fitting(kept, TRIED if size == 1 else OF_THE_FIRST)]
        return [pair for pair in found if pair[0].is_slow == slow]

    found = fitting(((move,) for move in own), 1)
    for size in range(2, MOST + 1):
        if found or not own:
            break
        found = fitting(_beside(around, (), size, pool) if alone else _sets(around, own, size, pool), size)
    return found


def _sets(around: Around, own: Sequence[Move], size: int, pool: Sequence[Move]) -> Iterator[tuple[Move, ...]]:
    """Sets of so many moves of a pool, one of ``own`` among them."""
    least = around.least(own)
    roots = [move for move in own if move.axis != LAYOUT and (move in least or (move.alters and not move.far))]
    for move in roots:
        yield from _beside(around, (move,), size, pool)
    for root in _hopeful(around, _layouts(around, own), pool):
        yield from _beside(around, root, size, [move for move in pool if move.axis != LAYOUT])


def _mildest(around: Around, pair: tuple[Changed, Priced]) -> tuple[Changed, Priced]:
    """The same set with every value as near to the job's own as fits."""
    if len(pair[0].moves) <= ALL_VALUES and not any(move.far for move in pair[0].moves):
        return pair
    for place, move in enumerate(pair[0].moves):
        if move.axis in UNORDERED and not move.far:
            continue
        for near in (each for each in around.moves(move.tier) if each.axis == move.axis):
            if near is move:
                break
            chosen = pair[0].moves
            made = around.changed((*chosen[:place], near, *chosen[place + 1 :]))
            if near.far <= move.far and made is not None and (priced := around.price(made)).fits:
                pair = made, priced
                break
    return pair


def _beside(around: Around, root: tuple[Move, ...], size: int, pool: Sequence[Move]) -> Iterator[tuple[Move, ...]]:
    """Sets of so many moves, those of ``root`` among them."""
    more = size - len(root)
    if more == 0:
        yield root
        return
    others = [move for move in pool if move.axis != LAYOUT] if size <= ALL_VALUES else around.least(pool)
    for place in ((), *_hopeful(around, _layouts(around, pool), pool, root)):
        here, rest = (*root, *place), more - len(place)
        if rest == 0:
            yield here
        elif around.hopeful(here, pool):
            yield from ((*here, *chosen) for chosen in combinations(others, rest))


def _hopeful(
    around: Around, places: Sequence[Move], pool: Sequence[Move], root: tuple[Move, ...] = ()
) -> Iterator[tuple[Move, ...]]:
    """The first layouts beside which other moves may do."""
    found = 0
    for move in places:
        if found < PLACES and around.hopeful((move,), pool) and around.hopeful((*root, move), pool):
            found += 1
            yield (move,)


def _layouts(around: Around, pool: Sequence[Move]) -> list[Move]:
    """Layouts, the fewest cards and the fastest first."""
    every = [
        (move.far, made.slower, i, move)
        for i, move in enumerate(pool)
        if move.axis == LAYOUT and (made := around.changed((move,)))
    ]
    return [move for *_, move in sorted(every)]
