"""The caching allocator over steps of changing shapes: what is reserved grows with what they leave behind.

Every step is played in one allocator, on the weights and states of the first. Steps are recorded at a few lengths; the
sizes of one between two of them lie on the line between theirs where both make the same tensors, for every size is
affine in the length then, but for the rounding to 512 bytes; else the step is played at the longer one."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from memplan.drawn import Played
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.figures import AGREES
from memplan.engine.allocator.replay import StepEvents, play, repeated
from memplan.engine.allocator.settings import settings_of
from memplan.reporting import totals_of
from memplan.spec.recipe import Recipe
from memplan.units import GPU_ROUNDING, round_up

MOST_RECORDED, MOST_PLAYED = 120_000, 20_000_000
"""Events that are recorded, and played, in all: a second, and half a minute."""
RECORDED = 3, 8
"""The fewest and the most lengths that are recorded."""
UNPLAYED = "changing lengths are not played through the allocator for this job: fragmentation is not in the figures"


def played(recipe_of: Callable[[int], Recipe], lengths: Sequence[int]) -> tuple[Played | None, str]:
    """Steps of these lengths, one after the other; or why there are none."""
    recipe = recipe_of(lengths[0])
    recorded = step_events(recipe)
    first = None if recorded is None else repeated(recorded)
    if recorded is None or first is None:
        return None, UNPLAYED
    if abs(recorded.peak - totals_of(recipe).allocated.expected) > AGREES * recorded.peak:
        return None, UNPLAYED
    steps = _Steps(recipe_of, first, lengths)
    count = max(1, min(len(lengths), MOST_PLAYED // len(first.events)))
    return _play(before(recorded), map(steps.at, lengths[:count]), _allocator(recipe)), ""


def before(recorded: StepEvents) -> StepEvents:
    """What comes before the last step."""
    marks = tuple(mark for mark in recorded.marks if mark[0] < recorded.start)
    return recorded._replace(events=recorded.events[: recorded.start], marks=marks)


def _allocator(recipe: Recipe) -> CachingAllocator:
    """As the job sets it, on what of the card is left for it beside what lies outside PyTorch."""
    conf, gpu = recipe.hardware.allocator, recipe.hardware.gpu
    if gpu is None:
        return CachingAllocator(settings_of(conf))
    room = max(0, gpu.usable_bytes - totals_of(recipe).outside.expected)
    return CachingAllocator(settings_of(conf, gpu.usable_bytes), room)


class _Steps:
    """A later step, by length."""

    def __init__(self, recipe_of: Callable[[int], Recipe], first: StepEvents, lengths: Sequence[int]) -> None:
        self.recipe_of = recipe_of
        count = min(max(MOST_RECORDED // len(first.events), RECORDED[0]), RECORDED[1])
        self.anchors = sorted({lengths[0], *_spread(sorted(set(lengths)), count)})
        self.recorded: dict[int, StepEvents] = {lengths[0]: first}

    def _record(self, length: int) -> StepEvents:
        if length not in self.recorded:
            found = step_events(self.recipe_of(length))
            step = found and repeated(found)
            assert step is not None, "a job is played at every length, or at none"
            self.recorded[length] = step
        return self.recorded[length]

    def at(self, length: int) -> StepEvents:
        """Of a length that is no longer than the longest."""
        at = bisect_left(self.anchors, length)
        above = self._record(self.anchors[at])
        if self.anchors[at] == length or not at:
            return above
        low, high = self.anchors[at - 1], self.anchors[at]
        return between(self._record(low), above, (length - low) / (high - low)) or above


def _spread(lengths: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly spaced in their order, the shortest and the longest among them."""
    if len(lengths) <= count:
        return list(lengths)
    return [lengths[round(i * (len(lengths) - 1) / (count - 1))] for i in range(count)]


def between(low: StepEvents, high: StepEvents, part: float) -> StepEvents | None:
    """The step that lies ``part`` of the way from one to the other; None where they make other tensors."""
    start, other = low.events[0][0], high.events[0][0]
    if [(a - start, x > 0) for a, x in low.events] != [(b - other, y > 0) for b, y in high.events]:
        return None
    sizes = (abs(x) + round((abs(y) - abs(x)) * part) for (_, x), (_, y) in zip(low.events, high.events, strict=True))
    whole = (round_up(size, GPU_ROUNDING) for size in sizes)
    events = ((number, size if y > 0 else -size) for (number, y), size in zip(high.events, whole, strict=True))
    return high._replace(events=tuple(events))


def _play(first: StepEvents, steps: Iterable[StepEvents], allocator: CachingAllocator) -> Played:
    """The steps after what comes before the last of the recorded ones."""
    reserved: list[int] = []
    most, died = 0, False
    try:
        play(first, allocator)
        for step in steps:
            play(step, allocator)
            reserved.append(allocator.reserved)
            most = max(most, allocator.peak_allocated)
    except OutOfMemory:
        died = True
    return Played(len(reserved), most, tuple(reserved), allocator.retries, died)
