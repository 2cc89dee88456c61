"""What could be changed of a job as it is: the values of a plan's choices, one step away from the job's own.

A *move* changes one axis, and is of a tier (``tiers``). What costs nothing and is no choice of a job's is no move, and
is tried with every one of them (``pricing``)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memplan.planner import rollout_moves, tiers
from memplan.planner.axes import values
from memplan.planner.changes import LEAST_LENGTH, change
from memplan.planner.model_moves import OF_MODELS, model_moves, with_models
from memplan.planner.space import HEADS, HOSTED, Space, batches, can_be_told, data_ranks, layouts, offloading
from memplan.planner.wider_moves import cards, stored, twice_quantised
from memplan.planner.words import layout_name
from memplan.spec.job import Job
from memplan.spec.other_models import MODELS
from memplan.spec.recipe import Recipe

Keys = dict[str, Any]

DEGREES = ("tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel", "expert_parallel")
LAYOUT, BATCH, HEAD, PAIR, EVALUATION = "layout", "batch_size", "loss_head", "pair_pass", "eval_batch_size"
UNORDERED = (LAYOUT, HEAD, PAIR, *rollout_moves.UNORDERED, *OF_MODELS)
"""Axes of which any value may hold the least. Half a pair's graph beside the other half's gradients can be more than
both graphs, where gradients are large and what is saved is small."""
TRAINING, NUMERICS = "training", "numerics"
"""What a move may change of the training: all of it, or the numerics of its optimizer."""
LEANER: dict[str, Sequence[str]] = {
    "gradient_checkpointing": ("none", "every:4", "every:3", "every:2", "selective", "full"),
    HEAD: HEADS[1:],
    PAIR: ("concatenated", "two-forward", "gradcache", "split"),
    "reference": ("resident", "offloaded", "adapter", "precomputed"),
}
"""Axes beside the layout and the batch, with their values; but for unordered ones what holds less comes later."""
TITLES = {
    "full": "gradient checkpointing",
    "selective": "selective checkpointing",
    "split": "split the pair: one half's graph at a time",
    "gradcache": "gradcache: a pass without a graph, then one half's graph at a time",
    "two-forward": "a forward for each half of the pair",
    "offloaded": "the reference offloaded to CPU",
    "precomputed": "precompute the reference's log-probabilities",
    "adapter": "the reference by turning the adapter off",
}


class Move(NamedTuple):
    """A change of one axis."""

    axis: str
    """Of any that is not unordered the last move holds the least (tests/test_remedies.py)."""
    title: str
    keys: Keys
    """Job keys, as a user would set them over the job's own."""
    ranks: int
    """Ranks that then see other examples."""
    alters: str = ""
    """What of the training it changes."""
    setup: bool = False
    """Something has to be set up, once."""
    far: int = 0
    """How far from the job's own value, of those that change its data, or the cards."""
    tier: int = tiers.FREE


def space_of(job: Job, recipe: Recipe) -> Space:
    """The choices around a job: nothing is fixed, and the global batch is its own."""
    degrees = recipe.parallel
    examples = recipe.batch.size * recipe.batch.accumulation * degrees.data
    vendor = recipe.hardware.gpu.vendor if recipe.hardware.gpu else "nvidia"
    return Space(job, {}, recipe.model, degrees.world, examples, recipe.hardware.gpus_per_node, vendor)


def moves(job: Job, recipe: Recipe) -> list[Move]:
    """Every move that does not change the training; some of them may be refused."""
    space = space_of(job, recipe)
    found = [*_evaluations(recipe), *_others(space, recipe), *_batches(space, recipe), *_layouts(space, recipe)]
    found += [
        Move(each.axis, each.title, each.keys, each.ranks, setup=each.setup, tier=tiers.of_axis(each.axis))
        for each in (*rollout_moves.rollout_moves(job, recipe), *model_moves(recipe))
    ]
    ranks = recipe.parallel.data
    found += [Move("quantization", each.title, each.keys, ranks, tier=each.tier) for each in twice_quantised(space)]
    found += [*_stored(job, recipe), *_cards(space, recipe)]
    return list({repr(move.keys): move for move in found if move.keys}.values())


def _others(space: Space, recipe: Recipe) -> Iterator[Move]:
    """Values of an axis that hold less than the job's own, and that trainers have a switch for."""
    ranks = recipe.parallel.data
    layout = {"sharding": recipe.sharding.name}
    for key, ordered in LEANER.items():
        own = str(recipe.provenance.job.get(key))
        less = ordered[ordered.index(own) + 1 :] if own in ordered else ordered
        less = ordered[-1:] if key == "gradient_checkpointing" and own not in ordered else less  # of some of the layers
        known = values(space, layout, key)
        for value in less:
            if value in known and not value.startswith("every:"):
                tier = tiers.HOST if value == "offloaded" else tiers.of_axis(key)
                setup = key != "gradient_checkpointing"
                yield Move(key, title(key, value), {key: value}, ranks, setup=setup, tier=tier)
    if "liger" in values(space, layout, "kernels"):
        yield Move(HEAD, "Liger's kernels", {"kernels": "liger"}, ranks, setup=True)


def title(key: str, value: str) -> str:
    """What a value of an axis is called."""
    if key == HEAD:
        return f"{value} loss head"
    return TITLES[value]


def _stored(job: Job, recipe: Recipe) -> Iterator[Move]:
    """Weights in 16 bit."""
    for each in stored(job, recipe):
        yield Move("precision", each.title, each.keys, recipe.parallel.data, NUMERICS * bool(each.tier), tier=each.tier)


def _cards(space: Space, recipe: Recipe) -> Iterator[Move]:
    """More cards, of which data parallelism has more ranks."""
    for each in cards(space, recipe):
        ranks = int(each.keys["num_gpus"]) // recipe.parallel.model
        yield Move(LAYOUT, each.title, each.keys, ranks, setup=True, far=each.far, tier=tiers.CARDS)


def _evaluations(recipe: Recipe) -> Iterator[Move]:
    """Smaller batches of the evaluation, which no training sees."""
    size = recipe.batch.eval_size
    while size := size // 2:
        yield Move(EVALUATION, f"evaluation in batches of {size}", {EVALUATION: size}, recipe.parallel.data)


def _batches(space: Space, recipe: Recipe) -> Iterator[Move]:
    """Smaller micro-batches with the same global batch, the smallest last."""
    ranks, tokens = recipe.parallel.data, space.job.token_budget or 0
    if recipe.batch.longest:
        while (tokens := tokens // 2) >= recipe.batch.longest * (2 if recipe.method.pairs else 1):
            yield Move(BATCH, f"micro-batches of {tokens} tokens", {"token_budget": tokens}, ranks)
        return
    for size, steps in reversed(batches(space, ranks)):
        if size < recipe.batch.size and steps:
            yield Move(BATCH, f"batch size {size}", {BATCH: size}, ranks)


def _layouts(space: Space, recipe: Recipe) -> Iterator[Move]:
    """Other ways to share the model states, differing from the job's in one degree at most; then by host."""
    own = {key: int(recipe.provenance.job.get(key) or 1) for key in DEGREES}
    parallel = recipe.in_megatron or any(degree > 1 for degree in own.values())
    for layout in layouts(space):
        degrees = {key: int(layout.get(key) or 1) for key in DEGREES}
        apart = [key for key in DEGREES if degrees[key] != own[key]]
        if len(apart) > 1 or "trainer" in layout or (layout.get("expert_tensor_parallel") or 1) > 1:
            continue
        if apart and not parallel and (apart[0] not in ASIDE or layout.get("reshard_after_forward") is False):
            continue
        if not apart and (
            parallel or _is_own(layout, recipe) or _shares(layout["sharding"]) < _shares(recipe.sharding.name)
        ):
            continue
        made = _layout(space, recipe, layout, apart)
        if apart and not parallel and layout["sharding"] != recipe.sharding.name:
            made = made._replace(keys={"sharding": layout["sharding"], **made.keys}, title=layout_name(layout))
        yield made._replace(tier=tiers.DEGREES if apart else tiers.LITTLE)
    away, of_megatron = recipe.offloaded or recipe.megatron.optimizer_cpu_offload, recipe.trainer.megatron
    if not away and (of_megatron or not parallel):
        for layout in [HOSTED] if of_megatron else offloading(space):
            if not can_be_told(space, layout):
                continue
            yield _layout(space, recipe, layout, [])._replace(tier=tiers.HOST)


ASIDE = ("tensor_parallel", "context_parallel")
"""Degrees that a job without any may take."""
SHARES = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "fsdp2": 3}
"""How much of the model states is shared: states, gradients, parameters."""


def _shares(sharding: str) -> int:
    return SHARES.get(sharding, 0)


def _is_own(layout: Mapping[str, Any], recipe: Recipe) -> bool:
    again = layout.get("reshard_after_forward", recipe.sharding.reshard_after_forward)
    return (
        layout["sharding"] == recipe.sharding.name
        and again == recipe.sharding.reshard_after_forward
        and "fsdp" not in layout
    )


def _layout(space: Space, recipe: Recipe, layout: Mapping[str, Any], apart: Sequence[str]) -> Move:
    """The layout in the keys that the job uses for it: a stage where it names one."""
    job, sharding, ranks = space.job, str(layout["sharding"]), recipe.parallel.data
    if apart:
        ranks = data_ranks(space, layout)
        keys: Keys = {key: layout.get(key, 1) for key in apart}
        if "tensor_parallel" in apart and recipe.in_megatron and not recipe.parallel.sequence:
            keys |= {"sequence_parallel": True} if recipe.parallel.tensor == 1 else {}
        said = ", ".join(f"{key.replace('_', ' ')} {keys[key]}" for key in apart)
        return Move(LAYOUT, said, keys, ranks, setup=True)
    keys = {"sharding": sharding} if sharding != recipe.sharding.name else {}
    if keys and job.zero_stage is not None and sharding.startswith("zero"):
        keys = {"zero_stage": int(sharding[4])}
    more = {key: value for key, value in layout.items() if key not in ("sharding", *DEGREES)}
    if more.get("reshard_after_forward") is True and job.reshard_after_forward is None:
        del more["reshard_after_forward"]
    waits = f", {' and '.join(more['offload'])} offloaded to CPU" if "offload" in more else ""
    name = "" if sharding == "none" else layout_name({**layout, "offload": None})
    return Move(LAYOUT, (name + waits).removeprefix(", "), {**keys, **more}, ranks, setup=True)


def training_moves(job: Job, recipe: Recipe) -> list[Move]:
    """Moves that change the training, the mildest first, and of one axis the mildest value first."""
    found = [*_allowed(job, recipe, "8bit"), *_of_updates(job, recipe)]
    if not any(move.axis == "shorter" for move in found):
        found += _allowed(job, recipe, "shorter")
    return [*found, *_allowed(job, recipe, "lora"), *_allowed(job, recipe, "qlora")]


def _allowed(job: Job, recipe: Recipe, name: str) -> Iterator[Move]:
    """A change that ``memplan plan --allow`` has, in keys that stand over the job's."""
    made = change(name, job)
    for far, keys in enumerate(made.values if made else ()):
        said = {key: value for key, value in keys.items() if value is not None}
        if keys.get("optimizer") == "adamw-8bit" and recipe.sharding.name == "fsdp2":
            said["optimizer_args"] = {"library": "torchao"}  # bitsandbytes takes no DTensors
        length = said.get("sequence_length")
        if said.get("completion_length") == job.completion_length:
            said.pop("completion_length", None)
        if said.get("optimizer_impl") == "auto" and "optimizer_impl" not in job.model_fields_set:
            del said["optimizer_impl"]
        words = f"sequences of {length} tokens" if length else made.words if made else ""
        axis, alters = ("weights" if "lora" in name else name), NUMERICS if name == "8bit" else TRAINING
        yield Move(axis, words, said, recipe.parallel.data, alters, far=far, tier=tiers.of_axis(axis))


def _of_updates(job: Job, recipe: Recipe) -> Iterator[Move]:
    """What the update after a rollout can do without."""
    ranks = recipe.parallel.data
    if recipe.method.optional_reference and recipe.others.reference == "resident":
        words = "no KL term (beta 0), so no reference"
        yield Move("reference", words, {"reference": "none"}, ranks, TRAINING, tier=tiers.TRAINING)
    if recipe.loss.code.entropy_gradient:
        words = "entropy as a metric, without a gradient"
        yield Move("entropy", words, {"entropy": "metric"}, ranks, TRAINING, tier=tiers.TRAINING)
    if recipe.others.critic is not None:
        keys: Keys = {"method": "grpo", **({MODELS: {"critic": None}} if job.extra_models else {})}
        yield Move("method", "GRPO in place of PPO: no critic", keys, ranks, TRAINING, tier=tiers.TRAINING)
    if recipe.batch.group > 1 and recipe.batch.group % 2 == 0:
        group = recipe.batch.group // 2
        keys = {"rollout": {"group_size": group}}
        yield Move("group", f"groups of {group} completions", keys, ranks, TRAINING, tier=tiers.TRAINING)
    if job.rollout and job.rollout.prompt_length and (job.rollout.completion_length or 0) >= 2 * LEAST_LENGTH:
        length = (job.rollout.completion_length or 0) // 2
        keys = {"rollout": {"completion_length": length}}
        lengths = {"sequence_length": job.rollout.prompt_length + length, "completion_length": length}
        keys |= {key: value for key, value in lengths.items() if key in job.model_fields_set}
        yield Move("shorter", f"completions of {length} tokens", keys, ranks, TRAINING, tier=tiers.SHORTER)


def compatible(chosen: Sequence[Move]) -> bool:
    """No axis, and no key, is moved twice; of keys that hold others, none of those."""
    axes = {move.axis for move in chosen}
    keys = [path for move in chosen for path in _paths(move.keys)]
    return len(axes) == len(chosen) and len(keys) == len(set(keys))


def _paths(keys: Keys) -> Iterator[str]:
    for key, value in keys.items():
        yield from (f"{key}.{inner}" for inner in value) if isinstance(value, dict) and key in JOINED else (key,)


JOINED = ("rollout", "sync", MODELS)
"""Keys that hold others, of which moves change one each."""


def together(job: Job, recipe: Recipe, chosen: Sequence[Move]) -> Keys | None:
    """All moves as job keys, with the accumulation that keeps the global batch; None where there is none."""
    keys: Keys = {}
    for key, value in (pair for move in chosen for pair in move.keys.items()):
        keys[key] = {**keys.get(key, {}), **value} if key in JOINED else value
    if MODELS in keys:
        keys[MODELS] = with_models(recipe, keys[MODELS])
    own = recipe.parallel.data
    ranks = next((move.ranks for move in chosen if move.ranks != own), own)
    size = keys.get(BATCH, recipe.batch.size)
    if (size, ranks) == (recipe.batch.size, own):
        return keys
    examples = recipe.batch.size * recipe.batch.accumulation * own
    steps, rest = divmod(examples, size * ranks)
    if not steps and "num_gpus" in keys and job.global_batch_size is None:
        steps, rest = 1, 0  # more cards than examples of a step: it is of more examples then
    if rest or not steps:
        return None
    said = "gradient_accumulation_steps" in job.model_fields_set
    if said or (job.global_batch_size is None and steps != recipe.batch.accumulation):
        keys["gradient_accumulation_steps"] = steps
    return keys
