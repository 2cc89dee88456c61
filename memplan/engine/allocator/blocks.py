"""Blocks and pools of the caching allocator.

Source: ``Block`` and ``BlockPool`` of torch 2.13, c10/cuda/CUDACachingAllocator.cpp.

Segments that grow: address space to which pages are mapped, and from which they are taken again.

Source: ``expandable_segments`` of torch 2.13, c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from memplan.engine.allocator.settings import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from memplan.units import round_up

ADDRESS_SPACE_BYTES = LARGE_SEGMENT_BYTES << 30
"""Of an expandable segment; PyTorch takes 9/8 of the card, and another segment where that is used up."""
FREE, USED, UNMAPPED = range(3)
"""What a block is: free, in use, or (in an expandable segment) without memory behind it."""
ADDRESSES = 1 << 80
"""More than there are: ``size * ADDRESSES + address`` orders blocks by size and then by address."""


class Block:
    """A stretch of a segment."""

    __slots__ = ("address", "freed_at", "next", "pool", "prev", "size", "state")

    def __init__(self, pool: Pool, address: int, size: int, state: int = FREE) -> None:
        self.pool, self.address, self.size, self.state = pool, address, size, state
        self.prev: Block | None = None
        self.next: Block | None = None
        self.freed_at = 0
        """The pool's calls when it came to be free."""

    @property
    def grown_size(self) -> int:
        """What a free block can become with the unmapped space behind it."""
        behind = self.next
        return self.size + (behind.size if behind is not None and behind.state == UNMAPPED else 0)

    @property
    def whole(self) -> bool:
        """It is its segment."""
        return self.prev is None and self.next is None

    def cut(self, size: int, state: int = FREE) -> Block:
        """What is behind the first ``size`` bytes, which it keeps; in no list."""
        rest = Block(self.pool, self.address + size, self.size - size, state)
        self.size = size
        behind = rest.next = self.next
        if behind is not None:
            behind.prev = rest
        self.next, rest.prev = rest, self
        return rest

    def merge(self) -> None:
        """Take in both neighbours, each if it is as this one is, and not in use (``try_merge_blocks``)."""
        other = self.prev
        if other is not None and other.state == self.state:
            other.pool.remove(other)
            self.size += other.size
            self.address = other.address
            self.prev = other = other.prev
            if other is not None:
                other.next = self
        other = self.next
        if other is not None and other.state == self.state:
            other.pool.remove(other)
            self.size += other.size
            self.next = other = other.next
            if other is not None:
                other.prev = self


class Pool:
    """Small or large blocks of one stream: free ones by size and then address, unmapped ones by address."""

    __slots__ = ("calls", "end", "free", "keys", "page", "private", "small", "spare", "unmapped")

    def __init__(self, small: bool, private: bool = False) -> None:
        self.small, self.private = small, private
        self.page = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        self.end = self.calls = 0
        self.keys: list[int] = []
        """Of the free blocks, in order; ``free`` are the blocks."""
        self.free: list[Block] = []
        self.unmapped: list[tuple[int, Block]] = []
        self.spare: list[Block] = []
        """Objects of blocks that are part of others now, for ``front``."""

    def insert(self, block: Block) -> None:
        """Enter a block that is not in use."""
        if block.state == UNMAPPED:
            insort(self.unmapped, (block.address, block))
            return
        block.freed_at = self.calls
        key = block.size * ADDRESSES + block.address
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.free.insert(at, block)

    def remove(self, block: Block) -> None:
        """Take such a block out."""
        if block.state == UNMAPPED:
            del self.unmapped[bisect_left(self.unmapped, (block.address,))]
            return
        at = bisect_left(self.keys, block.size * ADDRESSES + block.address)
        del self.keys[at], self.free[at]

    def at_least(self, size: int) -> int:
        """The position of the first free block that holds so much."""
        return bisect_left(self.keys, size * ADDRESSES)

    def copied(self) -> Pool:
        """Another of its kind, without its blocks."""
        other = Pool(self.small, self.private)
        other.calls, other.end, other.keys = self.calls, self.end, self.keys[:]
        return other

    def segment(self, size: int, state: int = FREE) -> Block:
        """A new segment behind all others, as one block that is in no list."""
        block = Block(self, self.end, size, state)
        self.end += size
        return block


def front(pool: Pool, at: int, size: int) -> Block:
    """The first ``size`` bytes of the free block at a position; the rest stays free, mostly where it stands."""
    keys, rest = pool.keys, pool.free[at]
    if pool.spare:
        block = pool.spare.pop()
        block.address, block.size, block.state = rest.address, size, USED
    else:
        block = Block(pool, rest.address, size, USED)
    before, block.next = rest.prev, rest
    block.prev, rest.prev = before, block
    if before is not None:
        before.next = block
    rest.size = left = rest.size - size
    rest.address = address = rest.address + size
    rest.freed_at = pool.calls
    key = left * ADDRESSES + address
    if not at or keys[at - 1] < key:
        keys[at] = key
    else:
        del keys[at], pool.free[at]
        at = bisect_left(keys, key, 0, at)
        keys.insert(at, key)
        pool.free.insert(at, rest)
    return block


def give_back(block: Block) -> None:
    """Free, and one with its free neighbours (``free_block``): ``merge`` and ``insert`` in one, in which what is free
    already stays, where it can, at its place in the order."""
    pool, size, address, before, behind = block.pool, block.size, block.address, block.prev, block.next
    keys, free = pool.keys, pool.free
    block.state, block.freed_at = FREE, pool.calls
    at = -1
    if behind is not None and behind.state == FREE:
        at = bisect_left(keys, behind.size * ADDRESSES + behind.address)
        size += behind.size
        pool.spare.append(behind)
        block.next = behind = behind.next
        if behind is not None:
            behind.prev = block
    if before is not None and before.state == FREE:
        if at >= 0:
            del keys[at], free[at]
        address = before.address
        at = bisect_left(keys, before.size * ADDRESSES + address)
        size += before.size
        pool.spare.append(before)
        block.prev = before = before.prev
        if before is not None:
            before.next = block
    block.size, block.address = size, address
    key = size * ADDRESSES + address
    if at >= 0:
        if at + 1 == len(keys) or key < keys[at + 1]:
            keys[at], free[at] = key, block
            return
        del keys[at], free[at]
        at = bisect_left(keys, key, at)
    else:
        at = bisect_left(keys, key)
    keys.insert(at, key)
    free.insert(at, block)


Driver = Callable[[int], bool]
"""Asks the driver for bytes; False where it has no more."""


def expand(pool: Pool, size: int, driver: Driver) -> Block | None:
    """Map pages behind the first stretch of free and unmapped blocks that is long enough
    (``try_allocate_expandable_block``). None where memory ends; what was mapped by then stays, free."""
    block = stretch(pool, size)
    if block.state == UNMAPPED and not map_pages(pool, block, min(block.size, size), driver):
        return None
    while block.size < size:
        follower = block.next
        assert follower is not None
        if not map_pages(pool, follower, min(size - block.size, follower.size), driver):
            return None
        block = follower
    pool.remove(block)
    return block


def stretch(pool: Pool, size: int) -> Block:
    """Where to map: the lowest unmapped block, with the free one before it (``find_expandable_block``)."""
    for _, unmapped in pool.unmapped:
        start = unmapped.prev if unmapped.prev and unmapped.prev.state != USED else unmapped
        room, block = 0, start
        while room < size and block.state != USED:
            room += block.size
            if block.next is None:
                break
            block = block.next
        if room >= size:
            return start
    segment = pool.segment(max(ADDRESS_SPACE_BYTES, round_up(size, pool.page)), UNMAPPED)
    pool.insert(segment)
    return segment


def map_pages(pool: Pool, block: Block, size: int, driver: Driver) -> bool:
    """Put memory behind the first ``size`` bytes, in whole pages (``map_block``)."""
    size = round_up(size, pool.page)
    if not driver(size):
        return False
    pool.remove(block)
    if size < block.size:
        pool.insert(block.cut(size, UNMAPPED))
    block.state = FREE
    block.merge()
    pool.insert(block)
    return True


def unmap_pages(pool: Pool, block: Block) -> int:
    """Bytes of the whole pages inside a free block, which are given back (``unmap_block``)."""
    first = round_up(block.address, pool.page)
    size = (block.address + block.size) // pool.page * pool.page - first
    if size <= 0:
        return 0
    pool.remove(block)
    if block.address < first:
        head, block = block, block.cut(first - block.address)
        pool.insert(head)
    if size < block.size:
        pool.insert(block.cut(size))
    block.state = UNMAPPED
    block.merge()
    pool.insert(block)
    return size
