"""From allocated to reserved where no step is played: a band, for searches and for jobs whose step cannot be played.

PyTorch reserves segments of 2 MiB (small blocks), 20 MiB, or the size rounded up to 2 MiB (from 10 MiB), and cannot
give back a segment while a block in it lives. What cannot be reused is a share of the bytes that come and go within a
step (weights and optimizer states never leave their blocks), and depends on the job. The shares are of plays: 220
one-GPU jobs of every kind, two steps each, request by request through the allocator's rules (``figures.py``);
``python benchmarks/reserved.py`` prints them again. They are what a job *needs*; on a roomy card it may hold more.

A search takes ``most`` for a job whose step can be played: no play of those jobs needs more, so that what the search
says to fit does so when it is played."""

from typing import Literal, NamedTuple

from memplan.units import MiB, round_up

Seek = bool | Literal["fits", "yes"]
"""Of a play, whether the least that the job needs is looked for: always (True), near the card's limit (False), or there
only whether it is comfortable on the card, or runs on it ("fits"), and nothing of what it then holds there ("yes")."""
Play = Seek | Literal["unsure"] | None
"""How a report is made (``reporting.build_report``)."""
BY_BOUND = "the verdict by the most that a play of it may need is the same"
"""Why no step is played of a job that surely fits, or is unclear whatever it takes (``priced.by_bound``)."""
SEGMENT_BYTES = 2 * MiB


class Staged(NamedTuple):
    """Shares of what comes and goes, and of what lasts."""

    moving: float
    lasting: float


SLACK = 64 * MiB
"""Beside ``most``: a few segments that are hardly used, which small jobs feel."""
STAGED = Staged(0.10, 0.08)
"""Of Megatron's stages: beside ``high``, of what comes and goes, and of what lasts: construction leaves holes of whole
weights behind. Of some 1,700 drawn jobs' plays three need more, by 0.4 % of what lasts."""
FLAT_SLACK = 1024 * MiB
"""The same of FSDP1: units that are freed later than the ledger counts, and what whole units left when they were made
flat: no play of some 60 jobs of 0.5 to 70B needs so much more."""


class Spread(NamedTuple):
    """Needed beyond allocated, as a share of the bytes that come and go, of the simulated jobs."""

    low: float
    """The least that any needs."""
    expected: float
    """What the median job needs."""
    high: float
    """What 95 of 100 need."""
    most: float
    """No play needs more, with ``figures.DOUBT`` beside it."""


FRAGMENTATION = {
    (False, False): Spread(0.01, 0.07, 0.17, 0.60),
    (False, True): Spread(0.01, 0.22, 0.47, 1.00),
    (True, False): Spread(0.00, 0.01, 0.04, 0.20),
    (True, True): Spread(0.00, 0.02, 0.13, 0.25),
}
"""By whether segments are expandable, and whether layers are checkpointed: then every layer allocates and frees its
activations again while gradients, which stay, are put between them."""


class Slack(NamedTuple):
    """What a search takes beside the high figure, so that no play of the job needs more."""

    bytes: int
    moving: float | None = None
    """Beside the high share; None: the share becomes ``most``."""


class Unplayed(NamedTuple):
    """No figures."""

    why: str
    peak: int = 0
    """Bytes that a play reaches which is more than the ledger has: one is wrong, and the job may take them. """


class Band(NamedTuple):
    """A figure with its range."""

    low: int
    expected: int
    high: int


def reserved_band(
    allocated: Band, lasting: int, expandable_segments: bool, checkpointing: bool = False, slack: Slack | None = None
) -> Band:
    """Bytes of segments that hold ``allocated`` bytes of blocks, rounded up to whole 2 MiB.

    ``lasting``: what is there from one step to the next. ``slack``: the high figure is above every play."""
    of = FRAGMENTATION[expandable_segments, checkpointing]
    found = [segments(size, lasting, share) for size, share in zip(allocated, of[:3], strict=True)]
    if slack:
        share = of.most if slack.moving is None else of.high + slack.moving
        found[2] = segments(allocated.high, lasting, share) + slack.bytes
    return Band(*found)


def segments(size: int, lasting: int, share: float) -> int:
    """``size`` and ``share`` of what comes and goes, in whole segments."""
    return round_up(size + int((size - lasting) * share), SEGMENT_BYTES)
