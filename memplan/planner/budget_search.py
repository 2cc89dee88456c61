"""The fastest way within a budget, exactly: ways in the order of their speed, the first that fits.

Of a grid only the edge is looked at. A layer saves no more than the layer that saves most, which is measured at the
first of every run of layers: so of so many layers of the one kind, fewer of the other than are missing cannot do, and
are left out. All others are asked, fastest first, so that the first that fits is the fastest of all
(tests/test_budget.py tries every way). Ties go to what holds less: so a larger budget gets no slower way, and none that
holds less."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from memplan.planner.budget_ways import Grid, Way
from memplan.units import ceil_div

LAST = 4
"""Steps at the end of a grid that may hold more than before: gathered, or gradients, beside a last layer made again."""


class Sized(NamedTuple):
    """A way with what it comes to."""

    seconds: float
    """Of one step."""
    bytes: int
    """Allocated at the peak, the high figure."""
    way: Way

    @property
    def order(self) -> tuple[float, int]:
        """Faster ones first, then those that hold less."""
        return self.seconds, self.bytes


class Search:
    """Ways of one job, sized and timed once each."""

    def __init__(
        self,
        grids: Iterable[Grid],
        seconds: Callable[[Way], float],
        size: Callable[[Way], int],
        kept: Way,
        starts: Sequence[int],
    ) -> None:
        """``kept``: nothing is made again; ``starts``: the first layer of every run."""
        self.grids, self._seconds_of, self._size_of = list(grids), seconds, size
        self._timed: dict[str, float] = {}
        self._sized: dict[str, int] = {}
        self.kept = self._with_size(kept)
        self._savings = [self._saves(of, starts) for of in self.grids]

    @property
    def priced(self) -> int:
        """Ways whose memory was computed."""
        return len(self._sized)

    @property
    def considered(self) -> int:
        """Ways that there are."""
        return 1 + sum((of.most + 1) if of.single else (of.most + 1) * (of.most + 2) // 2 for of in self.grids)

    def best(self, budget: int) -> Sized | None:
        """The fastest way within so many bytes; of equally fast ones the smallest. None where there is none."""
        seconds = (range(1 if of.single else of.most + 1) for of in self.grids)
        waiting = [self._first(i, b, budget) for i, numbers in enumerate(seconds) for b in numbers]
        heap = [(self.seconds(self.grids[i], a, b), i, b, a) for i, b, a in waiting if a + b <= self.grids[i].most]
        heapify(heap)
        found = self.kept if self.kept.bytes <= budget else None
        while heap and (found is None or heap[0][0] <= found.seconds):
            _, i, b, a = heappop(heap)
            grid, here = self.grids[i], self.sized(self.grids[i], a, b)
            if here.bytes <= budget:
                found = here if found is None or here.order < found.order else found
                continue
            least = max(1, self._savings[i][0])
            a += ceil_div(here.bytes - budget, least)
            if a + b <= grid.most:
                heappush(heap, (self.seconds(grid, a, b), i, b, a))
        return found

    def _first(self, i: int, b: int, budget: int) -> tuple[int, int, int]:
        """The fewest layers of the first kind beside so many of the second that may do."""
        one, other = self._savings[i]
        missing = self.kept.bytes - budget - b * other
        return i, b, max(0, ceil_div(missing, one)) if one and self.grids[i].most else 0

    def _saves(self, grid: Grid, starts: Sequence[int]) -> tuple[int, int]:
        """The most that one layer more saves, of either kind."""
        found = [0, 0]
        at = sorted({a for start in starts for a in (start, start + 1) if a < grid.most})
        for kind in range(1 if grid.single else 2) if grid.most else ():
            for a in at:
                pairs = ((a, 0), (a + 1, 0)) if kind == 0 else ((0, a), (0, a + 1))
                before, after = (self.sized(grid, *pair).bytes for pair in pairs)
                found[kind] = max(found[kind], before - after)
        return found[0], found[1]

    def least(self) -> Sized:
        """The way that holds least; of equally small ones the fastest."""
        ends = [self.kept]
        for grid in self.grids:
            lasts = range(max(0, grid.most + 1 - LAST), grid.most + 1)
            pairs = {(a, 0) for a in lasts}
            pairs |= set() if grid.single else {(0, b) for b in lasts} | {(a, grid.most - a) for a in (1, *lasts)}
            ends += [self.sized(grid, a, b) for a, b in sorted(pairs) if a + b <= grid.most]
        return min(ends, key=lambda each: (each.bytes, each.seconds))

    def sized(self, grid: Grid, a: int, b: int) -> Sized:
        """A way of a grid."""
        return self._with_size(grid.at(a, b))

    def seconds(self, grid: Grid, a: int, b: int) -> float:
        """Of a step, a way of a grid."""
        way = grid.at(a, b)
        return self._time(way, way.said)

    def _with_size(self, way: Way) -> Sized:
        name = way.said
        if name not in self._sized:
            self._sized[name] = self._size_of(way)
        return Sized(self._time(way, name), self._sized[name], way)

    def _time(self, way: Way, name: str) -> float:
        if name not in self._timed:
            self._timed[name] = self._seconds_of(way)
        return self._timed[name]
