"""Many requests at once: the rules of ``caching.py`` in one loop, in which a play of fifty thousand events spends its
time.

What is rare is left to the allocator: new segments and blocks that other streams use. Tests compare both."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from operator import length_hint

from memplan.engine.allocator.blocks import ADDRESSES, USED, Block, Pool, front, give_back
from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.allocator.settings import LARGE_SEGMENT_BYTES, SMALL_BYTES

Kind = tuple[Pool, list[int], list[Block], int, int, float, float]
"""A pool with its free blocks, the bytes of a request, the least key that holds them, from where on a block is split,
and from where on none serves it (``CachingAllocator.too_large``)."""


def run(
    allocator: CachingAllocator,
    events: Iterable[tuple[int, int]],
    streams: Mapping[int, int],
    used_by: Mapping[int, Collection[int]],
    blocks: dict[int, Block],
    until: float,
) -> int:
    """Play events (``StepEvents``) on blocks by number. Stops before a request that might reserve more than ``until``:
    how many events are left."""
    kinds: dict[int | tuple[int, int], Kind] = {}
    expandable, left = allocator.settings.expandable_segments, iter(events)
    allocated, peak, streams, used_by = allocator.allocated, allocator.peak_allocated, dict(streams), dict(used_by)
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
