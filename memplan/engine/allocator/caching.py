"""PyTorch's CUDA caching allocator, by size: which segments it reserves for a sequence of allocations and frees.

Rules of ``DeviceCachingAllocator`` (torch 2.13, c10/cuda/CUDACachingAllocator.cpp): a request is rounded up, served
from the smallest free block of its stream that holds it (small and large blocks apart), the rest of that block is split
off, and a freed block merges with its free neighbours. A block that another stream uses is free only once that stream
has come so far. A segment goes back to the driver only when another cannot be had, or when the program says so.
``capacity`` stands for the driver's limit. Kernels' time is not seen: the caller says when a stream is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from memplan.engine.allocator.blocks import Block, Pool
from memplan.engine.allocator.expandable import expand, unmap_pages
from memplan.engine.allocator.settings import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    Settings,
    segment_size,
)

DEFAULT = Settings()


class OutOfMemory(Exception):
    """No segment could be had within the capacity, even after every cached one was given back."""


class CachingAllocator:
    """``malloc`` gives a block, ``free`` takes it back; ``reserved`` and ``allocated`` are as torch reports them."""

    def __init__(self, settings: Settings = DEFAULT, capacity: int | None = None) -> None:
        self.settings, self.capacity = settings, capacity
        self.pools: dict[tuple[int, bool, int], Pool] = {}
        self.reserved = self.allocated = 0
        self.peak_reserved = self.peak_allocated = 0
        self.retries = 0
        self._waiting: dict[int, list[Block]] = {}
        self._streams_left: dict[Block, int] = {}

    def reset_peaks(self) -> None:
        """Peaks start again from what is there now (``resetPeakStats``)."""
        self.peak_reserved, self.peak_allocated = self.reserved, self.allocated

    def pool(self, small: bool, stream: int = 0, graph: int = 0) -> Pool:
        """Of a stream, and of a CUDA graph where ``graph`` numbers one."""
        found = self.pools.get((stream, small, graph))
        if found is None:
            found = self.pools[stream, small, graph] = Pool(small, private=graph != 0)
        return found

    def malloc(self, request: int, stream: int = 0, graph: int = 0) -> Block:
        """A free block, else a new segment, else one after giving cached ones back (``malloc``)."""
        size = self.settings.round_size(request)
        pool = self.pool(size <= SMALL_BYTES, stream, graph)
        block = self._take_free(pool, size) or self._new(pool, size)
        self._split(pool, block, size)
        block.allocated = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block, used_by: Iterable[int] = ()) -> None:
        """Back to the pool, or, where other streams were recorded to use it, once they are done (``free``)."""
        if not block.allocated or block in self._streams_left:
            raise ValueError("this block is not in use")
        self.allocated -= block.size
        streams = set(used_by)
        for stream in streams:
            self._waiting.setdefault(stream, []).append(block)
        if streams:
            self._streams_left[block] = len(streams)
        else:
            self._give_back(block)

    def stream_done(self, stream: int) -> None:
        """The stream has come to its end: what waited for it alone is free (``process_events``)."""
        for block in self._waiting.pop(stream, ()):
            self._streams_left[block] -= 1
            if not self._streams_left[block]:
                del self._streams_left[block]
                self._give_back(block)

    def empty_cache(self) -> None:
        """Wait for every stream, then give back segments that nothing is in, or, of expandable ones, whole free pages
        wherever they are; those of CUDA graphs stay (``release_cached_blocks``).
        """
        for stream in list(self._waiting):
            self.stream_done(stream)
        for pool in self.pools.values():
            for _, _, block in () if pool.private else list(pool.free):
                if self.settings.expandable_segments:
                    self.reserved -= unmap_pages(pool, block)
                elif block.whole:
                    self._release(pool, block)

    def adopt(self, pool: Pool, size: int, used: Iterable[tuple[int, int]]) -> list[Block]:
        """A segment that was there before, with blocks in use: their offsets and sizes, from the lowest on."""
        rest: Block | None = self._extend(pool, size) if self.settings.expandable_segments else pool.segment(size)
        assert rest is not None
        if not self.settings.expandable_segments:
            self._take_from_driver(size)
        found, start = [], rest.address + rest.size - size
        for offset, length in used:
            if rest is None or start + offset < rest.address or offset + length > size:
                raise ValueError("blocks overlap, or lie outside their segment")
            if start + offset > rest.address:
                gap, rest = rest, self._cut(rest, start + offset - rest.address)
                pool.insert(gap)
            block, rest = rest, self._cut(rest, length) if length < rest.size else None
            block.allocated = True
            self.allocated += length
            found.append(block)
        if rest is not None:
            pool.insert(rest)
        self.reset_peaks()
        return found

    # -- blocks -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _cut(block: Block, size: int) -> Block:
        """What is behind the first ``size`` bytes, which the block keeps."""
        rest = Block(block.pool, block.address + size, block.size - size)
        rest.insert_after(block)
        block.size = size
        return rest

    def _give_back(self, block: Block) -> None:
        """Merge with the free neighbours (``free_block``)."""
        block.allocated = False
        block.merge(block.prev)
        block.merge(block.next)
        block.pool.insert(block)

    def _take_free(self, pool: Pool, size: int) -> Block | None:
        """The smallest that holds ``size``, at the lowest address; what can still grow counts as large as it can
        become (``get_free_block``).
        """
        free, limit = pool.free, self.settings.max_split_size
        pool.calls += 1
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        if self.settings.expandable_segments:
            while at + 1 < len(free) and free[at + 1][2].grown_size < free[at][2].grown_size:
                at += 1
        block = free[at][2]
        if limit is not None and size < limit <= block.size:
            return None
        if limit is not None and size >= limit and block.size >= size + LARGE_SEGMENT_BYTES:
            return None
        del free[at]
        return block

    def _split(self, pool: Pool, block: Block, size: int) -> None:
        """Keep ``size`` of the block; the rest is free again if it is worth a block (``should_split``)."""
        rest, limit = block.size - size, self.settings.max_split_size
        if pool.small or self.settings.expandable_segments:
            worth = rest >= MIN_BLOCK_BYTES
        else:
            worth = rest > SMALL_BYTES and (limit is None or size < limit)
        if worth:
            pool.insert(self._cut(block, size))

    # -- segments -----------------------------------------------------------------------------------------------------

    def _new(self, pool: Pool, size: int) -> Block:
        """A block of a new segment, in the end after giving back what is cached."""
        if self.settings.collect_above is not None:
            self._collect(self.settings.collect_above)
        block = self._extend(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._extend(pool, size)
        if block is None:
            self.retries += 1
            self.empty_cache()
            block = self._extend(pool, size)
        if block is None:
            raise OutOfMemory(f"{size} bytes beside {self.allocated} allocated and {self.reserved} reserved")
        return block

    def _take_from_driver(self, size: int) -> bool:
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _extend(self, pool: Pool, size: int) -> Block | None:
        """A new segment, or more pages of the expandable one; None where the driver has no more (``alloc_block``)."""
        if self.settings.expandable_segments:
            return expand(pool, size, self._take_from_driver)
        whole = segment_size(size)
        return pool.segment(whole) if self._take_from_driver(whole) else None

    def _release(self, pool: Pool, block: Block) -> None:
        pool.remove(block)
        self.reserved -= block.size

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With a max_split_size: give back a block above it that would do, or the largest ones until their sum does
        (``release_available_cached_blocks``).
        """
        limit = self.settings.max_split_size
        if limit is None or self.settings.expandable_segments:
            return False
        wanted, released = max(size, limit), 0
        at = bisect_left(pool.free, (wanted,))
        if at < len(pool.free):
            self._release(pool, pool.free[at][2])
            return True
        while pool.free and released < wanted and pool.free[-1][0] >= limit:
            released += pool.free[-1][0]
            self._release(pool, pool.free[-1][2])
        return released >= wanted

    def _collect(self, threshold: int) -> None:
        """Give back whole free segments of large blocks that have been idle for longer than such segments have on
        average, again and again, until reserved is below the threshold (``garbage_collect_cached_blocks``).
        """
        pools = [pool for (_, small, _), pool in self.pools.items() if not small and not pool.private]
        target = self.reserved - threshold
        while target > 0:
            idle = [(pool, block) for pool in pools for _, _, block in pool.free if block.whole]
            if not idle:
                return
            average = sum(pool.calls - block.freed_at for pool, block in idle) / len(idle)
            for pool, block in idle:
                if pool.calls - block.freed_at >= average:
                    target -= block.size
                    self._release(pool, block)
