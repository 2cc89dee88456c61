"""PyTorch's CUDA caching allocator, by size: which segments it reserves for a sequence of allocations and frees.

Rules of ``DeviceCachingAllocator`` (torch 2.13, c10/cuda/CUDACachingAllocator.cpp): a request is rounded up, served
from the smallest free block of its stream that holds it (small and large blocks apart), the rest of that block is split
off, and a freed block merges with its free neighbours. A block that another stream uses is free only once that stream
has come so far. A segment goes back to the driver only when another cannot be had, or when the program says so.
``capacity`` stands for the driver's limit. Kernels' time is not seen: the caller says when a stream is done."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from math import inf

from memplan.engine.allocator.blocks import ADDRESSES, USED, Block, Pool, expand, give_back, unmap_pages
from memplan.engine.allocator.settings import LARGE_SEGMENT_BYTES, MIN_BLOCK_BYTES, SMALL_BYTES, Settings, segment_size

DEFAULT = Settings()


class OutOfMemory(Exception):
    """No segment could be had within the capacity, even after every cached one was given back."""


class CachingAllocator:
    """``malloc`` gives a block, ``free`` takes it back; ``reserved`` and ``allocated`` are as torch reports them."""

    def __init__(self, settings: Settings = DEFAULT, capacity: int | None = None) -> None:
        self.settings, self.capacity = settings, capacity
        self._expandable, self._limit = settings.expandable_segments, settings.max_split_size
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
        block = self._take_free(pool, size) or self.extended(pool, size)
        if block.size - size >= self.least_rest(pool, size):
            pool.insert(block.cut(size))
        block.state = USED
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block, used_by: Collection[int] = ()) -> None:
        """Back to the pool, or, where other streams were recorded to use it, once they are done (``free``)."""
        if block.state != USED or block in self._streams_left:
            raise ValueError("this block is not in use")
        self.allocated -= block.size
        if not used_by:
            give_back(block)
            return
        streams = set(used_by)
        for stream in streams:
            self._waiting.setdefault(stream, []).append(block)
        self._streams_left[block] = len(streams)

    def stream_done(self, stream: int, behind: int = 0) -> None:
        """The stream has come to its end, or so far that it still has to do with the last ``behind`` blocks that were
        freed while it used them: what waited for it alone is free (``process_events``)."""
        waiting = self._waiting.pop(stream, [])
        ready = max(0, len(waiting) - behind)
        if waiting[ready:]:
            self._waiting[stream] = waiting[ready:]
        for block in waiting[:ready]:
            self._streams_left[block] -= 1
            if not self._streams_left[block]:
                del self._streams_left[block]
                give_back(block)

    def empty_cache(self) -> None:
        """Wait for every stream, then give back segments that nothing is in, or, of expandable ones, whole free pages
        wherever they are; those of CUDA graphs stay (``release_cached_blocks``)."""
        for stream in list(self._waiting):
            self.stream_done(stream)
        for pool in self.pools.values():
            for block in () if pool.private else list(pool.free):
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
                gap, rest = rest, rest.cut(start + offset - rest.address)
                pool.insert(gap)
            block, rest = rest, rest.cut(length) if length < rest.size else None
            block.state = USED
            self.allocated += length
            found.append(block)
        if rest is not None:
            pool.insert(rest)
        self.reset_peaks()
        return found

    def copied(self, capacity: int | None, used: Mapping[int, Block]) -> tuple[CachingAllocator, dict[int, Block]]:
        """Another in the same state, on another capacity, and its blocks in use by number; those given are all."""
        other = CachingAllocator(self.settings, capacity)
        other.reserved, other.allocated, other.retries = self.reserved, self.allocated, self.retries
        other.peak_reserved, other.peak_allocated = self.peak_reserved, self.peak_allocated
        other.pools = {key: pool.copied() for key, pool in self.pools.items()}
        pairs = [(pool, other.pools[key]) for key, pool in self.pools.items()]
        pools = dict(pairs)
        twins: dict[Block | None, Block] = {}
        unused = (block for pool in pools for block in chain(pool.free, (block for _, block in pool.unmapped)))
        for block in chain(used.values(), self._streams_left, unused):
            twins[block] = twin = Block(pools[block.pool], block.address, block.size, block.state)
            twin.freed_at = block.freed_at
        for found, twin in twins.items():
            assert found is not None
            twin.prev, twin.next = twins.get(found.prev), twins.get(found.next)
        for pool, own in pairs:
            own.free = [twins[block] for block in pool.free]
            own.unmapped = [(address, twins[block]) for address, block in pool.unmapped]
        other._waiting = {stream: [twins[block] for block in blocks] for stream, blocks in self._waiting.items()}
        other._streams_left = {twins[block]: count for block, count in self._streams_left.items()}
        return other, {number: twins[block] for number, block in used.items()}

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _take_free(self, pool: Pool, size: int) -> Block | None:
        """The smallest that holds ``size``, lowest first; what grows counts as it can become (``get_free_block``)."""
        free = pool.free
        pool.calls += 1
        at = bisect_left(pool.keys, size * ADDRESSES)
        if at == len(free):
            return None
        if self._expandable:
            while at + 1 < len(free) and free[at + 1].grown_size < free[at].grown_size:
                at += 1
        block = free[at]
        if block.size >= self.too_large(size):
            return None
        del free[at], pool.keys[at]
        return block

    def too_large(self, size: int) -> float:
        """From where on a free block does not serve a request: with a max_split_size large ones are not split."""
        if self._limit is None:
            return inf
        return self._limit if size < self._limit else size + LARGE_SEGMENT_BYTES

    def least_rest(self, pool: Pool, size: int) -> float:
        """So much of a block must be left over to be worth one of its own (``should_split``)."""
        if pool.small or self._expandable:
            return MIN_BLOCK_BYTES
        return SMALL_BYTES + 1 if self._limit is None or size < self._limit else inf

    # -- segments -----------------------------------------------------------------------------------------------------

    def extended(self, pool: Pool, size: int) -> Block:
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
        """With a max_split_size: give back a block above it, or the largest (``release_available_cached_blocks``)."""
        limit = self.settings.max_split_size
        if limit is None or self.settings.expandable_segments:
            return False
        wanted, released = max(size, limit), 0
        at = pool.at_least(wanted)
        if at < len(pool.free):
            self._release(pool, pool.free[at])
            return True
        while pool.free and released < wanted and pool.free[-1].size >= limit:
            released += pool.free[-1].size
            self._release(pool, pool.free[-1])
        return released >= wanted

    def _collect(self, threshold: int) -> None:
        """Give back whole free segments of large blocks that have been idle for longer than such segments have on
        average, again and again, until reserved is below the threshold (``garbage_collect_cached_blocks``)."""
        pools = [pool for (_, small, _), pool in self.pools.items() if not small and not pool.private]
        target = self.reserved - threshold
        while target > 0:
            idle = [(pool, block) for pool in pools for block in pool.free if block.whole]
            if not idle:
                return
            average = sum(pool.calls - block.freed_at for pool, block in idle) / len(idle)
            for pool, block in idle:
                if pool.calls - block.freed_at >= average:
                    target -= block.size
                    self._release(pool, block)
