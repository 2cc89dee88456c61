"""A play on cards of several sizes: it is begun once as far as all are alike, and goes on within each capacity."""

from collections.abc import Collection
from contextlib import suppress

from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.replay import Playing, StepEvents
from memplan.engine.allocator.settings import SMALL_SEGMENT_BYTES, Settings
from memplan.units import round_up

TOLERANCE = 0.005
"""Of the allocated peak: how far above the least capacity ``needs`` may be."""


def beginning(recorded: StepEvents, settings: Settings) -> Playing:
    """Played as far as it runs the same on all cards on which it may run at all."""
    begun = Playing(recorded, CachingAllocator(settings))
    begun.run(_too_little(recorded))
    return begun


def _too_little(recorded: StepEvents) -> int:
    """Segments that cannot hold what is allocated."""
    return round_up(max(recorded.peak, recorded.peak_before), SMALL_SEGMENT_BYTES) - SMALL_SEGMENT_BYTES


def runs(begun: Playing, capacity: int) -> Playing | None:
    """The steps, played within so many bytes of segments; None where they do not run. What held no more on a larger
    card runs here as it did there."""
    if capacity not in begun.tried:
        larger = (each for tried, each in begun.tried.items() if each and each.held <= capacity < tried)
        playing = next(larger, begun).on(capacity)
        with suppress(OutOfMemory):
            playing.run()
        begun.tried[capacity] = playing if playing.ended else None
    return begun.tried[capacity]


def least(recorded: StepEvents, settings: Settings, works: int, begun: Playing | None = None) -> int:
    """The least capacity in which the steps run, by bisection below one in which they do."""
    begun, fails = begun or beginning(recorded, settings), _too_little(recorded)
    near = max(SMALL_SEGMENT_BYTES, int(TOLERANCE * recorded.peak))
    while works - fails > near:
        middle = round_up((fails + works) // 2, SMALL_SEGMENT_BYTES)
        fails, works = (fails, middle) if runs(begun, middle) else (middle, works)
    return works


def endless(begun: Playing) -> CachingAllocator:
    """Behind the steps, on an unlimited card."""
    playing = begun.on(None)
    playing.run()
    return playing.allocator


def all_run(begun: Collection[Playing], capacity: int) -> bool:
    """Whether the steps of all these ranks run within so much."""
    little = max(_too_little(each.recorded) for each in begun)
    return capacity > little and all(runs(each, capacity) for each in begun)
