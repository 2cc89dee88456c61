"""A play on cards of several sizes: it is begun once as far as all are alike, and goes on within each capacity."""

from collections.abc import Collection
from contextlib import suppress

from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.replay import Playing, StepEvents
from memplan.engine.allocator.settings import SMALL_SEGMENT_BYTES, Settings
from memplan.engine.critic_engine import has_critic_engine
from memplan.engine.losses.head_of_pass import BY_WHAT_IS_FREE
from memplan.engine.overhead import warm_up_bytes
from memplan.spec.gpu import Cluster
from memplan.spec.groups import Provenance
from memplan.spec.recipe import Recipe
from memplan.units import round_up

TOLERANCE = 0.005
"""Of the allocated peak: how far above the least capacity ``needs`` may be."""


def alike(recipe: Recipe) -> tuple[Recipe, object]:
    """Equal of recipes with the same events and allocators: the job, without what generates, unless a play makes room
    for it or its cache grows in these allocators, and without the card, but for what a play reads of it."""
    of, hardware, loss = recipe.generator, recipe.hardware, recipe.trainer.loss
    stays = of is not None and (of.engine == "hf" or has_critic_engine(recipe))
    heads, limited = {recipe.loss.head, *loss.heads.values()}, hardware.allocator.per_process_memory_fraction
    card, sized = hardware.gpu, bool(limited or heads & BY_WHAT_IS_FREE)
    kind = card and (card.vendor, card.architecture, warm_up_bytes(recipe), card.usable_bytes * sized)
    any_card = hardware._replace(gpu=None, margin=0.0, cluster=Cluster())
    return recipe._replace(provenance=Provenance({}, {}), generator=of if stays else None, hardware=any_card), kind


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
