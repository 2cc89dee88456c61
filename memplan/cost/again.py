"""Seconds that checkpointing repeats of a layer's forward, by what it makes again."""

from itertools import accumulate
from typing import NamedTuple

from memplan.cost.work import ModelWork, Work
from memplan.engine.megatron.stages import layers_of_chunk
from memplan.spec.recipe import Recipe


class Forward(NamedTuple):
    """Seconds of a layer's forward by what they go to."""

    products: float
    attention: float
    """With its scores through memory."""
    outside: float
    """Norms and sums between the products."""
    inside: float
    """Rotations, activations and routing."""
    whole: float
    """All of it, or what the host takes to make it again."""


def again(each: Work, what: str, of: Forward) -> float:
    """``what``: of ``Repeated``."""
    moves = of.outside + of.inside
    known = {
        "full": of.whole,
        "products": 0.5 * of.products + moves,
        "attention": of.products + moves,
        "matmuls": moves,
    }
    return known[what] if what in known else sum(_module(each, name, of) for name in what.split(","))


def _module(each: Work, name: str, of: Forward) -> float:
    """One of Megatron's modules (megatron-core 0.16 transformer/transformer_config.py: recompute_modules), or of those
    that prime-rl checkpoints; of products by its share of the weights that a token passes through."""
    whole = each.weights or 1.0
    shared = sum(one.inputs * one.outputs for one in each.products if one.part)
    raised = sum(
        one.inputs * one.outputs for one in each.products if not (one.part or one.by_rows or one.inputs == each.width)
    )
    routed = each.routed > 0
    return {
        "core_attn": of.attention,
        "attention": of.attention + of.products * (1 - (shared + each.expert) / whole),
        "norms": of.outside,
        "layernorm": of.outside,
        "mla_up_proj": of.products * raised / whole,
        "moe_act": of.inside if routed else 0.0,
        "mlp": 0.0 if routed else of.products * shared / whole + of.inside,
        "moe": of.products * (shared + each.expert) / whole + of.inside if routed else 0.0,
        "shared_experts": of.products * shared / whole if routed else 0.0,
    }.get(name, 0.0)


class Repeated(NamedTuple):
    """What some layers make again."""

    what: str
    """Full, a policy's name, or names of Megatron's modules."""
    shares: tuple[float, ...]
    """Of the layers of each of ``ModelWork.layers``."""


def repeated(recipe: Recipe, work: ModelWork) -> tuple[Repeated, ...]:
    """Of the policy's trained pass; nothing where nothing is checkpointed."""
    again, kinds = recipe.checkpointing.recompute, len(work.layers)
    if again.modules:
        return (Repeated(",".join(sorted(again.modules)), (1.0,) * kinds),)
    if not recipe.checkpointing.layers and not again.policy:
        return ()
    if again.counts:
        ends = accumulate(count for _, count in again.counts)
        return tuple(
            Repeated(policy or "full", _between(work, end - count, end))
            for (policy, count), end in zip(again.counts, ends, strict=True)
        )
    if recipe.in_megatron:
        return (Repeated("full", _in_megatron(recipe, work)),)
    return (Repeated(again.policy or "full", _covered(recipe, work)),)


def _covered(recipe: Recipe, work: ModelWork) -> tuple[float, ...]:
    """Of each kind, the share of its layers that are checkpointed."""
    again, first, found = recipe.checkpointing.recompute, 0, []
    if again.every == 1:
        return (1.0,) * len(work.layers)
    shift = again.every - 1 if again.from_first else 0
    for count, _ in work.layers:
        end = first + count
        found.append(((end + shift) // again.every - (first + shift) // again.every) / max(count, 1))
        first = end
    return tuple(found)


def _between(work: ModelWork, first: int, end: int) -> tuple[float, ...]:
    """Of each kind, the share of its layers that stand from ``first`` up to ``end``."""
    counts = [count for count, _ in work.layers]
    starts = [0, *accumulate(counts)]
    inside = (max(0, min(start + count, end) - max(start, first)) for start, count in zip(starts, counts, strict=False))
    return tuple(many / count if count else 0.0 for many, count in zip(inside, counts, strict=True))


def _in_megatron(recipe: Recipe, work: ModelWork) -> tuple[float, ...]:
    """Of full recomputation: all layers, or the first of each chunk, in a pipeline of the fullest stage, as if every
    kind had the same share (megatron-core 0.16 transformer/transformer_block.py: _checkpointed_forward, block)."""
    settings, degrees, layers = recipe.megatron, recipe.parallel, recipe.model.num_layers
    kinds = len(work.layers)
    if settings.recompute_method != "block" or not layers:
        return (1.0,) * kinds
    if degrees.pipeline == 1:
        return _between(work, 0, settings.recompute_num_layers)
    stages = [
        [layers_of_chunk(layers, degrees, settings, stage, chunk) for chunk in range(degrees.virtual)]
        for stage in range(degrees.pipeline)
    ]
    fullest = max(stages, key=sum)
    return (sum(min(count, settings.recompute_num_layers) for count in fullest) / sum(fullest),) * kinds
