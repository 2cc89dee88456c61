"""The exact search: plans in the order of their speed, each priced only where nothing rules it out.

The speed of every candidate is known before its memory is, so the first ones that fit are the best. Three bounds that
are proven, and nothing else, rule a candidate out without its price (tests/test_plan_order.py): a smaller micro-batch
of the same group that did not fit, as memory grows with the batch; no larger a one of a group that holds no more
(``under``); and what a part of its rows comes to (``least``). So once a candidate of a layout was priced and did not
fit, the smallest batch of each further group of it, and of the leaner one, is priced first until one of these fits;
where the last bound ruled out many of them (``PATIENCE``), it is asked of these first. Layouts whose model states
alone are too large are left out before (``candidates.floor_of``). Of those that the last bound rules out, ``nearest``
finds which miss by least."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from sys import maxsize
from typing import Generic, Protocol, TypeVar

PATIENCE = 8
"""Candidates of a layout that the bound rules out in a row, until it is asked of the smallest batch of a group first:
that rules out the whole group. The first that is not ruled out cost a question more, and is the last of its layout."""


class Searched(Protocol):
    """What the search needs to know of a candidate."""

    @property
    def group(self) -> Hashable:
        """Candidates of one group differ in their batch alone."""

    @property
    def under(self) -> Hashable:
        """A group whose candidates hold no more at the same batch; its own where there is none."""

    @property
    def batch(self) -> int:
        """What memory grows with."""

    @property
    def layout(self) -> Hashable:
        """Of each layout one plan is shown, the best."""


_C = TypeVar("_C", bound=Searched)
_P = TypeVar("_P")


@dataclass
class Found(Generic[_C, _P]):
    """What a search came to."""

    plans: list[tuple[_C, _P]] = field(default_factory=list)
    """The best of each layout, in the order of the candidates."""
    rejected: list[tuple[_C, _P]] = field(default_factory=list)
    """Priced, and too large."""
    priced: int = 0
    """Candidates whose memory was computed."""
    ruled_out: list[tuple[_C, int]] = field(default_factory=list)
    """Not priced: they miss by so much at least."""


def best(
    ordered: Iterable[_C],
    price: Callable[[_C], _P],
    fits: Callable[[_P], bool],
    wanted: int,
    tell: Callable[[int], None] = lambda priced: None,
    least: Callable[[_C], int] = lambda each: 0,
    surely: bool = False,
) -> Found[_C, _P]:
    """The first ``wanted`` candidates that fit, one of each layout. ``least``: what one misses by at the very least;
    ``surely``: nearly all that does not fit, so that one that it rules out says as much as one that was priced."""
    ordered, found = list(ordered), Found[_C, _P]()
    smallest = _smallest(ordered)
    blocked: dict[Hashable, int] = {}
    shown: set[Hashable] = set()
    tight: set[Hashable] = set()
    in_vain = Counter[Hashable]()
    known: dict[int, _P] = {}
    bounds: dict[int, int] = {}

    def missing(each: _C) -> int:
        """What it misses by at least, once."""
        if id(each) not in bounds:
            bounds[id(each)] = least(each)
        return bounds[id(each)]

    def fitting(each: _C) -> _P | None:
        """The price, once; None where it does not fit, which rules out what is larger."""
        priced = known.get(id(each))
        if priced is None:
            short = missing(each)
            if short > 0:
                found.ruled_out.append((each, short))
                blocked[each.group] = min(each.batch, blocked.get(each.group, each.batch))
                return None
            priced = known[id(each)] = price(each)
            found.priced += 1
            tell(found.priced)
            if not fits(priced):
                found.rejected.append((each, priced))
        if fits(priced):
            return priced
        blocked[each.group] = min(each.batch, blocked.get(each.group, each.batch))
        return None

    def is_blocked(each: _C) -> bool:
        return each.batch >= min(blocked.get(each.group, inf), blocked.get(each.under, inf))

    for each in ordered:
        if each.layout in shown or is_blocked(each):
            continue
        for first in (smallest.get(group) for group in (each.under, each.group)):
            if first is None or first is each or is_blocked(first):
                continue
            if each.layout in tight:
                if fitting(first) is not None:  # no more of them, until another is priced and does not fit
                    tight.discard(each.layout)
            elif in_vain[each.layout] >= PATIENCE and missing(first) > 0:
                fitting(first)
            elif in_vain[each.layout] >= PATIENCE:
                in_vain[each.layout] = -len(ordered)  # never again
        priced = None if is_blocked(each) else fitting(each)
        if priced is None:
            in_vain[each.layout] += 1
            tight.update([each.layout] if surely or id(each) in known else [])
            continue
        shown.add(each.layout)
        found.plans.append((each, priced))
        if len(found.plans) == wanted:
            break
    return found


def _smallest(ordered: Iterable[_C]) -> dict[Hashable, _C]:
    """The candidate of each group with the smallest batch, whose price says most about the others."""
    found: dict[Hashable, _C] = {}
    for each in ordered:
        if each.group not in found or each.batch < found[each.group].batch:
            found[each.group] = each
    return found


def nearest(
    found: Found[_C, _P],
    price: Callable[[_C], _P],
    short: Callable[[_P], int],
    wanted: int = maxsize,
    least: Callable[[_C, float], int] = lambda each, enough: 0,
) -> list[tuple[_C, _P]]:
    """Of each layout the candidate that misses by least, the ``wanted`` nearest of these, of those that were priced or
    ruled out by what they miss by at least: these are priced in its order, until it says that none comes nearer.
    ``least``: what one misses by at least, or what it costs least to know that is more than what is known."""
    best: dict[Hashable, tuple[_C, _P]] = {}
    for each, priced in found.rejected:
        if each.layout not in best or short(priced) < short(best[each.layout][1]):
            best[each.layout] = each, priced
    waiting = [(at_least, place) for place, (_, at_least) in enumerate(found.ruled_out)]
    heapify(waiting)
    while waiting:
        at_least, place = heappop(waiting)
        each = found.ruled_out[place][0]
        known = best.get(each.layout)
        if known is not None and at_least >= short(known[1]):
            continue
        if len(best) >= wanted and at_least >= sorted(short(priced) for _, priced in best.values())[wanted - 1]:
            break
        more = least(each, at_least)
        if more > at_least:
            heappush(waiting, (more, place))
            continue
        priced = price(each)
        found.priced += 1
        if known is None or short(priced) < short(known[1]):
            best[each.layout] = each, priced
    return sorted(best.values(), key=lambda pair: short(pair[1]))[:wanted]


def front(
    ordered: Iterable[_C],
    price: Callable[[_C], _P],
    fits: Callable[[_P], bool],
    size: Callable[[_P], int],
    tell: Callable[[int], None] = lambda priced: None,
    least: Sequence[Callable[[_C], int]] = (),
    most: float = inf,
) -> Found[_C, _P]:
    """The Pareto front: those that fit and than which no faster one, or equally fast one before it, is as small.
    ``least``: what one's size is not below, the cheaper ones to ask first; ``most``: the size above which none fits."""
    found: Found[_C, _P] = Found()
    blocked: dict[Hashable, int] = {}
    known: dict[Hashable, list[tuple[int, int]]] = {}
    smallest: int | None = None
    for each in ordered:
        least_batch = blocked.get(each.group)
        if least_batch is not None and each.batch >= least_batch:
            continue
        floor = max((of for batch, of in known.get(each.group, ()) if batch <= each.batch), default=0)
        if smallest is not None and floor >= smallest:
            continue
        enough = min(most, smallest - 1) if smallest is not None else most
        bound = next((at for at in (ask(each) for ask in least) if at > enough), 0)
        if bound > most:
            blocked[each.group] = min(each.batch, least_batch or each.batch)
        if bound:
            continue
        priced = price(each)
        found.priced += 1
        tell(found.priced)
        known.setdefault(each.group, []).append((each.batch, size(priced)))
        if not fits(priced):
            blocked[each.group] = min(each.batch, least_batch or each.batch)
        elif smallest is None or size(priced) < smallest:
            smallest = size(priced)
            found.plans.append((each, priced))
    return found


def largest(accepts: Callable[[int], int], low: int, most: int, step: int = 1) -> int:
    """The largest whole number from ``low`` to ``most`` that is accepted, where all below an accepted one are; ``low``
    less one where none is. ``accepts``: 0 where not; else, or below 0, by how much. Steps, ``step`` first and each 8
    times the one before, then where a line through both ends comes to nothing, each third time half way."""
    if low > most or (more := accepts(low)) <= 0:
        return low - 1
    good, bad, less, turn = low, most + 1, 0, 0
    while bad - good > 1:
        if bad > most:
            tried, step = min(good + step, most), 8 * step
        elif (turn := turn + 1) % 3 and less:
            tried = min(max(good + (bad - good) * more // (more - less), good + 1), bad - 1)
        else:
            tried = (good + bad) // 2
        room = accepts(tried)
        good, more, bad, less = (tried, room, bad, less) if room > 0 else (good, more, tried, room)
    return good
