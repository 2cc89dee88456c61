"""Reserved, played: what the allocator holds of a job on a card without end and on this one, and the least it needs.

The events of two steps (``step_events``) run through the simulated allocator (``caching.py``). The first step decides
where things lie, the second is what all later ones are like. *Needs* is found by bisection: the least capacity in which
both steps run, after the allocator has given back whatever it can. It is never below the truth of the play, and at most
``TOLERANCE`` of the allocated peak above it.

What the play leaves out, and real runs show: lengths that change from step to step, memory that kernels take inside,
the driver's own placement. ``SPREAD`` is how far published runs of one GPU lie from their play, as a share of the bytes
that come and go (``python benchmarks/reserved.py --published``).
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.replay import StepEvents, play
from memplan.engine.allocator.settings import SMALL_SEGMENT_BYTES, Settings, allowed_bytes, settings_of
from memplan.spec.recipe import Recipe
from memplan.units import round_up

TOLERANCE = 0.005
"""Of the allocated peak: how far above the least capacity ``needs`` may be."""
AGREES = 0.01
"""Of the allocated peak: a play that reaches another peak than the ledger is of another job, and is not taken."""
ROUNDING = 0.001
"""Of the allocated peak: so little do sums of the ledger's rows and of the play's blocks differ by rounding alone."""
SPREAD = 0.15
"""Of what comes and goes: 25 of 28 published runs hold so nearly what their play holds."""
DOUBT = 0.05
"""Of what comes and goes: added to what is needed, beside the margin, for what no play sees."""


class Played(NamedTuple):
    """Bytes of segments."""

    moving: int
    """Allocated bytes that come and go within a step: the peak less what is there between steps."""
    endless: int
    """Held on a card without end, at the last step's peak."""
    on_card: int | None
    """Held on this card; None where the steps do not run on it, or no card is named."""
    retries: int
    """How often the cache had to be given back in both steps there."""
    needs: int
    """The least capacity in which the steps run."""
    sought: bool
    """``needs`` was looked for; else it is what is held, and so no less than needed."""

    @property
    def spread(self) -> int:
        """Either way of what is held."""
        return int(SPREAD * self.moving)

    @property
    def doubt(self) -> int:
        """Above what is needed."""
        return int(DOUBT * self.moving)


class Room(NamedTuple):
    """Bytes of a card that segments may take."""

    most: int
    """All that is not taken by others."""
    comfortable: int
    """So much that the verdict is yes."""


def played(recipe: Recipe, allocated: int, room: Room | None = None, seek: bool = False) -> Played | str:
    """The figures of a job whose ledger peaks at so many bytes; in words, why it is not played.

    ``needs`` is looked for where what is held is not comfortable, or when told to.
    """
    recorded = step_events(recipe)
    if recorded is None:
        return "its step is not played yet"
    if abs(recorded.peak - allocated) > AGREES * allocated:
        return "its step is not played to the byte yet"
    card = recipe.hardware.gpu.usable_bytes if recipe.hardware.gpu else None
    if card is not None and room is not None:
        allowed = allowed_bytes(recipe.hardware.allocator, card)
        room = Room(min(room.most, allowed), min(room.comfortable, allowed))
    found = _figures(recorded, settings_of(recipe.hardware.allocator, card), room, seek)
    short = allocated - recorded.peak
    if short <= ROUNDING * allocated:
        return found
    return found._replace(needs=found.needs + short, endless=found.endless + short)  # what the play misses, too


def _figures(recorded: StepEvents, settings: Settings, room: Room | None, seek: bool) -> Played:
    endless = CachingAllocator(settings)
    play(recorded, endless)
    moving, most = recorded.peak - sum(size for _, size in recorded.events[: recorded.start]), endless.peak_reserved
    seek |= room is not None and most + int(DOUBT * moving) > room.comfortable
    needs = least(recorded, settings, most) if seek else most
    there = endless if room is not None and most <= room.most else None
    if room is not None and needs <= room.most < most:
        there = runs(recorded, settings, room.most)
    return Played(moving, most, there.peak_reserved if there else None, there.retries if there else 0, needs, seek)


def runs(recorded: StepEvents, settings: Settings, capacity: int) -> CachingAllocator | None:
    """The allocator after the steps, within so many bytes of segments; None where they do not run."""
    allocator = CachingAllocator(settings, capacity)
    try:
        play(recorded, allocator)
    except OutOfMemory:
        return None
    return allocator


def least(recorded: StepEvents, settings: Settings, works: int) -> int:
    """The least capacity in which the steps run, by bisection below one in which they do."""
    fails = round_up(max(recorded.peak, first_step(recorded)), SMALL_SEGMENT_BYTES) - SMALL_SEGMENT_BYTES
    while works - fails > max(SMALL_SEGMENT_BYTES, int(TOLERANCE * recorded.peak)):
        middle = round_up((fails + works) // 2, SMALL_SEGMENT_BYTES)
        fails, works = (fails, middle) if runs(recorded, settings, middle) else (middle, works)
    return works


def first_step(recorded: StepEvents) -> int:
    """The most bytes alive before the last step."""
    live = peak = 0
    for _, size in recorded.events[: recorded.start]:
        live += size
        peak = max(peak, live)
    return peak
