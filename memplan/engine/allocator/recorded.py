"""What a real allocator did, played through the simulated one: the two reserved figures, request by request."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memplan.engine.allocator.blocks import Block
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.settings import MIN_BLOCK_BYTES, SMALL_BYTES, Settings

ALLOC, FREE, SEGMENT, RELEASE, OOM = "alloc", "free", "segment", "release", "oom"


class Used(NamedTuple):
    """A block that was in use when the recording began."""

    offset: int
    requested: int
    size: int
    """0 where only what was requested is known."""
    number: int


class Segment(NamedTuple):
    """A segment that was there when the recording began; its blocks from the lowest address on."""

    size: int
    small: bool
    used: tuple[Used, ...]
    stream: int = 0

    def blocks(self, settings: Settings) -> Iterator[tuple[int, int]]:
        """Offset and size of each block; one of unknown size keeps what is too little to be split off."""
        ends = [block.offset for block in self.used[1:]] + [self.size]
        least = MIN_BLOCK_BYTES if self.small or settings.expandable_segments else SMALL_BYTES + 1
        for block, end in zip(self.used, ends, strict=False):
            size = block.size or settings.round_size(block.requested)
            whole = block.size or end - block.offset - size >= least
            yield block.offset, size if whole else end - block.offset


class Action(NamedTuple):
    """One entry of a recording."""

    kind: str
    size: int
    """Bytes; of OOM the card's free bytes, of FREE nothing."""
    number: int = 0
    """Of the block, of ALLOC and FREE; of OOM the bytes asked for."""
    stream: int = 0


class Recording(NamedTuple):
    """Segments at the start, then what happened."""

    segments: Sequence[Segment]
    actions: Sequence[Action]
    settings: Settings = Settings()


class Seen(NamedTuple):
    """After an action of a recording that asks for memory."""

    position: int
    measured: int
    """Bytes of segments that the real allocator had."""
    reserved: int
    """That the simulated one has."""
    allocated: int


def replay(recording: Recording) -> Iterator[Seen]:
    """Play it. A run of releases is the cache given back; an OOM is tried on a card with no more than was free."""
    allocator, blocks = _started(recording)
    measured, releasing = allocator.reserved, False
    for position, (kind, size, number, stream) in enumerate(recording.actions):
        if releasing and kind != RELEASE:
            allocator.empty_cache()
        releasing = kind == RELEASE
        if kind == ALLOC:
            blocks[number] = allocator.malloc(size, stream)
            yield Seen(position, measured, allocator.reserved, allocator.allocated)
        elif kind == FREE:
            if number not in blocks:
                raise ValueError(f"event {position} frees a block that is not there")
            allocator.free(blocks.pop(number))
        elif kind == OOM:
            yield Seen(position, measured, _failed(allocator, number, size, stream), allocator.allocated)
        else:
            measured += size if kind == SEGMENT else -size


def _started(recording: Recording) -> tuple[CachingAllocator, dict[int, Block]]:
    """The allocator as it was, and its blocks by number."""
    allocator, blocks = CachingAllocator(recording.settings), dict[int, Block]()
    for segment in recording.segments:
        pool = allocator.pool(segment.small, segment.stream)
        found = allocator.adopt(pool, segment.size, segment.blocks(recording.settings))
        blocks |= zip((used.number for used in segment.used), found, strict=True)
    return allocator, blocks


def _failed(allocator: CachingAllocator, request: int, free: int, stream: int) -> int:
    """Reserved after a request that must fail; -1 where it does not."""
    allocator.capacity = allocator.reserved + free
    try:
        allocator.free(allocator.malloc(request, stream))
    except OutOfMemory:
        return allocator.reserved
    finally:
        allocator.capacity = None
    return -1
