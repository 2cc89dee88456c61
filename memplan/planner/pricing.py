"""The memory of a candidate, with what costs no time: PyTorch's expandable segments, flash attention for SDPA, …

None of it makes a step slower, and all of it only ever saves memory (tests/test_plan_order.py). So a candidate that
does not fit with all of it does not fit; one that does is tried with less of it first."""

from collections.abc import Callable, Collection, Hashable
from typing import NamedTuple

from memplan.engine.bounds import at_least, first_stage, held_at_least
from memplan.planner.candidates import Candidate
from memplan.planner.degrees import Keys
from memplan.reporting import Peak, peak
from memplan.resolve.classes import has_own_classes
from memplan.spec.allocator import Allocator
from memplan.spec.generation import Away
from memplan.spec.recipe import Recipe
from memplan.units import DTYPE_BYTES

PLAIN, EXPANDABLE = Allocator.model_construct(), Allocator.model_construct(expandable_segments=True)


def allowed_of(recipe: Recipe) -> int:
    """Bytes of the card above which nothing fits with the margin."""
    assert recipe.hardware.gpu is not None
    return int(recipe.hardware.gpu.usable_bytes * (1 - recipe.hardware.margin))


class Free(NamedTuple):
    """A change that costs nothing."""

    name: str
    title: str
    keys: Keys
    """As a user sets it."""
    fields: Keys
    """What then differs in the recipe, by path."""
    applies: Callable[[Recipe], bool]

    def is_told(self, recipe: Recipe) -> bool:
        """Whether the trainer has a switch for it, or the environment."""
        return all(recipe.trainer.can_be_told(key, value) for key, value in self.keys.items())


def has_flash(recipe: Recipe) -> bool:
    """Whether flash attention runs: its kernels take no fp32 matmuls and no card that has no bf16 (FlashAttention 2's
    README: Ampere and later), some classes of transformers have it not, nor has FSDP2's ring of parts of a sequence."""
    ring = recipe.parallel.context > 1 and recipe.sharding.name == "fsdp2"
    if ring or (recipe.hardware.gpu is not None and not recipe.hardware.gpu.has_bf16):
        return False
    own = has_own_classes(recipe.trainer)
    narrow = recipe.numerics.itemsize < DTYPE_BYTES["fp32"] or recipe.numerics.autocast > 0
    return narrow and (own or recipe.model.family not in recipe.trainer.models.without_flash)


def _may_expand(recipe: Recipe) -> bool:
    """Whether segments may be expandable: an engine that sleeps in the trainer's process asserted that they are not."""
    of = recipe.generator
    if of is None or not of.sleep or of.own_process or of.separate:
        return True
    from memplan.tables.engines import era_of

    return era_of(of.engine, of.version).expandable_sleeps


ROWS = (
    Free(
        "allocator",
        "expandable segments (PYTORCH_CUDA_ALLOC_CONF)",
        {"allocator": {"expandable_segments": True}},
        {"hardware.allocator": EXPANDABLE},
        lambda recipe: recipe.hardware.allocator == PLAIN and _may_expand(recipe),
    ),
    Free(
        "views",
        "gradients as views of DDP's buckets",
        {"gradient_as_bucket_view": True},
        {"sharding.gradient_as_bucket_view": True},
        lambda recipe: recipe.sharding.name == "ddp" and recipe.several and not recipe.sharding.gradient_as_bucket_view,
    ),
    Free(
        "fused",
        "fused optimizer step",
        {"optimizer_impl": "fused"},
        {"optimizer.implementation": "fused"},
        lambda recipe: (
            recipe.optimizer.implementation in ("foreach", "loop") and "fused" in recipe.optimizer.row.implementations
        ),
    ),
    Free(
        "sdpa",
        "SDPA attention",
        {"attention": "sdpa"},
        {"operators.attention": "sdpa"},
        lambda recipe: recipe.operators.attention == "eager" and not recipe.model.eager_only,
    ),
    Free(
        "flash",
        "flash attention",
        {"attention": "flash"},
        {"operators.attention": "flash"},
        lambda recipe: recipe.operators.attention == "sdpa" and not recipe.in_megatron and has_flash(recipe),
    ),
)
FREE = tuple(row.name for row in ROWS)


class Priced(NamedTuple):
    """A candidate's memory, and what it was given to fit."""

    figures: Peak
    keys: Keys
    """Beside the candidate's own."""
    recipe: Recipe

    @property
    def fits(self) -> bool:
        """On the card with its margin, and in the node's memory."""
        return self.figures.verdict is not None and self.figures.verdict.fits == "yes"

    @property
    def bytes(self) -> int:
        """What has to fit: the high figure of the device's meter; beside an engine, with the cache given back."""
        verdict = self.figures.verdict
        together = verdict is not None and self.recipe.generator is not None
        return verdict.high_bytes if together and verdict else self.figures.device.high

    @property
    def lacks(self) -> bool:
        """It is not even tight, on the card or in the node's memory."""
        return self.figures.verdict is None or self.figures.verdict.fits == "no"

    @property
    def short(self) -> int:
        """Bytes that are missing on the card."""
        return self.figures.verdict.missing_bytes if self.figures.verdict else 0

    def as_played(self) -> "Priced":
        """With the verdict that is shown of it."""
        return self._replace(figures=peak(self.recipe, search=True, play="fits"))

    @property
    def free(self) -> list[str]:
        """What it was given, in words."""
        return [row.title for row in ROWS if row.keys.items() <= self.keys.items()]


class Pricing:
    """Prices candidates of one job. ``free``: what may be changed at no cost, by name (``FREE``)."""

    def __init__(self, free: Collection[str]) -> None:
        self.rows = tuple(row for row in ROWS if row.name in free)
        self.alone: dict[Hashable, dict[Away | None, int]] = {}
        """By how much updates alone are too large, whatever generates beside them, by what waits on the host."""
        self._leanest: tuple[Recipe, Keys, Recipe] | None = None
        """Of the recipe that was asked for last: the same object again, of which more is known by now."""

    def variants(self, recipe: Recipe) -> list[tuple[Keys, Recipe]]:
        """The recipe as it is, then with more and more that costs nothing."""
        found: list[tuple[Keys, Recipe]] = [({}, recipe)]
        for row in (row for row in self.rows if row.is_told(recipe)):
            found += [({**keys, **row.keys}, each.varied(row.fields)) for keys, each in found if row.applies(each)]
        return sorted(found, key=lambda pair: len(pair[0]))

    def leanest(self, recipe: Recipe) -> tuple[Keys, Recipe]:
        """The last of the variants: with all that costs nothing."""
        if self._leanest is None or self._leanest[0] is not recipe:
            keys, found = Keys(), recipe
            for row in self.rows:
                if row.applies(found) and row.is_told(found):
                    keys, found = {**keys, **row.keys}, found.varied(row.fields)
            self._leanest = recipe, keys, found
        return self._leanest[1:]

    def __call__(self, candidate: Candidate) -> Priced:
        """A candidate's price."""
        return self.of(candidate.recipe)

    def lean(self, candidate: Candidate) -> Priced:
        """Its price with all that costs nothing: it fits where any of its prices does."""
        return self._at_least(candidate.recipe)

    def short_at_least(self, recipe: Recipe, quickly: bool = False) -> int:
        """Bytes that are missing on the card at the least, with all that costs nothing; 0 where none need be.
        ``quickly``: of a recipe whose bytes are too many when backward begins, what of their segments is missing."""
        leanest, allowed = self.leanest(recipe)[1], allowed_of(recipe)
        held = held_at_least(leanest) if quickly or leanest.in_megatron else 0
        if held > allowed:
            return held - allowed
        short = 0 if leanest.in_megatron else at_least(leanest, allowed) - allowed
        if leanest.in_megatron and leanest.parallel.pipeline > 1:
            short = first_stage(leanest) - allowed
        return max(0, short)

    def rests(self, candidate: Candidate) -> int:
        """Bytes that its price is not below, whatever costs nothing; 0 where nothing is proven, beside an engine."""
        return held_at_least(self.leanest(candidate.recipe)[1]) if candidate.recipe.generator is None else 0

    def starts(self, candidate: Candidate) -> int:
        """The same of the first of Megatron's stages, of which there are several."""
        recipe = self.leanest(candidate.recipe)[1]
        several = recipe.in_megatron and recipe.parallel.pipeline > 1 and recipe.generator is None
        return first_stage(recipe) if several else 0

    def misses_by(self, candidate: Candidate, quickly: bool = True) -> int:
        """The same of a candidate; where an engine stands beside it, what its update alone misses by, known once for
        all that leave as much of it on the host between its passes, and of which none that leaves less misses less."""
        recipe, of = candidate.recipe, candidate.recipe.generator
        if candidate.training is None:
            return self.short_at_least(recipe, quickly)
        known, away = self.alone.setdefault(candidate.training, {}), of.away if of else None
        if away not in known:
            bare = recipe._replace(generator=of._replace(engine="none") if of and any(of.away) else None)
            more = (short for other, short in known.items() if away and other and other.covers(away))
            known[away] = max(more, default=0) or self.short_at_least(bare, quickly=True) or self._at_least(bare).short
        return known[away]

    def fits(self, recipe: Recipe) -> bool:
        """Whether it does with all that costs nothing."""
        return not self.short_at_least(recipe, quickly=True) and self._at_least(recipe).fits

    def fewest(self, recipe: Recipe) -> list[Priced]:
        """Every set of what costs nothing with which it fits, and nothing of which can be left out."""
        found: list[Priced] = []
        for keys, each in self.variants(recipe):
            priced = Priced(peak(each, search=True), keys, each)
            if priced.fits and not any(set(other.free) <= set(priced.free) for other in found):
                found.append(priced)
        return found

    def of(self, recipe: Recipe) -> Priced:
        """The first variant that fits; the last one where none does."""
        least, allowed = self._at_least(recipe), allowed_of(recipe)
        for keys, each in self.variants(recipe)[:-1] if least.fits else ():
            if recipe.generator is None and held_at_least(each) > allowed:
                continue
            priced = Priced(peak(each, search=True), keys, each)
            if priced.fits:
                return priced
        return least

    def _at_least(self, recipe: Recipe) -> Priced:
        keys, last = self.leanest(recipe)
        return Priced(peak(last, search=True), keys, last)
