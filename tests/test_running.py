"""Proves that many requests at once do what they do one by one, and that a copy of the allocator goes on as it."""

from collections.abc import Iterable, Mapping

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.engine.allocator import replay
from memplan.engine.allocator.blocks import Block
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.replay import Playing, StepEvents, run
from memplan.engine.allocator.settings import Settings
from memplan.units import KiB, MiB

SIZES = st.one_of(st.integers(1, 4 * KiB), st.integers(1, 3 * MiB), st.integers(1, 60 * MiB))
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1000)), max_size=80)
SETTINGS = (
    Settings(),
    Settings(expandable_segments=True),
    Settings(max_split_size=30 * MiB),
    Settings(collect_above=60 * MiB),
    Settings(max_split_size=30 * MiB, collect_above=60 * MiB),
    Settings(divisions=(4,) * 16),
)


def events_of(steps: list[tuple[bool, int, int]]) -> StepEvents:
    """Some storages on a stream of their own, some used by another."""
    events, live = list[tuple[int, int]](), list[tuple[int, int]]()
    for number, (frees, size, which) in enumerate(steps):
        if frees and live:
            other, was = live.pop(which % len(live))
            events.append((other, -was))
        else:
            live.append((number, size))
            events.append((number, size))
    streams = {number: 1 for number, (_, _, which) in enumerate(steps) if which % 5 == 1}
    used = {number: (2,) for number, (_, _, which) in enumerate(steps) if which % 7 == 2}
    marks = ((len(events) // 3, "done 2"), (len(events) * 2 // 3, "empty_cache"))
    return StepEvents(tuple(events), len(events) // 2, streams, used, marks)


def one_by_one(
    allocator: CachingAllocator,
    events: Iterable[tuple[int, int]],
    streams: Mapping[int, int],
    used_by: Mapping[int, tuple[int, ...]],
    blocks: dict[int, Block],
    kinds: object,
    until: float,
) -> int:
    """``run`` by the allocator's own methods."""
    for number, size in events:
        if size < 0:
            allocator.free(blocks.pop(number), used_by.get(number, ()))
        else:
            blocks[number] = allocator.malloc(size, streams.get(number, 0))
    return 0


def state(allocator: CachingAllocator) -> object:
    """All that can be seen of it."""
    pools = {
        key: (pool.keys, [block.address for block in pool.free], [address for address, _ in pool.unmapped], pool.end)
        for key, pool in allocator.pools.items()
    }
    figures = allocator.reserved, allocator.allocated, allocator.peak_reserved, allocator.peak_allocated
    return pools, figures, allocator.retries


def ended(playing: Playing, until: float | None = None) -> object:
    """Its state at the end, or where memory ran out."""
    try:
        playing.run() if until is None else playing.run(until)
    except OutOfMemory:
        return "out of memory", playing.allocator.reserved
    return state(playing.allocator)


@pytest.mark.parametrize("settings", SETTINGS)
@examples(40)
@given(steps=STEPS, capacity=st.sampled_from([None, 150 * MiB]))
def test_many_at_once_are_one_after_the_other(
    settings: Settings, steps: list[tuple[bool, int, int]], capacity: int | None
) -> None:
    recorded = events_of(steps)
    at_once = ended(Playing(recorded, CachingAllocator(settings, capacity)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "run", one_by_one)
        assert at_once == ended(Playing(recorded, CachingAllocator(settings, capacity)))


@pytest.mark.parametrize("settings", SETTINGS)
@examples(40)
@given(steps=STEPS, until=st.integers(0, 400 * MiB), capacity=st.sampled_from([None, 150 * MiB]))
def test_a_copy_goes_on_as_if_it_had_begun_on_its_card(
    settings: Settings, steps: list[tuple[bool, int, int]], until: int, capacity: int | None
) -> None:
    """Held short of a reserve that the capacity allows, the beginning is the same on every card."""
    recorded = events_of(steps)
    begun = Playing(recorded, CachingAllocator(settings))
    begun.run(min(until, capacity or until))
    assert begun.allocator.reserved <= min(until, capacity or until)
    before = state(begun.allocator)
    found = ended(begun.on(capacity))
    assert state(begun.allocator) == before
    assert found == ended(Playing(recorded, CachingAllocator(settings, capacity)))


def test_it_stops_before_the_request_that_might_reserve_more() -> None:
    allocator, blocks = CachingAllocator(), dict[int, Block]()
    events = [(0, 30 * MiB), (0, -30 * MiB), (1, 30 * MiB), (2, 30 * MiB), (3, 512)]
    assert run(allocator, events, {}, {}, blocks, {}, 55 * MiB) == 2
    assert (allocator.reserved, list(blocks)) == (30 * MiB, [1])
