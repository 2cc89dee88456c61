"""Steps drawn from the lengths of the data: their peaks, and whether a run dies.

What is reserved grows with what steps of other shapes leave behind: each is played in one allocator, on the weights and
states of the first. Steps are recorded at a few lengths; the
sizes of one between two of them lie on the line between theirs where both make the same tensors, for every size is
affine in the length then, but for the rounding to 512 bytes; else the step is played at the longer one."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import sqrt
from random import Random

from memplan.drawn import Lengths as Report
from memplan.drawn import MicroBatch, Played
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.events import is_covered, step_events
from memplan.engine.allocator.figures import AGREES
from memplan.engine.allocator.replay import StepEvents, play, repeated
from memplan.engine.allocator.settings import settings_of
from memplan.errors import InvalidJob
from memplan.lengths.batches import Batches, batches
from memplan.lengths.distribution import longest_of
from memplan.meters import Totals, with_play
from memplan.priced import price
from memplan.reporting import totals_of
from memplan.resolve import resolve
from memplan.spec.lengths import Lengths
from memplan.spec.reading import JobInput, with_changes
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


FINE = 128
"""Parts of the longest micro-batch, to one of which the fatal length is found where each try is a play."""
Z95 = 1.959964
"""Standard deviations of a normal distribution within which 95 % lie."""


def drawn_lengths(given: JobInput, recipe: Recipe, run: bool) -> Report | None:
    """What the job needs of batches drawn from its lengths; None where it names none. ``run``: one is played through
    the allocator, too. Raises InvalidJob."""
    lengths = given.job.lengths
    if not isinstance(lengths, Lengths):
        return None
    made = batches(recipe, lengths, _can_mask(given, recipe))
    runs = [_run(made, lengths.steps, seed) for seed in range(lengths.seeds)]
    every = sorted(length for run in runs for length in run)
    needs = _Needs(with_changes(given, {"lengths": None}), made)
    fatal = needs.fatal(every[-1]) if recipe.hardware.gpu else None
    died = None if recipe.hardware.gpu is None else sum(max(run) >= fatal for run in runs) if fatal else 0
    p_oom, low, high = (None, None, None) if died is None else wilson(died, len(runs))
    first = runs[0][: lengths.played_steps if run else 0]
    play, unplayed = played(needs.recipe, first) if first else (None, "")
    return Report(
        drawn=made.sequences.words,
        batches=made.words,
        steps=lengths.steps,
        runs=lengths.seeds,
        p50=needs.micro_batch(every[len(every) // 2]),
        p99=needs.micro_batch(every[min(len(every) * 99 // 100, len(every) - 1)]),
        worst=needs.micro_batch(every[-1]),
        p_oom=p_oom,
        p_oom_low=low,
        p_oom_high=high,
        fatal_length=fatal,
        fatal_share=made.sequences.at_least(fatal) if fatal and made.by_sequence else None,
        cut_share=made.sequences.at_least(recipe.batch.sequence_length + 1),
        notes=(made.note,) if made.note else (),
        played=play,
        unplayed=unplayed,
    )


def _run(made: Batches, steps: int, seed: int) -> list[int]:
    """Tokens of the fullest micro-batch of each step."""
    rng = Random(seed)
    return [made.fit(longest_of(made.micro_batches, made.draws, rng)) for _ in range(steps)]


def wilson(died: int, runs: int) -> tuple[float, float, float]:
    """The share, and the interval in which the true one lies (Wilson 1927), 95 of 100 times."""
    share, square = died / runs, Z95**2 / runs
    middle = (share + square / 2) / (1 + square)
    reach = Z95 * sqrt(share * (1 - share) / runs + square / (4 * runs)) / (1 + square)
    return share, max(0.0, middle - reach) if died else 0.0, min(1.0, middle + reach) if died < runs else 1.0


def _can_mask(given: JobInput, recipe: Recipe) -> bool:
    """Whether nobody said that no mask is there, and the job is one that can be given one."""
    if recipe.batch.padded or "padded" in given.sources or recipe.parallel.context > 1:
        return recipe.batch.padded
    try:
        resolve(with_changes(given, {"padded": True}))
    except InvalidJob:
        return False
    return True


class _Needs:
    """What a step needs by the tokens of its fullest micro-batch."""

    def __init__(self, given: JobInput, made: Batches) -> None:
        self.given, self.made = given, made
        self.recipe: Callable[[int], Recipe] = cache(lambda length: resolve(self._changed(length)))
        self.totals: Callable[[int], Totals] = cache(self._played)

    def _changed(self, length: int) -> JobInput:
        changes = self.made.changes(length)
        return with_changes(self.given, changes) if changes else self.given

    def _played(self, length: int) -> Totals:
        """The meters as a report of this length has them."""
        fullest = price(self.recipe(length), detailed=False)[0]
        return with_play(fullest.meters, fullest.ledger, fullest.of.recipe, False)

    def fits(self, length: int) -> bool:
        """Whether the expected figure does; a step is played only where bounds leave it open."""
        recipe = self.recipe(self.made.fit(length))
        gpu = recipe.hardware.gpu
        if gpu is None:
            return True
        fullest = price(recipe, detailed=False, search=True)[0]
        of = fullest.meters
        if of.allocated.expected + of.outside.expected > gpu.usable_bytes:
            return False
        if not is_covered(fullest.of.recipe):
            return of.device.expected <= gpu.usable_bytes
        open_ = of.to_fit.high > gpu.usable_bytes
        return not open_ or self.totals(self.made.fit(length)).to_fit.expected <= gpu.usable_bytes

    def fatal(self, longest: int) -> int | None:
        """The fewest tokens that do not fit, by halving: peaks grow with the tokens. To the token, or where steps are
        played to so many as decide nothing."""
        if self.fits(longest):
            return None
        low, high = 0, longest
        while high - low > (max(1, longest // FINE) if is_covered(self.recipe(longest)) else 1):
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return high

    def micro_batch(self, length: int) -> MicroBatch:
        """As the report says it."""
        found, recipe = self.totals(length), self.recipe(length)
        sizes = found.allocated.expected, found.reserved.expected, found.device.expected
        return MicroBatch(recipe.rows, recipe.batch.sequence_length, *sizes)
