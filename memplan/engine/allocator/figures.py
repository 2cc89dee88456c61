"""Reserved, played: what the allocator holds of a job on an unlimited card and on this one, and the least it needs.

The events of two steps (``step_events``) run through the simulated allocator (``caching.py``). The first step decides
where things lie, the second is what all later ones are like. *Needs* is found by bisection: the least capacity in which
both steps run, after the allocator has given back whatever it can. It is never below the truth of the play, and at most
``TOLERANCE`` of the allocated peak above it.

What the play leaves out, and real runs show: lengths that change from step to step, the driver's own placement, what
loading has left but for FSDP1's wrapping. ``SPREAD`` is how far published runs of one GPU lie from their play, as a
share of the bytes that come and go (``python benchmarks/reserved.py --published``)."""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

from memplan.engine.allocator.blocks import Block
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.capacities import TOLERANCE, alike, all_run, beginning, endless, least, runs
from memplan.engine.allocator.events import on_rank, step_events
from memplan.engine.allocator.replay import Playing, StepEvents, repeated
from memplan.engine.allocator.reserved import Seek, Unplayed
from memplan.engine.allocator.settings import SMALL_SEGMENT_BYTES, Settings, settings_of
from memplan.engine.parallel.fsdp1.flat_parameters import flattens, fullest_rank
from memplan.engine.play.other_ranks import ran_ahead
from memplan.engine.uncollected import uncollected
from memplan.spec.generation import Generator
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

AGREES = 0.01
"""Of the allocated peak: a play that reaches further beyond the ledger is of another job, and is not taken."""
ROUNDING = 0.001
"""Of the allocated peak: so little do sums of the ledger's rows and of the play's blocks differ by rounding alone."""
SPREAD = 0.15
"""Of what comes and goes: 46 of 52 published one-GPU runs of training hold so nearly what their play holds."""
DOUBT = 0.05
"""Of what comes and goes: added to what is needed, beside the margin, for what no play sees."""

PLAYED_RANKS = 4
"""Of flat parameters: so many ranks are played, evenly spread."""
MOST_GROWN = 30_000
"""Blocks of a growing cache that are played: 0.1 s."""
LATER = 3
"""Steps until all later ones are alike, where the cache had to be given back."""


class Played(NamedTuple):
    """Bytes of segments."""

    moving: int
    """Allocated bytes that come and go within a step: the peak less what is there between steps."""
    endless: int
    """Held on an unlimited card, at the last step's peak: a node's mean, where its first waited for what it sent."""
    on_card: int | None
    """Held on this card; None where the steps do not run on it, or no card is named."""
    retries: int
    """How often the cache had to be given back in both steps there."""
    needs: int
    """The least capacity in which the steps run."""
    sought: bool
    """``needs`` was looked for; else it is what is held, and so no less than needed."""
    left_over: int = 0
    """Above what is held: what a rank holds more than the mean; of a quantised base under FSDP1, where nobody has said
    how it is loaded, also as much as the rank holds of it: it may be on the card when units are made of it."""
    beneath: int = 0
    """What the first rank of a node holds less than the mean."""
    grown: int = 0
    """Of what is held, what generation's growing cache has left, where completions go on to their longest."""
    let_go: int = 0
    """Bytes that came and went while the model was made."""
    near: bool = True
    """What is looked for decides ``needs``: the card's limit is near."""

    @property
    def spread(self) -> int:
        """Either way of what is held, ``left_over`` aside."""
        return int(SPREAD * (self.moving + self.let_go))

    @property
    def doubt(self) -> int:
        """Above what is needed."""
        return int(DOUBT * self.moving)


class Rank(NamedTuple):
    """One that is played."""

    number: int | None = None
    """None: the one that holds most."""
    ahead: bool = False
    """Its weights are sent to it by another."""

    def steps(self, recorded: StepEvents) -> StepEvents:
        """What was played, as it runs there."""
        return ran_ahead(recorded) if self.ahead else recorded


class Room(NamedTuple):
    """Bytes of a card that segments may take."""

    most: int
    """All that is not taken by others."""
    comfortable: int
    """So much that the verdict is yes."""


def played(recipe: Recipe, allocated: int, room: Room | None = None, seek: Seek = False) -> Played | Unplayed:
    """The figures of a job whose ledger peaks at so many bytes; or why it is not played.

    ``needs`` is looked for where what is held is not comfortable, or when told to."""
    job = alike(recipe)
    begun = next((each for seen, each in _BEGUN if seen == job), None)
    recorded = begun.plays[Rank()] if begun else step_events(recipe)
    if recorded is None:
        return Unplayed("its step is not played yet")
    short = allocated - recorded.peak
    if -short > AGREES * allocated:
        return Unplayed("its step is not played to the byte yet", recorded.peak)
    card = recipe.hardware.gpu.usable_bytes if recipe.hardware.gpu else None
    if card is not None and room is not None:
        room = Room(min(room.most, card), min(room.comfortable, card))
    settings = settings_of(recipe.hardware.allocator, card)
    if begun is None:
        begun = _begun(_plays(recipe, recorded), settings)
        if job[0].generator is None or job[0].generator.engine != "hf":  # whose cache grows on in these allocators
            _BEGUN.append((job, begun))
        while len(_BEGUN) > 1 and sum(each.events for _, each in _BEGUN) > MOST_KEPT:
            _BEGUN.popleft()
    result = _figures(recipe, begun, settings, room, seek)
    if short <= ROUNDING * allocated:
        return result
    most = room.most if room else inf  # what the play misses, too, which the ledger may count from above
    on_card = None if result.on_card is None else int(min(result.on_card + short, max(most, result.on_card)))
    return result._replace(needs=result.needs + short, endless=result.endless + short, on_card=on_card)


class Begun(NamedTuple):
    """The steps of each rank that is played, by rank."""

    plays: dict[Rank, StepEvents]
    begun: dict[Rank, Playing]
    """As far as they run the same on all cards."""
    endless: dict[Rank, CachingAllocator]
    """Behind them, on an unlimited card."""

    @property
    def events(self) -> int:
        """How many are kept, of some 90 bytes each."""
        return sum(len(each.events) for each in self.plays.values())


MOST_KEPT = 400_000
_BEGUN: deque[tuple[object, Begun]] = deque(maxlen=3)
"""Of the jobs played last, by what their plays are of (``alike``): what fits is asked, and then what is needed, beside
one engine after another and of one card after another. Of so many events (``MOST_KEPT``) the last one alone."""


@uncollected()
def _begun(plays: dict[Rank, StepEvents], settings: Settings) -> Begun:
    begun = {rank: beginning(recorded, settings) for rank, recorded in plays.items()}
    return Begun(plays, begun, {rank: endless(each) for rank, each in begun.items()})


@uncollected()
def _figures(recipe: Recipe, of: Begun, settings: Settings, room: Room | None, seek: Seek) -> Played:
    """Of the rank that holds most without end; what is needed is enough for each."""
    plays, begun, endless = of
    rank = max(endless, key=lambda each: endless[each].peak_reserved)
    recorded, most = plays[rank], endless[rank].peak_reserved
    moving = recorded.peak - sum(recorded.sizes[: recorded.start])
    near = room is not None and most + int(DOUBT * moving) > room.comfortable
    sought, needs = seek is True or (near and not seek), most
    if sought:
        needs = least(recorded, settings, most, begun[rank])
    elif room is not None and near:
        needs = _enough(list(begun.values()), most, room._replace(comfortable=room.comfortable - int(DOUBT * moving)))
    for other, events in plays.items() if sought else ():
        if other != rank and not runs(begun[other], needs):
            needs = max(needs, least(events, settings, endless[other].peak_reserved, begun[other]))
    if sought and room is not None and room.most < needs and all_run(begun.values(), room.most):
        needs = room.most  # bisection stops ``TOLERANCE`` above the least, and may miss a card that is enough
    there: CachingAllocator | None = endless[rank]
    if room is None or most > room.most:
        told = room is not None and needs <= room.most and not (seek == "yes" and recipe.generator is None)
        there = _on_card(recipe, rank, begun[rank], room.most) if room and told else None
    held = there.peak_reserved if there else most
    apart = max(0, held - endless[Rank()].peak_reserved)
    grown, before, retries = most, held, there.retries if there else 0
    if recipe.generator is not None and recipe.generator.engine == "hf" and recipe.generator.completion_length:
        grown = _generating(recipe.generator, endless[rank])
        if there is not None and room is not None and grown > room.most:
            there = _on_card(recipe, rank, begun[rank], room.most) or there
            held = max(held, _generating(recipe.generator, there))
            retries = there.retries + 1
        elif there is not None:
            held = max(held, grown)
    less = apart // min(recipe.sharding.ranks, recipe.hardware.gpus_per_node) if rank.ahead else 0
    loading = recipe.moments.loading
    untold = recorded.peak - moving if flattens(recipe) and loading.sent and loading.way == "card" else 0
    here, more = (held - less, held - before) if there else (None, grown - most)
    over, beneath, near = less + untold, apart - less if less else 0, near or seek is True
    let_go = recorded.let_go
    return Played(moving, grown - less, here, retries, needs, sought, over, beneath, more, let_go, near)


def _generating(of: Generator, after: CachingAllocator) -> int:
    """What is reserved once transformers' generate has run behind a step. For each token each layer's keys are put
    together anew (transformers 5.24 cache_utils.py: DynamicLayer.update), in a block that what the token before has
    left does not hold; from 10 MiB on a segment for each size stays. Played in steps of a segment's granule."""
    from memplan.engine.generation.cells import cells_of

    cells = [cell for run in of.model.runs for cell in cells_of(run.layer, of) if cell.token for _ in range(run.count)]
    sizes = [(of.rows * cell.token // 2, cell.window or of.prompt_length + of.completion_length) for cell in cells] * 2
    if not sizes or after.settings.expandable_segments:
        return after.peak_reserved
    least = ceil_div(of.completion_length * len(sizes), MOST_GROWN)
    step = max(least, SMALL_SEGMENT_BYTES // max(size for size, _ in sizes), 1)
    blocks: list[Block | None] = [None] * len(sizes)
    with suppress(OutOfMemory):
        for length in range(of.prompt_length or 1, of.prompt_length + of.completion_length + 1, step):
            for i, (size, window) in enumerate(sizes):
                block = after.malloc(size * min(length, window))
                if (before := blocks[i]) is not None:
                    after.free(before)
                blocks[i] = block
    return after.peak_reserved


def _enough(begun: Sequence[Playing], most: int, room: Room) -> int:
    """Where the steps surely run: what is comfortable (``least`` may stop below); all of the card; or what is held."""
    for capacity in (room.comfortable - int(TOLERANCE * begun[0].recorded.peak), room.most):
        if capacity < most and all_run(begun, capacity):
            return capacity
    return most


def _on_card(recipe: Recipe, rank: Rank, begun: Playing, capacity: int) -> CachingAllocator | None:
    """The allocator after the steps, and, where the cache was given back, after one more: as all later ones."""
    there = runs(begun, capacity)
    if there is None:
        return None
    if not there.allocator.retries:
        return there.allocator
    step = repeated(begun.recorded)
    if step is None:  # it leaves something to the next
        recorded = step_events(recipe, LATER, rank.number)
        later = runs(beginning(rank.steps(recorded), begun.allocator.settings), capacity) if recorded else None
    else:
        later = there.on(capacity, step)
        with suppress(OutOfMemory):
            later.run()
    return (later if later is not None and later.ended else there).allocator


def ranks_of(recipe: Recipe) -> tuple[int | None, ...]:
    """The ranks to play: the one that holds most, and, of flat parameters, others from the first to the last, whose
    optimizers step on other pieces of the same size."""
    ranks = recipe.sharding.ranks
    if not flattens(recipe) or ranks == 1:
        return (None,)
    few, fullest = min(ranks, PLAYED_RANKS), fullest_rank(recipe)
    return (None, *sorted({i * (ranks - 1) // (few - 1) for i in range(few)} - {fullest}))


def _plays(recipe: Recipe, recorded: StepEvents) -> dict[Rank, StepEvents]:
    """By rank, those that differ."""
    plays = {Rank(): recorded}
    for rank in ranks_of(recipe):
        if rank is None:
            continue
        own = on_rank(recorded, recipe, rank)
        if all(own.sizes != other.sizes for other in plays.values()):
            plays[Rank(rank)] = own
    if flattens(recipe) and recipe.moments.loading.sent:
        ahead = Rank(ahead=True)
        plays[ahead] = ahead.steps(recorded)
    return plays
