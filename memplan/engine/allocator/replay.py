"""Events of a step, and what the caching allocator makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from memplan.engine.allocator.blocks import Block
from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.tape.tags import Tag

NOTHING: Mapping[int, int] = MappingProxyType({})
NOBODY: Mapping[int, tuple[int, ...]] = MappingProxyType({})
EMPTY_CACHE = "empty_cache"
"""The mark where a trainer gives cached segments back."""
DONE = "done "
"""The mark, with a stream's number behind it, where the stream is known to have come so far: ``done 1``."""
_LAST_STEP = ""


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
    def peak(self) -> int:
        """The most bytes alive at once in the last step, as the ledger counts them: without what blocks leave over."""
        live, peak = 0, 0
        for position, (_, size) in enumerate(self.events):
            live += size
            if position >= self.start:
                peak = max(peak, live)
        return peak


def play(recorded: StepEvents, allocator: CachingAllocator) -> None:
    """Hand the events to an allocator; its peaks are those of the last step."""
    blocks: dict[int, Block] = {}
    position = 0
    for halt, name in _halts(recorded):
        _between(recorded, position, halt, allocator, blocks)
        position = halt
        if name == _LAST_STEP:
            allocator.reset_peaks()
        elif name == EMPTY_CACHE:
            allocator.empty_cache()
        else:
            allocator.stream_done(int(name.removeprefix(DONE)))
    _between(recorded, position, len(recorded.events), allocator, blocks)


def _halts(recorded: StepEvents) -> list[tuple[int, str]]:
    """Where something else than events happens, in order; the last step starts behind the marks at its position."""
    acting = [mark for mark in recorded.marks if mark[1] == EMPTY_CACHE or mark[1].startswith(DONE)]
    return sorted([*acting, (recorded.start, _LAST_STEP)], key=lambda halt: (halt[0], halt[1] == _LAST_STEP))


def _between(recorded: StepEvents, first: int, end: int, allocator: CachingAllocator, blocks: dict[int, Block]) -> None:
    malloc, free, streams, others = allocator.malloc, allocator.free, recorded.streams, recorded.recorded
    for number, size in recorded.events[first:end]:
        if size > 0:
            blocks[number] = malloc(size, streams.get(number, 0))
        else:
            free(blocks.pop(number), others.get(number, ()))
