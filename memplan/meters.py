"""The three meters of a class of ranks, from its ledger and from the simulated allocator, and the verdict on a card."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.allocator.events import slack_of
from memplan.engine.allocator.reserved import SEGMENT_BYTES, Band, Seek, Unplayed, reserved_band
from memplan.engine.at_hand import lasting_at
from memplan.engine.ledger import Ledger
from memplan.engine.overhead import warm_up_bytes
from memplan.engine.sums import Totalled
from memplan.report import Reserved, Verdict
from memplan.spec.gpu import Gpu
from memplan.spec.groups import Provenance
from memplan.spec.recipe import Recipe
from memplan.units import round_up

if TYPE_CHECKING:
    from memplan.engine.allocator.figures import Played, Room


NOTHING = Band(0, 0, 0)


class Totals(NamedTuple):
    """The three meters of a ledger, without the rest of a report: what a search needs."""

    totals: tuple[int, ...]
    allocated: Band
    reserved: Band
    device: Band
    needs: Band
    """Bytes of segments without which the job does not run."""
    outside: Band
    """On the device beside the segments."""
    played: "Played | None" = None
    """Where the reserved figures are from; None: the band."""
    why_not: str = "searches take the band"
    others: Band = NOTHING
    """Of ``outside``, what other processes hold while it trains."""

    @property
    def to_fit(self) -> Band:
        """What the card must hold."""
        return _sum(self.needs, self.outside) if self.played else self.device

    @property
    def reserved_bytes(self) -> Reserved:
        """As the report has them."""
        found = self.played
        needs = self.needs.expected, self.needs.high
        if found is None:
            return Reserved(*self.reserved, *needs, why_not_played=self.why_not)
        return Reserved(
            *self.reserved,
            *needs,
            found.endless,
            found.sought,
            played=True,
            retries=found.retries,
            first_rank_less=found.beneath,
        )


def measure(ledger: Ledger | Totalled, recipe: Recipe, search: bool = False, others: Band = NOTHING) -> Totals:
    """Low, expected and high each run through the ledger as a whole. In a search the high figure of a job that can be
    played is above every play, so that what it says to fit does. ``others``: what else is on the card meanwhile."""
    low, totals, high = ledger.bounds()
    allocated = Band(max(low), max(totals), max(high))
    lasting = lasting_at(ledger, totals.index(allocated.expected))
    if recipe.model.spread:
        allocated = of_assumed_layers(allocated, lasting, recipe.model.spread)
    outside = _sum(Band(*map(max, ledger.bounds("device"))), others)
    held = _sum(allocated, _beside(ledger, totals))
    hardware, layers = recipe.hardware, recipe.checkpointing.layers
    reserved = held
    if not recipe.method.generates:  # an engine fills what it was given, whatever its segments are
        slack = slack_of(recipe, lasting) if search else None
        reserved = reserved_band(held, lasting, hardware.expandable_segments, layers, slack)
    warm = round_up(warm_up_bytes(recipe), SEGMENT_BYTES)  # a segment that weights stand in is never given back
    holds = Band(*(max(each, warm) for each in reserved))
    device = _with_managed(_sum(holds, outside), ledger, recipe)
    return Totals(tuple(totals), allocated, holds, device, reserved, outside, others=others)


def with_play(of: Totals, ledger: Ledger | Totalled, recipe: Recipe, seek: Seek) -> Totals:
    """The reserved meter as the simulated allocator has it, where the job's step can be played."""
    gpu, allocated = recipe.hardware.gpu, of.allocated
    if gpu is None and seek is not True:
        return of._replace(why_not="no card is named that it has to fit (--gpu, or --play)")
    below, above = allocated.expected - allocated.low, allocated.high - allocated.expected
    room = room_of(of, recipe) if gpu else None
    found = _played(recipe, allocated.expected, room and room._replace(comfortable=room.comfortable - above), seek)
    if isinstance(found, Unplayed):
        return _reaching(of, found.peak)._replace(why_not=found.why)
    more = found.left_over + above
    needs = Band(max(allocated.low, found.needs - found.doubt - below), found.needs, found.needs + found.doubt + more)
    holds = found.endless if found.on_card is None else found.on_card
    most = holds + found.spread + more
    if found.on_card is not None and gpu:
        limit = gpu.usable_bytes - of.outside.low  # reached for a moment where the cache was given back
        most = max(holds, limit if found.retries else min(most, limit))
    reserved = Band(max(allocated.low, holds - found.spread - found.beneath - found.grown - below), holds, most)
    device = _with_managed(_sum(reserved, of.outside), ledger, recipe)
    return of._replace(reserved=reserved, device=device, needs=needs, played=found, why_not="")


_SEEN: "deque[tuple[object, Played | Unplayed]]" = deque(maxlen=32)
"""Of the jobs played last, what they are but for where that came from, and their figures: a folder holds many alike."""


def _reaching(of: Totals, peak: int) -> Totals:
    """With high figures in which so many allocated bytes have room: what a play has more than the ledger may be so."""
    high = max(of.reserved.high, peak)
    device = of.device._replace(high=max(of.device.high, high + of.outside.high))
    return of._replace(reserved=of.reserved._replace(high=high), needs=of.needs._replace(high=high), device=device)


def _played(recipe: Recipe, allocated: int, room: "Room | None", seek: Seek) -> "Played | Unplayed":
    """The figures of the play; those of an equal job played lately, whatever it sought where nothing is near."""
    from memplan.engine.allocator.figures import played  # which a search, and a job without a card, never load

    job = (recipe._replace(provenance=Provenance({}, {})), allocated, room, seek)
    found = next((each for seen, each in _SEEN if seen == job or (seek is not True and seen == (*job[:3], None))), None)
    if found is None:
        found = played(recipe, allocated, room, seek)
        _SEEN.append(((*job[:3], seek if isinstance(found, Unplayed) or found.near else None), found))
    return found


def room_of(of: Totals, recipe: Recipe) -> "Room":
    """What the job's card leaves to segments."""
    gpu = recipe.hardware.gpu
    assert gpu is not None
    from memplan.engine.allocator.figures import Room

    most = gpu.usable_bytes - of.outside.expected
    return Room(max(0, most), int(gpu.usable_bytes * (1 - recipe.hardware.margin)) - of.outside.high)


def _sum(one: Band, other: Band) -> Band:
    return Band(*map(sum, zip(one, other, strict=True)))


def _with_managed(device: Band, ledger: Ledger | Totalled, recipe: Recipe) -> Band:
    """Managed memory stays on the card that touched it last, and leaves it only where there is no more room."""
    if "managed" not in ledger.meters("host"):
        return device
    managed, gpu = max(ledger.totals("managed", "host")), recipe.hardware.gpu
    room = (max(0, gpu.usable_bytes - held) if gpu else managed for held in device)
    low, expected, high = (held + min(managed, free) for held, free in zip(device, room, strict=True))
    return Band(low, expected, high)


def _beside(ledger: Ledger | Totalled, totals: Sequence[int]) -> Band:
    """What segments that other streams keep to themselves add to the most that is allocated."""
    if "reserved" not in ledger.meters("gpu"):
        return Band(0, 0, 0)
    kept = ledger.totals(meter="reserved")
    beside = max(map(sum, zip(totals, kept, strict=True))) - max(totals)
    return Band(0, beside, beside)


def of_assumed_layers(allocated: Band, lasting: int, spread: tuple[float, float]) -> Band:
    """The range of a model whose layers are assumed: only what comes and goes depends on them."""
    low, high = (int(share * (allocated.expected - lasting)) + lasting for share in spread)
    return Band(min(low, allocated.low), allocated.expected, max(high, allocated.high))


def judge(device: Band, gpu: Gpu, margin: float) -> Verdict:
    """Yes if the high figure of what the card must hold fits the usable memory less the margin, tight if the expected
    one fits it, else no."""
    allowed = int(gpu.usable_bytes * (1 - margin))
    fits = "yes" if device.high <= allowed else "tight" if device.expected <= gpu.usable_bytes else "no"
    spare, missing = gpu.usable_bytes - device.expected, max(0, device.high - allowed)
    return Verdict(gpu.name, fits, gpu.usable_bytes, spare, missing, device.high)


def needed_of(verdict: Verdict) -> int:
    """What is expected to be needed: no more than is held, where the cache can be given back."""
    return verdict.usable_bytes - verdict.headroom_bytes
