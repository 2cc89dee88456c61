"""The caching allocator over steps of changing shapes: what is reserved grows with what they leave behind.

Every step is played in one allocator, on the weights and states of the first. Steps are recorded at a few lengths; the
sizes of one between two of them lie on the line between theirs where both make the same tensors, for every size is
affine in the length then, but for the rounding to 512 bytes; else the step is played at the longer one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from memplan.drawn import Played
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.events import StepEvents, step_events
from memplan.reporting import totals_of
from memplan.spec.recipe import Recipe
from memplan.units import GPU_ROUNDING, round_up

MOST_RECORDED, MOST_PLAYED = 120_000, 20_000_000
"""Events that are recorded, and played, in all: a second, and half a minute."""
RECORDED = 3, 8
"""The fewest and the most lengths that are recorded."""
AGREES = 0.02
"""Of the peak: a play that is further from the ledger is of another step, and is not shown."""
UNPLAYED = "changing lengths are not played through the allocator for this job: fragmentation is not in the figures"

Events: TypeAlias = Sequence[tuple[int, int]]
"""(number of a storage, its bytes, negative where it is freed)."""


def played(recipe_of: Callable[[int], Recipe], lengths: Sequence[int]) -> tuple[Played | None, str]:
    """Steps of these lengths, one after the other; or why there are none."""
    recipe = recipe_of(lengths[0])
    first = step_events(recipe)
    if first is None or abs(first.peak - totals_of(recipe).allocated.expected) > AGREES * first.peak:
        return None, UNPLAYED
    steps = _Steps(recipe_of, last_step(first), lengths)
    count = max(1, min(len(lengths), MOST_PLAYED // (len(first.events) - first.start)))
    return _play(first.events[: first.start], map(steps.at, lengths[:count]), _allocator(recipe)), ""


def last_step(recorded: StepEvents) -> Events:
    """The last of the steps: what it makes, and the end of that. What was there before outlives it."""
    events = recorded.events[recorded.start :]
    made = {number for number, size in events if size > 0}
    return [event for event in events if event[0] in made]


def _allocator(recipe: Recipe) -> CachingAllocator:
    """As the job sets it, on what of the card is left for it beside what lies outside PyTorch."""
    hardware, capacity = recipe.hardware, None
    if hardware.gpu is not None:
        _, _, reserved, device = totals_of(recipe)
        capacity = max(0, hardware.gpu.usable_bytes - (device.expected - reserved.expected))
    return CachingAllocator(expandable_segments=hardware.expandable_segments, capacity=capacity)


class _Steps:
    """The events of a later step, by length."""

    def __init__(self, recipe_of: Callable[[int], Recipe], first: Events, lengths: Sequence[int]) -> None:
        self.recipe_of = recipe_of
        count = min(max(MOST_RECORDED // len(first), RECORDED[0]), RECORDED[1])
        self.anchors = sorted({lengths[0], *_spread(sorted(set(lengths)), count)})
        self.recorded: dict[int, Events] = {lengths[0]: first}

    def _record(self, length: int) -> Events:
        if length not in self.recorded:
            found = step_events(self.recipe_of(length))
            assert found is not None, "a job is played at every length, or at none"
            self.recorded[length] = last_step(found)
        return self.recorded[length]

    def at(self, length: int) -> Events:
        """Of a length that is no longer than the longest."""
        at = bisect_left(self.anchors, length)
        above = self._record(self.anchors[at])
        if self.anchors[at] == length or not at:
            return above
        low, high = self.anchors[at - 1], self.anchors[at]
        return list(between(self._record(low), above, (length - low) / (high - low))) or above


def _spread(lengths: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly spaced in their order, the shortest and the longest among them."""
    if len(lengths) <= count:
        return list(lengths)
    return [lengths[round(i * (len(lengths) - 1) / (count - 1))] for i in range(count)]


def between(low: Events, high: Events, part: float) -> Iterator[tuple[int, int]]:
    """The events that lie ``part`` of the way from one step to the other; nothing where they make other tensors."""
    if len(low) != len(high):
        return
    start, other = low[0][0], high[0][0]
    if any(a - start != b - other or (x > 0) != (y > 0) for (a, x), (b, y) in zip(low, high, strict=True)):
        return
    for (_, x), (number, y) in zip(low, high, strict=True):
        size = round_up(abs(x) + round((abs(y) - abs(x)) * part), GPU_ROUNDING)
        yield number, size if x > 0 else -size


def _play(before: Events, steps: Iterable[Events], allocator: CachingAllocator) -> Played:
    """The steps after what comes before the last of the recorded ones."""
    reserved: list[int] = []
    most, died = 0, False
    try:
        _hand(before, allocator)
        for events in steps:
            allocator.reset_peaks()
            _hand(events, allocator)
            reserved.append(allocator.reserved)
            most = max(most, allocator.peak_allocated)
    except OutOfMemory:
        died = True
    return Played(len(reserved), most, tuple(reserved), allocator.retries, died)


def _hand(events: Events, allocator: CachingAllocator) -> None:
    """Hand events to an allocator; what is not freed in them stays."""
    blocks = {}
    for number, size in events:
        if size > 0:
            blocks[number] = allocator.malloc(size)
        else:
            allocator.free(blocks.pop(number))
