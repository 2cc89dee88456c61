"""Events of a step, and what the caching allocator makes of them.

Many requests at once: the rules of ``caching.py`` in one loop, where a play of 50,000 events spends its time.

What is rare is left to the allocator: new segments and blocks that other streams use. Tests compare both."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from operator import itemgetter, length_hint
from types import MappingProxyType
from typing import NamedTuple

from memplan.engine.allocator.blocks import ADDRESSES, USED, Block, Pool, front, give_back
from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.allocator.settings import LARGE_SEGMENT_BYTES, SMALL_BYTES
from memplan.engine.tape.tags import Tag

Kind = tuple[Pool, list[int], list[Block], int, int, float, float]
"""A pool with its free blocks, the bytes of a request, the least key that holds them, from where on a block is split,
and from where on none serves it (``CachingAllocator.too_large``)."""


def run(
    allocator: CachingAllocator,
    events: Iterable[tuple[int, int]],
    streams: Mapping[int, int],
    used_by: Mapping[int, Collection[int]],
    blocks: dict[int, Block],
    kinds: dict[int | tuple[int, int], Kind],
    until: float,
) -> int:
    """Play events (``StepEvents``) on blocks by number. Stops before reserving more than ``until``: events left.
    ``kinds``: what this allocator's requests have been found to be."""
    expandable, left = allocator.settings.expandable_segments, iter(events)
    allocated, peak = allocator.allocated, allocator.peak_allocated
    try:
        for number, asked in left:
            if asked > 0:
                key = (asked, streams[number]) if number in streams else asked
                kind = kinds.get(key)
                if kind is None:
                    kind = kinds[key] = _kind(allocator, asked, streams.get(number, 0))
                pool, keys, free, size, least, splits, too_large = kind
                pool.calls += 1
                at = bisect_left(keys, least)
                while expandable and at + 1 < len(keys) and free[at + 1].grown_size < free[at].grown_size:
                    at += 1
                if at < len(keys) and free[at].size < too_large:
                    block = free[at]
                    if block.size >= splits:
                        block = front(pool, at, size)
                    else:
                        del free[at], keys[at]
                else:
                    if allocator.reserved + size + LARGE_SEGMENT_BYTES > until:
                        pool.calls -= 1  # it is asked again
                        return length_hint(left) + 1
                    allocator.allocated = allocated
                    block = allocator.extended(pool, size)
                    if block.size >= splits:
                        pool.insert(block.cut(size))
                block.state = USED
                allocated += block.size
                peak = allocated if allocated > peak else peak  # a call of ``max`` takes as long as all of a split
                blocks[number] = block
            elif number in used_by:
                allocator.allocated = allocated
                allocator.free(blocks.pop(number), used_by[number])
                allocated = allocator.allocated
            else:
                block = blocks.pop(number)
                allocated -= block.size
                give_back(block)
    finally:
        allocator.allocated, allocator.peak_allocated = allocated, peak
    return 0


def _kind(allocator: CachingAllocator, size: int, stream: int) -> Kind:
    size = allocator.settings.round_size(size)
    pool = allocator.pool(size <= SMALL_BYTES, stream)
    splits, too_large = size + allocator.least_rest(pool, size), allocator.too_large(size)
    return pool, pool.keys, pool.free, size, size * ADDRESSES, splits, too_large


NOTHING: Mapping[int, int] = MappingProxyType({})
NOBODY: Mapping[int, tuple[int, ...]] = MappingProxyType({})
EMPTY_CACHE = "empty_cache"
"""The mark where a trainer gives cached segments back."""
DONE = "done "
"""The mark, with a stream's number behind it, where the stream is known to have come so far: ``done 1``; or, with a
count behind that, so far that it has still to do with so many of the blocks that were freed last: ``done 1 2``."""
ELSEWHERE = "elsewhere "
"""Before a mark: it holds on other ranks than a node's first, which do not get where that one does."""
CONSTRUCTED = "constructed"
"""The mark where models, buffers and optimizers are made, and what their making took is let go of."""
_LAST_STEP = ""
_SIZE = itemgetter(1)


class StepEvents(NamedTuple):
    """Allocations and frees of some steps in their order; the last step starts at ``start``."""

    events: tuple[tuple[int, int], ...]
    """(number of a storage, its bytes, negative where it is freed)."""
    start: int
    streams: Mapping[int, int] = NOTHING
    """Stream of a storage, by its number; 0 where it is not there."""
    recorded: Mapping[int, tuple[int, ...]] = NOBODY
    """Other streams that were recorded to use a storage (``record_stream``): it is free once they are done."""
    marks: tuple[tuple[int, str], ...] = ()
    """(position, name): before the event at that position; an instant's name, ``empty_cache`` or ``done 1``."""
    tags: Sequence[Tag] = ()
    """What each storage is, by its number."""

    @property
    def let_go(self) -> int:
        """Bytes that were freed while models were made; 0 where that is not played."""
        end = next((at for at, name in self.marks if name == CONSTRUCTED), 0)
        return -sum(size for _, size in self.events[:end] if size < 0)

    @property
    def sizes(self) -> list[int]:
        """Bytes that come and, negative, that go."""
        return list(map(_SIZE, self.events))

    @property
    def peak(self) -> int:
        """The most bytes alive at once in the last step, as the ledger counts them: without what blocks leave over."""
        return self._peaks[1]

    @property
    def peak_before(self) -> int:
        """The same of the steps before the last."""
        return self._peaks[0]

    @property
    def _peaks(self) -> tuple[int, int]:
        """Both, counted once for the events that were asked for last."""
        for events, tags, start, peaks in _COUNTED:
            if events is self.events and tags is self.tags and start == self.start:
                return peaks
        sizes, start = self.sizes, self.start
        before = sum(sizes[:start])
        most = max(accumulate(sizes[:start]), default=0), before + max(accumulate(sizes[start:]), default=-before)
        _COUNTED.append((self.events, self.tags, start, most))
        return most


_COUNTED: deque[tuple[object, object, int, tuple[int, int]]] = deque(maxlen=1)


def play(recorded: StepEvents, allocator: CachingAllocator) -> None:
    """Hand the events to an allocator; its peaks are those of the last step."""
    Playing(recorded, allocator).run()


class Playing:
    """Events on their way through an allocator."""

    def __init__(self, recorded: StepEvents, allocator: CachingAllocator) -> None:
        self.recorded, self.allocator = recorded, allocator
        self.blocks: dict[int, Block] = {}
        self.streams, self.used_by = dict(recorded.streams), dict(recorded.recorded)
        self.kinds: dict[int | tuple[int, int], Kind] = {}
        self.position = self.before = 0
        """Events played, and the most that steps before the last reserved."""
        self.halts = _halts(recorded)
        self.tried: dict[int, Playing | None] = {}
        """What came of it on other capacities (``figures.runs``)."""

    def run(self, until: float = inf, end: int | None = None) -> None:
        """To the end, or as far as so many events, or until a request might reserve more than so much."""
        end = len(self.recorded.events) if end is None else end
        while self.halts and self.halts[0][0] <= end:
            halt, name = self.halts[0]
            if not self._go(halt, until):
                return
            self.halts.popleft()
            if name == _LAST_STEP:
                self.before = self.allocator.peak_reserved
                self.allocator.reset_peaks()
            elif name == EMPTY_CACHE:
                self.allocator.empty_cache()
            else:
                stream, _, behind = name.removeprefix(DONE).partition(" ")
                self.allocator.stream_done(int(stream), int(behind or 0))
        self._go(end, until)

    def _go(self, end: int, until: float) -> bool:
        events = self.recorded.events[self.position : end]
        left = run(self.allocator, events, self.streams, self.used_by, self.blocks, self.kinds, until)
        self.position = end - left
        return self.position == end

    @property
    def held(self) -> int:
        """The most that was reserved in any step."""
        return max(self.before, self.allocator.peak_reserved)

    @property
    def ended(self) -> bool:
        """All events are played."""
        return self.position == len(self.recorded.events)

    def on(self, capacity: int | None, then: StepEvents | None = None) -> Playing:
        """From here on, or with other events behind these, on an allocator of its own with this capacity."""
        allocator, blocks = self.allocator.copied(capacity, self.blocks)
        other = Playing(then or self.recorded, allocator)
        other.blocks = blocks
        if then is None:
            other.position, other.before, other.halts = self.position, self.before, self.halts.copy()
        return other


def _halts(recorded: StepEvents) -> deque[tuple[int, str]]:
    """Where something else than events happens, in order; the last step starts behind the marks at its position."""
    acting = [mark for mark in recorded.marks if mark[1] == EMPTY_CACHE or mark[1].startswith(DONE)]
    return deque(sorted([*acting, (recorded.start, _LAST_STEP)], key=lambda halt: (halt[0], halt[1] == _LAST_STEP)))


def repeated(recorded: StepEvents) -> StepEvents | None:
    """The last step by itself, to be played again and again; None where it ends something of the step before it, or
    leaves something to the next. What is let go of when all is over is no part of it."""
    events, start = recorded.events[recorded.start :], recorded.start
    made = {number for number, size in events if size > 0}
    end = max((at for at, (number, _) in enumerate(events, start=1) if number in made), default=0)
    events = events[:end]
    left = sum(size for _, size in events)
    if not events or left or any(number not in made for number, _ in events):
        return None
    marks = tuple((at - start, name) for at, name in recorded.marks if start <= at <= start + end)
    return recorded._replace(events=events, start=0, marks=marks)
