"""From choices to recipes: a structure is resolved once, and its batches are set in the recipe.

A recipe with another batch and accumulation is what ``resolve`` makes of the job with that batch, but for what
``depends_on_batch`` names; and of most structures each half is resolved already, in others (``axes.joined``;
tests/test_plan.py compares both field by field)."""

from collections.abc import Hashable
from typing import Any, NamedTuple

from memplan.cost import Prepared, examples_per_step, prepare, seconds
from memplan.cost.rates import Device
from memplan.engine.bounds import stepping
from memplan.errors import MemplanError
from memplan.planner.axes import LEANEST, OUTDONE, Made, Reason, Refusal, attempts, in_megatron, joined, named, others
from memplan.planner.degrees import Keys
from memplan.planner.space import CHECKPOINTING, CHOSEN, OTHERS, Space, batches, data_ranks, layouts
from memplan.planner.steps import accumulation_class, depends_on_batch, with_same_step
from memplan.planner.words import layout_name
from memplan.resolve import resolve
from memplan.resolve.megatron_stages import check_interleaved
from memplan.spec.reading import JobInput, build_job
from memplan.spec.recipe import Recipe
from memplan.tables.optimizers import OPTIMIZERS

HALF = ("bf16", "fp16")
NESTED = ("fsdp", "megatron", "allocator", "offload", "rollout", "extra_models")


class Candidate(NamedTuple):
    """One way to run the job."""

    keys: Keys
    """Job keys that it sets."""
    recipe: Recipe
    seconds: float
    """Expected, of one example over all GPUs."""
    layout: int
    """Number of its layout (alike where a stage's chunks alone differ); of its checkpointing if one layout."""
    group: Hashable
    """Candidates that differ in nothing but the micro-batch: one that does not fit rules out the larger ones."""
    under: Hashable
    """The group that has the reference's log-probabilities computed before, and so holds no more."""
    order: tuple[float, int, int]
    """Faster ones first; of equally fast ones that with fewer changes, then the one that comes first."""
    training: Hashable = None
    """The same update but for its batch, whatever generates beside it; None where nothing does."""
    ready: Prepared | None = None
    """Of its speed, what all batches of its structure share."""
    floor: int = 0
    """Bytes of model states on the fullest rank of its layout."""

    @property
    def batch(self) -> int:
        """Examples of a micro-step."""
        return self.recipe.batch.size


class Refused(NamedTuple):
    """What ``resolve`` refuses, and why."""

    keys: Keys
    reason: str
    plans: int
    hint: str = ""


class Floored(NamedTuple):
    """A layout whose model states alone are too large."""

    layout: int
    keys: Keys
    plans: int


class Candidates(NamedTuple):
    """All that can run, the fastest first, and what cannot."""

    legal: list[Candidate]
    refused: list[Refused]
    floored: list[Floored]
    outdone: int = 0  # plans: another of the same layout is faster, and holds no more

    @property
    def considered(self) -> int:
        """Plans looked at."""
        left = [*(each.plans for each in self.refused), *(each.plans for each in self.floored)]
        return len(self.legal) + sum(left) + self.outdone


def stays_gathered(recipe: Recipe) -> bool:
    """Weights that one forward gathers are there in the next (FSDP without resharding): after a reference's, the
    policy's gathers nothing beside what it saves, and holds less than without a reference."""
    return recipe.sharding.name in ("fsdp", "fsdp2") and not recipe.sharding.reshard_after_forward


def without_choices(given: JobInput) -> JobInput:
    """The job without the keys that a search chooses."""
    stay = {key: value for key, value in given.job.model_dump(exclude_unset=True).items() if key not in CHOSEN}
    sources = {key: source for key, source in given.sources.items() if key not in CHOSEN}
    return JobInput(build_job(stay), sources, given.ignored, given.spec)


def same_training(space: Space, keys: Keys, asked: bool) -> Keys:
    """The keys, with the precision that keeps the training what it is elsewhere: where nothing is sharded a bare loop
    would store half-precision weights and states alone, while ZeRO, FSDP and Megatron keep fp32 ones. A file's mixed
    precision is ZeRO's with master weights, unless it is ``asked`` for."""
    job = space.job
    if str(keys.get("sharding")).startswith("zero") and job.precision.endswith("-amp") and not asked:
        return {**keys, "precision": job.precision.replace("-amp", "-master")}
    bare = keys.get("sharding") in ("none", "ddp") and job.trainer == "pytorch"
    if not bare or job.precision != "auto" or job.lora is not None or (job.dtype or "bf16") not in HALF:
        return keys
    return {**keys, "precision": f"{job.dtype or 'bf16'}-amp"}


class Builder:
    """Makes candidates, and counts what is refused by its reason."""

    def __init__(self, given: JobInput, space: Space, device: Device, leanest: bool = False) -> None:
        self.given, self.space, self.device, self.leanest = given, space, device, leanest
        self.legal: list[Candidate] = []
        self.refused: dict[tuple[int, str], Refused] = {}
        self.layout, self.structures, self.nested = 0, dict[Hashable, int](), dict[str, JobInput]()
        self.floored, self.outdone = list[Floored](), 0

    def recipe(self, keys: Keys) -> Recipe:
        """The resolved job. Raises MemplanError."""
        given, nested = self._with_nested(keys), self.space.spec
        flat = {key: value for key, value in keys.items() if key not in NESTED and value is not None}
        sources = {**given.sources, **dict.fromkeys(keys, "option")}
        return resolve(JobInput(given.job.model_copy(update=flat), sources, given.ignored, nested))

    def _with_nested(self, keys: Keys) -> JobInput:
        """The job with the keys that hold keys of their own, checked once for each of their values."""
        nested = {key: value for key, value in keys.items() if key in NESTED}
        if not nested:
            return self.given
        name = repr(nested)
        if name not in self.nested:
            values = self.given.job.model_dump(exclude_unset=True)
            for key, value in nested.items():
                values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
            self.nested[name] = self.given._replace(job=build_job(values))
        return self.nested[name]

    def add(self, family: int, layout: Keys) -> None:
        """A layout with everything else, unless its model states alone are too large; but for what another outdoes in
        speed and in memory (``axes.twins_of``)."""
        self.layout += 1
        sizes, known = batches(self.space, data_ranks(self.space, layout)), set[Hashable]()
        better: dict[str, set[Hashable]] = {key: set() for key in OUTDONE}
        everything, floor = others(self.space, layout), 0
        made, ready = Made(), dict[Hashable, Prepared]()
        for other, own, rest, twins in everything:
            if own in known:
                continue
            if any(twin in better[key] for key, twin in twins):
                self.outdone += len(sizes)
                better["pair_pass"].add(own)
                continue
            if any(twin in known for _, twin in twins):
                known.add(own)
                continue
            keys = same_training(
                self.space, in_megatron({**layout, **other}), self.given.sources.get("precision") == "option"
            )
            found = made[own] = joined(other, keys, everything[0].keys, made) or self._resolved(keys, sizes)
            if isinstance(found, Refusal):
                self._refuse(family, keys, found.reasons[0], len(sizes))
                continue
            keys, recipe = found
            floor = floor or floor_of(recipe)
            if floor > allowed_of(recipe):
                self.floored.append(Floored(family, keys, len(everything) * len(sizes)))
                return
            known.update(same := set(named(other, recipe)))
            made |= dict.fromkeys(same, found)
            better["pair_pass"].add(own)
            if recipe.others.reference == LEANEST["reference"] and not stays_gathered(recipe):
                better["reference"].add(frozenset({**other, **LEANEST}.items()))
            if rest not in ready:
                ready[rest] = prepare(recipe, self.device)
            self._batches(family, keys, recipe, sizes, ready[rest], floor)

    def _number(self, keys: Keys) -> int:
        """What a structure of the layout at hand is known by."""
        said = (keys.get(key) for key in OTHERS if key != "offload")
        name = (self.layout, *said, str(keys.get("offload")), keys.get("megatron", {}).get("recompute_modules"))
        return self.structures.setdefault(name, len(self.structures))

    def _resolved(self, keys: Keys, sizes: list[tuple[int, int]]) -> tuple[Keys, Recipe] | Refusal:
        """A structure's recipe with its first batch, or the last where its optimizer may not accumulate; dominated
        values where the dominating ones are refused."""
        size, steps = sizes[-1 if "accumulation" in OPTIMIZERS[self.space.job.optimizer].refusals else 0]
        batch, reasons = {"batch_size": size, **self._steps(steps)}, list[Reason]()
        for attempt in attempts(self.space, keys, reasons):
            try:
                return attempt, self.recipe({**attempt, **batch})
            except MemplanError as error:  # noqa: PERF203  # it names this frame, which would name it
                reasons.append(Reason(error.message, error.hint))
        return Refusal(tuple(reasons))

    def _steps(self, steps: int) -> Keys:
        """The accumulation; where there is none that makes the global batch, that itself, for its reason."""
        if steps:
            return {"gradient_accumulation_steps": steps}
        kept = self.space.fixed.get("gradient_accumulation_steps")
        said = {"gradient_accumulation_steps": kept} if kept else {}
        return {"global_batch_size": self.space.global_batch, **said}

    def _refuse(self, number: int, keys: Keys, why: Reason, count: int) -> None:
        known = self.refused.get((number, why.message), Refused(keys, why.message, 0, why.hint))
        self.refused[number, why.message] = known._replace(plans=known.plans + count)

    def _batches(
        self, number: int, keys: Keys, first: Recipe, sizes: list[tuple[int, int]], ready: Prepared, floor: int
    ) -> None:
        bounded = "reference" in keys and not stays_gathered(first)
        structure = self._number(keys)
        leaner = self._number({**keys, **LEANEST}) if bounded else structure
        changes, met = _changes(self.space, keys), set[int]()
        for size, steps in sizes:
            if self.leanest and steps and accumulation_class(first, steps) in met:
                continue
            full = {**keys, "batch_size": size, "gradient_accumulation_steps": steps}
            try:
                recipe = self._with_batch(first, keys, size, steps)
            except MemplanError as error:
                self._refuse(number, full, Reason(error.message, error.hint), 1)
                continue
            steps_class = accumulation_class(recipe)
            met.add(steps_class)
            took = seconds(recipe, self.device, ready) / examples_per_step(recipe)
            group, under = (structure, steps_class), (leaner, steps_class)
            order = took, changes, len(self.legal)
            self.legal.append(Candidate(full, recipe, took, number, group, under, order, None, ready, floor))

    def _with_batch(self, first: Recipe, keys: Keys, size: int, steps: int) -> Recipe:
        """The recipe with another batch. Raises MemplanError for one that it cannot have."""
        if depends_on_batch(first):
            found = with_same_step(first, size, steps) if self.space.job.logprob_token_budget is None else None
            return found or self.recipe({**keys, "batch_size": size, **self._steps(steps)})
        check_interleaved(first.parallel, steps)
        return first.in_batches(size, steps)


def allowed_of(recipe: Recipe) -> int:
    """Bytes of the card above which nothing fits with the margin."""
    assert recipe.hardware.gpu is not None
    return int(recipe.hardware.gpu.usable_bytes * (1 - recipe.hardware.margin))


def floor_of(recipe: Recipe) -> int:
    """Bytes of model states, or the first that are too many for the card: whatever the passes hold, it cannot fit. They
    depend on the layout, and not on the batch or the other axes (tests/test_plan_order.py). A critic's may wait on the
    host while the policy trains."""
    return stepping(recipe._replace(others=recipe.others._replace(critic=None)), allowed_of(recipe))


PLAIN: dict[str, tuple[Any, ...]] = {
    "gradient_checkpointing": ("none", "full"),
    "loss_head": ("auto",),
    "pair_pass": ("concatenated",),
    "reference": ("auto",),
    "attention": ("sdpa",),
    "optimizer_impl": ("fused", "auto"),
    "reshard_after_forward": (True, None),
    "kernels": ("none",),
    "compile": (False,),
    "offload": (None,),
}
"""What nobody has to set up: of equally fast plans the one with fewer other values comes first."""


def _changes(space: Space, keys: Keys) -> int:
    return sum(keys[key] not in plain for key, plain in PLAIN.items() if key in keys and key not in space.fixed)


def trainings(given: JobInput, space: Space, device: Device, leanest: bool = False) -> Candidates:
    """Every candidate of the space, the fastest first; of an online method with its generation as the job has it.
    ``leanest``: of each group the smallest batch alone, of which one fits where any does."""
    builder, families = Builder(without_choices(given), space, device, leanest), dict[str, int]()
    for number, layout in enumerate(layouts(space)):
        builder.add(families.setdefault(layout_name({**layout, "virtual_pipeline": 1}), number), layout)
    legal = sorted(builder.legal, key=lambda each: each.order)
    if len(families) == 1:
        ways = {how: number for number, how in enumerate(CHECKPOINTING)}
        legal = [each._replace(layout=ways.get(each.keys.get("gradient_checkpointing", ""), -1)) for each in legal]
    return Candidates(legal, list(builder.refused.values()), builder.floored, builder.outdone)
