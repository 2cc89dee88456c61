"""Segments that grow: address space to which pages are mapped, and from which they are taken again.

Source: ``expandable_segments`` of torch 2.13, c10/cuda/CUDACachingAllocator.cpp."""

from collections.abc import Callable

from memplan.engine.allocator.blocks import ADDRESS_SPACE_BYTES, FREE, UNMAPPED, USED, Block, Pool
from memplan.units import round_up

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
