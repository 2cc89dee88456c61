"""The last played step as samples: what is allocated by category, and what segments hold, between its events."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.replay import Playing, StepEvents
from memplan.engine.allocator.settings import settings_of
from memplan.engine.uncollected import uncollected
from memplan.spec.recipe import Recipe
from memplan.tables.categories import stacked


class Sample(NamedTuple):
    """One moment of the step."""

    event: int
    """Requests and frees before it, from the step's first."""
    instant: str
    """The last mark before it; empty in a play without marks, such as Megatron's."""
    by_category: dict[str, int]
    reserved: int
    """The most since the sample before."""


def last_step(recipe: Recipe, capacity: int | None, most: int) -> list[Sample]:
    """About so many samples, within so many bytes of segments: the fullest moment of each stretch, and the first and
    last of all. None of a step that is not played, or does not run there."""
    recorded = step_events(recipe)
    if recorded is None:
        return []
    with uncollected():
        return list(_sampled(recorded, recipe, capacity, most))


def _sampled(recorded: StepEvents, recipe: Recipe, capacity: int | None, most: int) -> Iterator[Sample]:
    card = recipe.hardware.gpu.usable_bytes if recipe.hardware.gpu else None
    playing = Playing(recorded, CachingAllocator(settings_of(recipe.hardware.allocator, card), capacity))
    alive, done = dict[str, int](), 0
    marks = [(at, name) for at, name in recorded.marks if "." in name]
    for at in fullest(recorded, most):
        with suppress(OutOfMemory):
            playing.run(end=at)
        if playing.position < at:
            return
        for number, size in recorded.events[done:at]:
            category = recorded.tags[number].category
            alive[category] = alive.get(category, 0) + size
        done = at
        held = {name: alive[name] for name in stacked(set(alive)) if alive[name]}
        instant = next((name for start, name in reversed(marks) if start <= at), "")
        yield Sample(at - recorded.start, instant, held, playing.allocator.peak_reserved)
        playing.allocator.reset_peaks()


def fullest(recorded: StepEvents, most: int) -> list[int]:
    """Positions behind which the last step is looked at, in order."""
    totals, total = [], 0
    for size in recorded.sizes:
        total += size
        totals.append(total)
    start, end = recorded.start, len(totals)
    wide = max(1, -(-(end - start) // most))
    found = [max(range(at, min(at + wide, end)), key=totals.__getitem__) for at in range(start, end, wide)]
    return sorted({start + 1, *(at + 1 for at in found), end})
