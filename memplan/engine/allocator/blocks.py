"""Blocks and pools of the caching allocator.

Source: ``Block`` and ``BlockPool`` of torch 2.13, c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from memplan.engine.allocator.settings import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES

ADDRESS_SPACE_BYTES = LARGE_SEGMENT_BYTES << 30
"""Of an expandable segment; PyTorch takes 9/8 of the card, and another segment where that is used up."""


class Block:
    """A stretch of a segment, in use, free, or (in an expandable segment) without memory behind it."""

    __slots__ = ("address", "allocated", "freed_at", "mapped", "next", "pool", "prev", "size")

    def __init__(self, pool: Pool, address: int, size: int, mapped: bool = True) -> None:
        self.pool, self.address, self.size, self.mapped = pool, address, size, mapped
        self.allocated = False
        self.freed_at = 0
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def grown_size(self) -> int:
        """What a free block can become with the unmapped space behind it."""
        behind = self.next
        return self.size + (behind.size if behind is not None and not behind.mapped else 0)

    @property
    def whole(self) -> bool:
        """It is its segment."""
        return self.prev is None and self.next is None

    def insert_after(self, before: Block) -> None:
        """Stand between ``before`` and what followed it."""
        self.prev, self.next = before, before.next
        if self.next:
            self.next.prev = self
        before.next = self

    def merge(self, other: Block | None) -> None:
        """Take a neighbour in, if it is not in use either (``try_merge_blocks``)."""
        if other is None or other.allocated or other.mapped != self.mapped:
            return
        self.pool.remove(other)
        self.size += other.size
        if self.prev is other:
            self.address, self.prev = other.address, other.prev
            if self.prev:
                self.prev.next = self
        else:
            self.next = other.next
            if self.next:
                self.next.prev = self


class Pool:
    """Small or large blocks of one stream: those that are free, by size and then address, and the unmapped ones by
    address.
    """

    __slots__ = ("calls", "end", "free", "page", "private", "small", "unmapped")

    def __init__(self, small: bool, private: bool = False) -> None:
        self.small, self.private = small, private
        self.page = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        self.end = self.calls = 0
        self.free: list[tuple[int, int, Block]] = []
        self.unmapped: list[tuple[int, Block]] = []

    def insert(self, block: Block) -> None:
        """Enter a block that is not in use."""
        if block.mapped:
            block.freed_at = self.calls
            insort(self.free, (block.size, block.address, block))
        else:
            insort(self.unmapped, (block.address, block))

    def remove(self, block: Block) -> None:
        """Take such a block out."""
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, (block.address,))]

    def segment(self, size: int, mapped: bool = True) -> Block:
        """A new segment behind all others, as one block that is in no list."""
        block = Block(self, self.end, size, mapped)
        self.end += size
        return block
