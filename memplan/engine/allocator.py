"""From allocated to reserved: what the caching allocator holds, and what it needs, beside the tensors.

PyTorch reserves segments of 2 MiB (small blocks), 20 MiB, or the size rounded up to 2 MiB (from 10 MiB), and cannot
give back a segment while a block in it lives. What cannot be reused is a share of the bytes that come and go within a
step (weights and optimizer states never leave their blocks), and depends on the job: a band, not a constant. It was
found by simulation: two steps of 120 one-GPU jobs of every kind, played allocation by allocation through the
allocator's rules (``caching.py``, ``events.py``); ``python benchmarks/reserved.py -n 120`` prints it again.

A job *holds* more on a roomy card than it *needs*: before it fails, the allocator gives back every segment that nothing
is in. So the expected figure is what the job holds in the median, as long as the card has that room, and what it needs
in the median where it has not; the high figure, which decides whether a job fits, is what 95 of 100 jobs need. Not in
it: second streams (sharded jobs), lengths that change from step to step, what a kernel allocates inside itself.
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.units import MiB, round_up

SEGMENT_BYTES = 2 * MiB


class Spread(NamedTuple):
    """Reserved beyond allocated, as a share of the bytes that come and go, of the simulated jobs."""

    low: float
    """The least that any needs."""
    holds: float
    """What the median job holds on a roomy card."""
    needs: float
    """What the median job needs."""
    high: float
    """What 95 of 100 need."""


FRAGMENTATION = {
    (False, False): Spread(0.01, 0.10, 0.07, 0.17),
    (False, True): Spread(0.01, 0.32, 0.22, 0.47),
    (True, False): Spread(0.00, 0.03, 0.01, 0.04),
    (True, True): Spread(0.00, 0.09, 0.02, 0.13),
}
"""By whether segments are expandable, and whether layers are checkpointed: then every layer allocates and frees its
activations again while gradients, which stay, are put between them.
"""


class Band(NamedTuple):
    """A figure with its range."""

    low: int
    expected: int
    high: int


def reserved_band(
    allocated: Band, lasting: int, expandable_segments: bool, checkpointing: bool = False, room: int | None = None
) -> Band:
    """Bytes of segments that hold ``allocated`` bytes of blocks, rounded up to whole 2 MiB.

    ``lasting``: what is there from one step to the next. ``room``: what the card has for segments, when one is named.
    """
    share = FRAGMENTATION[expandable_segments, checkpointing]
    holds, needs = (segments(allocated.expected, lasting, part) for part in (share.holds, share.needs))
    expected = holds if room is None else max(needs, min(holds, room))
    high = segments(allocated.high, lasting, share.high)
    return Band(segments(allocated.low, lasting, share.low), expected, max(high, expected))


def segments(size: int, lasting: int, share: float) -> int:
    """``size`` and ``share`` of what comes and goes, in whole segments."""
    return round_up(size + int((size - lasting) * share), SEGMENT_BYTES)
