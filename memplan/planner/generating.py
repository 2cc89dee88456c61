"""How GPUs are split between a trainer and the engine that generates: placements, the engine's ranks and share, what
sleeps or waits on the host meanwhile. What a job says of its rollout is kept; the rest is tried with every plan."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

from memplan.cost.rates import EXPECTED, Device
from memplan.cost.step import of_generation
from memplan.errors import MemplanError
from memplan.gpus import find_gpu
from memplan.models import load_model
from memplan.planner.degrees import Keys, twos
from memplan.planner.space import Space
from memplan.resolve.trainers import trainers_of
from memplan.rollout.bounds import is_of_whole
from memplan.spec.generation import Generator
from memplan.spec.job import Job
from memplan.spec.recipe import Recipe
from memplan.spec.rollout import Rollout, share_key
from memplan.tables.generation import Generation, generation_of
from memplan.tables.methods import METHODS
from memplan.tables.trainers import NEWEST, TRAINERS

SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9)
"""Of the card that are tried; what holds every sequence at once is no faster with more."""
OF_SHARE = ("gpu_memory_utilization", "mem_fraction_static")
MOST_TENSOR = 8
DIVIDED_SHARE = 0.5
HALF = 2
"""Bytes of a weight in 16 bits."""
CROWDED = 2 / 3
"""Of a node's room for an engine, taken by weights: a trainer beside it may have no place left."""
SAME = 0.01
"""Times as near as that, as a share, count as equal."""
NOTHING = Rollout.model_construct()


USUAL = ("trl", "verl", "verl-megatron")
"""Trainers that generate, the most used first, one of them and one on Megatron for a job that names none."""


def usual_trainers(job: Job, gpus: int) -> list[str]:
    """Of an online method without a trainer, those whose plans are tried: a bare loop generates nothing, so that its
    speed would be the update's alone. None where the job says that nothing generates, or generates by itself."""
    alone = not METHODS[job.method].online or "trainer" in job.model_fields_set
    if alone or (job.rollout and job.rollout.engine in ("none", "hf")):
        return []
    known = trainers_of(job.method)
    rows = [TRAINERS[name][-1] for name in USUAL if name in known]
    first = {row.megatron: row.name for row in reversed(rows) if gpus > 1 or not row.megatron}
    return [first[key] for key in sorted(first)]


class Way(NamedTuple):
    """One way to generate beside the training."""

    rollout: Keys
    """Keys inside ``rollout``."""
    offload: tuple[str, ...] | None
    """``trainer_offload``; None where it stays the job's."""
    engine_gpus: int
    """Cards of the engine's own; 0 where it stands on the trainer's."""
    models: tuple[Keys, ...] = ()
    """``extra_models``; none where they stay the job's."""

    @property
    def keys(self) -> Keys:
        """Job keys."""
        keys: Keys = {"rollout": self.rollout}
        keys |= {"extra_models": list(self.models)} if self.models else {}
        return keys | ({"trainer_offload": self.offload} if self.offload is not None else {})

    @property
    def split(self) -> Hashable:
        """Of each split the fastest is shown: where the engine stands, and what makes room for it."""
        return self.engine_gpus, self.rollout.get("sleep"), self.offload, bool(self.models)

    @property
    def alike(self) -> Hashable:
        """The same of ways that differ in the engine's share of the card alone."""
        others = {key: value for key, value in self.rollout.items() if key not in OF_SHARE}
        return repr(others), self.offload, bool(self.models)

    @property
    def share(self) -> float | None:
        """The engine's of the card, where the way says it."""
        return next((self.rollout[key] for key in OF_SHARE if key in self.rollout), None)


def ways(job: Job, space: Space) -> list[Way]:
    """Every way, those on the trainer's cards first; none where no engine is planned for, or all of it is given."""
    row, asked = row_of(job), job.rollout or NOTHING
    if not METHODS[job.method].online:
        return []
    engine = asked.engine or (row.engine if row.engine not in ("none", "hf") else "")
    if not engine and row.engine == "hf" and asked.engine is None:
        engine = row.colocated
    if engine not in ("vllm", "sglang") or space.gpus < 1:
        return []
    named: Keys = {} if asked.engine else {"engine": engine}
    named |= bounded(job)
    found = []
    if asked.placement != "separate" and "colocate" in row.places:
        found += [way._replace(rollout={**named, **way.rollout}) for way in _beside(job, asked, row, engine, space)]
    if asked.placement == "separate" or (asked.placement is None and stands_apart(job)):
        found += [way._replace(rollout={**named, **way.rollout}) for way in _apart(asked, engine, space)]
    divided = _divided(job, space)
    return [*found, *(way._replace(models=divided) for way in found if divided)]


def bounded(job: Job) -> Keys:
    """``max_model_len`` of prompt and completion, where the trainer's engine would take the model's whole context: a
    cache that must hold a sequence which no job has."""
    asked = job.rollout or NOTHING
    given = asked.max_model_len is not None or asked.engine in ("none", "hf")
    if given or not METHODS[job.method].online or not row_of(job).whole_context:
        return {}
    lengths = asked.prompt_length or 0, asked.completion_length or 0
    return {"max_model_len": sum(lengths) if all(lengths) else job.sequence_length}


def _divided(job: Job, space: Space) -> tuple[Keys, ...]:
    """The models beside the policy, a reward model's engine over as many GPUs of a node as it can be, with half of each
    unless the job says more; nothing where none has an engine, or the job says over how many."""
    models, changed = [extra.model_dump(exclude_unset=True) for extra in job.extra_models], False
    for extra, said in zip(job.extra_models, models, strict=True):
        if extra.rollout is None or extra.model is None or "tensor_parallel" in extra.rollout.model_fields_set:
            continue
        try:
            heads = load_model(extra.model).num_heads
        except MemplanError:
            continue
        most = [t for t in twos(min(MOST_TENSOR, space.per_node, space.gpus)) if heads % t == space.gpus % t == 0]
        own = share_key(extra.rollout.engine or "vllm")
        said["rollout"] = {own: DIVIDED_SHARE, **said["rollout"], "tensor_parallel": most[-1]}
        changed = True
    return tuple(models) if changed else ()


def stands_apart(job: Job) -> bool:
    """Whether the engine may stand on cards of its own in a plan."""
    row = row_of(job)
    return "separate" in row.places and not (row.critic_apart and METHODS[job.method].critic)


def not_apart(job: Job, space: Space) -> str:
    """Why no cards of the engine's own were tried; nothing where they were, or where the job says where it stands."""
    if stands_apart(job) or (job.rollout or NOTHING).placement or not ways(job, space):
        return ""
    if "separate" in row_of(job).places:
        return f"{job.trainer}'s critic then stands on cards of its own too, which is not modelled"
    if not row_of(job).behind:
        return f"{job.trainer} has no cards apart"
    return (
        f"{job.trainer}'s recipes with cards apart are a step off the policy: another training "
        "(--set rollout.placement=separate plans it)"
    )


def row_of(job: Job) -> Generation:
    """What the job's trainer does."""
    return generation_of(job.trainer, job.trainer_version or NEWEST.get(job.trainer, ""))


def _given(asked: Rollout, key: str, values: Sequence[Any]) -> Sequence[Any]:
    """The job's own value alone, where it has one: None stands for that."""
    return (None,) if key in asked.model_fields_set else values


def _keys(**keys: Any) -> Keys:
    return {key: value for key, value in keys.items() if value is not None}


def _ranks(asked: Rollout, space: Space, gpus: int) -> Sequence[Any]:
    """Those of a node, and of more nodes the fewest whose cards hold the weights in 16 bits where one node's do not, or
    have little left beside them (``CROWDED``)."""
    most, heads = min(MOST_TENSOR, space.per_node, gpus), max(space.spec.num_heads, 1)
    room = SHARES[-1] * find_gpu(space.job.gpu or "").usable_bytes
    over = (t for t in twos(gpus) if t > most and HALF * space.spec.params.total <= t * room)
    crowded = HALF * space.spec.params.total > most * room * CROWDED
    found = [*twos(most), *islice(over, 1 if crowded else 0)]
    return _given(asked, "tensor_parallel", [t for t in found if heads % t == 0 and gpus % t == 0])


def _beside(job: Job, asked: Rollout, row: Generation, engine: str, space: Space) -> Iterator[Way]:
    """On the trainer's cards: asleep while it trains where it can, what it can put on the host there or not."""
    level = row.asleep or row.sleep
    own_levels = [str(level)] if row.always_sleeps else [str(level), "none"]
    levels = _given(asked, "sleep", own_levels if level else [None])
    aways: Sequence[tuple[str, ...] | None] = [None]
    if job.trainer_offload is None and row.can_offload:
        aways = [(), ("optimizer",), ("parameters", "optimizer")]
    own = share_key(engine)
    shares = (None,) if asked.kv_cache_memory else _given(asked, own, SHARES)
    place = _given(asked, "placement", ["colocate"])
    for tensor, level_, away, share, where in product(_ranks(asked, space, space.gpus), levels, aways, shares, place):
        yield Way(_keys(placement=where, tensor_parallel=tensor, sleep=level_, **{own: share}), away, 0)


def _apart(asked: Rollout, engine: str, space: Space) -> Iterator[Way]:
    """On cards of their own: a part of the GPUs, which the trainer then has not."""
    parts = sorted({*twos(space.gpus // 2), space.gpus // 4 * 3})
    counts = _given(asked, "num_gpus", [n for n in parts if 0 < n < space.gpus])
    own = share_key(engine)
    shares = (None,) if asked.kv_cache_memory else _given(asked, own, (0.8, 0.9))
    for count in counts:
        cards = count or asked.num_gpus or 1
        for tensor, share in product(_ranks(asked, space, cards), shares):
            keys = _keys(placement="separate", num_gpus=count, tensor_parallel=tensor, **{own: share})
            yield Way(keys, None, cards if count else 0)


class Generators:
    """What a way comes to with a training's recipe: resolved once for all trainings that are alike to it, and for all
    ways that are but for a share."""

    def __init__(self, resolved: Callable[[Keys], Recipe], device: Device) -> None:
        self.resolved, self.device = resolved, device
        self.known: dict[Hashable, Generator | None] = {}
        self.first: dict[Hashable, tuple[Generator | None, float | None]] = {}

    def recipe(self, keys: Keys, base: Recipe, number: int, way: Way) -> Recipe | None:
        """The training's recipe with the way's generator; None where it cannot be. ``number``: of the way."""
        split = base.sharding.name, base.several, base.parallel.world, base.parallel.model
        of = *split, base.wrapper, base.adapter is None, base.batch.group  # what ``resolve/generation.py`` reads
        if (number, of) not in self.known:
            self.known[number, of] = self._generator(keys, way, of)
        found = self.known[number, of]
        return None if found is None else base._replace(generator=found)

    def _generator(self, keys: Keys, way: Way, of: Hashable) -> Generator | None:
        """A way's: that of the first alike with its own share, where that one came to what it says."""
        if (way.alike, of) not in self.first:
            try:
                self.first[way.alike, of] = self.resolved({**keys, **way.keys}).generator, way.share
            except MemplanError:
                self.first[way.alike, of] = None, None
        found, said = self.first[way.alike, of]
        return found._replace(share=way.share) if found and way.share and found.share == said else found

    def seconds(self, training: float, recipe: Recipe) -> float:
        """Of a step, of which ``training`` is the update's."""
        return training + sum(of_generation(recipe, training, self.device, EXPECTED))


def engines_of(recipe: Recipe) -> list[Generator]:
    """Those that take a share of the card: the policy's, and a reward model's."""
    of = recipe.generator
    return [each for each in (of, of and of.scorer) if each is not None and each.engine not in ("none", "hf")]


def useful(found: Sequence[tuple[Way, Recipe]], device: Device, leanest: bool = False) -> list[tuple[Way, Recipe]]:
    """Without those that may not hold one sequence, and of the shares that are equally fast without the larger;
    ``leanest``: of those that are of the whole card the smallest alone, beside which most is left."""
    from memplan.cost.generation import generating

    certain = [each for each in found if not _may_fail(each[1])]
    best: dict[Hashable, float] = {}
    kept = []
    for way, recipe in certain or found:
        took = generating(recipe, device, EXPECTED)
        if took.held >= 1 and took.seconds < best.get(way.alike, float("inf")) * (1 - SAME):
            best[way.alike] = 0.0 if leanest and all(map(is_of_whole, engines_of(recipe))) else took.seconds
            kept.append((way, recipe))
    return kept


def _may_fail(recipe: Recipe) -> bool:
    """Whether the engine's start hangs on what is uncertain."""
    from memplan.engine.generation.figures import engine_figures

    of, gpu = recipe.generator, recipe.hardware.gpu
    return of is not None and gpu is not None and of.engine != "hf" and engine_figures(of, gpu, None, False).may_fail
