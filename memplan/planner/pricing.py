"""The memory of a candidate, with what costs no time: PyTorch's expandable segments, flash attention for SDPA, …

None of it makes a step slower, and all of it only ever saves memory (tests/test_plan_order.py). So a candidate that
does not fit with all of it does not fit; one that does is tried with less of it first."""

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import NamedTuple

from memplan.engine.bounds import at_least, first_stage, held_at_least
from memplan.planner.candidates import Candidate, allowed_of
from memplan.planner.degrees import Keys
from memplan.priced import price
from memplan.reporting import Peak, peak
from memplan.resolve.classes import has_own_classes
from memplan.rollout.bounds import Engine, Rests, engine_beside, rests, together
from memplan.spec.allocator import Allocator
from memplan.spec.generation import Away, Generator
from memplan.spec.recipe import Recipe
from memplan.units import DTYPE_BYTES

PLAIN, EXPANDABLE = Allocator.model_construct(), Allocator.model_construct(expandable_segments=True)


class Free(NamedTuple):
    """A change that costs nothing."""

    name: str
    title: str
    keys: Keys
    """As a user sets it."""
    fields: Keys
    """What then differs in the recipe, by path; of a value a function of what it was."""
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
    Free(
        "gathered",
        "adapters gathered layer by layer (layered_summon)",
        {"sync": {"gather": "unit"}},
        {"generator.syncing": lambda syncing: syncing._replace(gather="unit", again=False)},
        lambda recipe: recipe.generator is not None and recipe.generator.syncing.again,
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
        return self._replace(figures=peak(self.recipe, search=True, play="yes"))

    @property
    def free(self) -> list[str]:
        """What it was given, in words."""
        return [row.title for row in ROWS if row.keys.items() <= self.keys.items()]


class Update(NamedTuple):
    """High bytes of an update, nothing beside it."""

    most: int
    """In its passes, and in the phases beside them."""
    passes: int


NO_UPDATE = Update(0, 0)


class Pricing:
    """Prices candidates of one job. ``free``: what may be changed at no cost, by name (``FREE``)."""

    def __init__(self, free: Collection[str]) -> None:
        self.rows = tuple(row for row in ROWS if row.name in free)
        self.alone: dict[Hashable, dict[tuple[Away, int], tuple[Update, Iterator[Update]]]] = {}
        """Updates, whatever generates beside them, by what waits on the host, and their batch; what more is known."""
        self.resting: dict[Hashable, Rests] = {}
        """What is left of them between their passes."""
        self.engines: dict[int, tuple[Generator, Engine]] = {}
        """By the ``id`` of what generates."""
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

    def misses_by(self, candidate: Candidate, enough: float = 0) -> int:
        """The same of a candidate, and no more than tells whether it is more than ``enough``. Where something generates
        beside it: what rests of both together misses by, or its update alone, or that with the engine asleep on its
        card."""
        recipe, of, allowed = candidate.recipe, candidate.recipe.generator, allowed_of(candidate.recipe)
        if candidate.training is None or of is None or recipe.hardware.gpu is None:
            return self.short_at_least(recipe, quickly=not enough)
        if candidate.training not in self.resting:
            self.resting[candidate.training] = rests(self.leanest(recipe)[1])
        if id(of) not in self.engines:
            self.engines[id(of)] = of, engine_beside(of, recipe.hardware.gpu)
        engine = self.engines[id(of)][1]
        short = together(of, self.resting[candidate.training], engine) - allowed
        for update in self._updates(candidate, of.away) if short <= enough else ():
            short = max(short, update.most - allowed, update.passes + engine.asleep - allowed)
            if short > enough:
                break
        return max(0, short)

    def _updates(self, candidate: Candidate, away: Away) -> Iterator[Update]:
        """What a candidate's update comes to whatever generates beside it, first what is known of it and then more and
        more, once for all that leave as much of it on the host between its passes; one that leaves less holds no less,
        nor does a larger batch."""
        known, at = self.alone.setdefault(candidate.training, {}), candidate.batch
        yield from (found for (other, batch), (found, _) in known.items() if batch <= at and other.covers(away))
        if (away, at) not in known:
            known[away, at] = NO_UPDATE, self._bounds(candidate.recipe, away)
        bounds = known[away, at][1]
        for found in bounds:
            known[away, at] = found, bounds
            yield found

    def _bounds(self, recipe: Recipe, away: Away) -> Iterator[Update]:
        """Bounds of an update alone, each costlier than the one before; the last is what it comes to."""
        of = recipe.generator
        bare = self.leanest(recipe._replace(generator=of._replace(engine="none") if of and any(away) else None))[1]
        yield Update(*[held_at_least(bare)] * 2)
        if bare.in_megatron and bare.parallel.pipeline > 1:
            yield Update(*[first_stage(bare)] * 2)
        every = price(bare, detailed=False, search=True, leading=True)
        passes = (each.meters.needs.high + each.meters.outside.high for each in every)
        yield Update(max(each.to_fit.high for each in every), max(passes))

    def room(self, recipe: Recipe) -> int:
        """Bytes of the card, at the least 1, that are left with all that costs nothing; below 0 those that miss at
        least, and 0 where it does not fit for another reason."""
        if short := self.short_at_least(recipe, quickly=True):
            return -short
        priced = self._at_least(recipe)
        left = allowed_of(priced.recipe) - priced.bytes
        return max(1, left) if priced.fits else min(0, left)

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
