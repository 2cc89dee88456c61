"""The part of a model that one rank holds under torch's own tensor and pipeline parallelism, as torchtitan uses it."""

from functools import lru_cache
from typing import Any

from memplan.engine.tensors import Weight
from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.spec.parts import Attention, Experts, FeedForward, Linear
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


@lru_cache(maxsize=256)
def part_of(spec: ModelSpec, degrees: Parallel) -> ModelSpec:
    """The model of one rank: every ``tensor``-th head, column and vocabulary entry, the layers of its stage.

    Norms are whole; of a vocabulary that does not divide the first, larger part."""
    runs = tuple(run.but(layer=_narrowed(run.layer, degrees)) for run in _of_stage(spec, degrees))
    if degrees.expert > 1:
        parts = degrees.tensor // degrees.expert_tensor
        runs = tuple(run.but(layer=_by_rows(run.layer, parts)) for run in runs)
    vocabulary, head = ceil_div(spec.vocab_size, degrees.tensor), spec.head
    outputs = head.outputs if head.outputs == 1 else ceil_div(head.outputs, degrees.tensor)
    changes: dict[str, Any] = {
        "runs": runs,
        "vocab_size": (spec.vocab_size if degrees.whole_embedding else vocabulary) if degrees.first else 0,
        "head": head.but(outputs=outputs if degrees.last else 0),
        "embedding_parts": degrees.tensor if degrees.whole_stream and not degrees.whole_embedding else 1,
        "tied": spec.tied and degrees.pipeline == 1,
    }
    if not degrees.last:
        changes["final_norm"] = None
    return spec.model_copy(update=changes)


def stage_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage: the first stages have one more where they do not divide."""
    return [layers // stages + (1 if stage < layers % stages else 0) for stage in range(stages)]


def _of_stage(spec: ModelSpec, degrees: Parallel) -> list[Run]:
    """The runs of a stage's layers."""
    counts = stage_layers(spec.num_layers, degrees.pipeline)
    first = sum(counts[: degrees.stage])
    last, at, runs = first + counts[degrees.stage], 0, []
    for run in spec.runs:
        inside = min(at + run.count, last) - max(at, first)
        if inside > 0:
            runs.append(run.but(count=inside))
        at += run.count
    return runs


def _narrowed(layer: Layer, degrees: Parallel) -> Layer:
    """A layer with a part of its heads and of its feed-forward: what makes latents, and routers, are whole."""
    tensor = degrees.tensor
    if tensor == 1:
        return layer
    from memplan.spec.attention_kinds import LatentAttention  # which a job without tensor parallelism never loads

    mixer, inner = layer.mixer, layer.feed_forward
    assert isinstance(mixer, (Attention, LatentAttention))
    assert isinstance(inner, FeedForward)
    heads = {"num_heads": mixer.num_heads // tensor}
    if isinstance(mixer, Attention):
        heads["num_kv_heads"] = mixer.num_kv_heads // tensor
        linears = _split(mixer.linears, tensor)
    else:
        *latent_of_queries, queries, latent, up, out = mixer.linears
        queries, up, out = _split((queries, up, out), tensor)
        linears = (*latent_of_queries, queries, latent, up, out)
    width = {
        "intermediate": inner.intermediate // tensor,
        "linears": _split(inner.linears, tensor),
        "shared": _split(inner.shared, tensor),
        "experts": _thinned(inner.experts, expert_parts(degrees)) if inner.experts else None,
    }
    changes = {"mixer": mixer.model_copy(update={**heads, "linears": linears})}
    return layer.model_copy(update={**changes, "feed_forward": inner.model_copy(update=width)})


def expert_parts(degrees: Parallel) -> int:
    """Ranks that have a part of each expert: where none are spread, those that share every product."""
    return degrees.expert_tensor if degrees.expert > 1 else degrees.tensor


def _thinned(experts: Experts, parts: int) -> Experts:
    """Experts that are a part as wide each: rows of gate and up, columns of down."""
    (count, up, inner), (_, outer, down) = (bare.shape for bare in experts.stacked)
    shapes = (count, up // parts, inner), (count, outer, down // parts)
    stacked = tuple(bare.but(shape=shape) for bare, shape in zip(experts.stacked, shapes, strict=True))
    return experts.but(stacked=stacked, intermediate=experts.intermediate // parts)


def _by_rows(layer: Layer, parts: int) -> Layer:
    """Experts as torchtitan divides them where ranks hold different ones: by expert, and each by rows, which fills
    nothing up (models/llama4/infra/parallelize.py: apply_fsdp, shard_placement_fn); over ``parts`` of the
    tensor-parallel ranks too, where these hold whole experts."""
    inner = layer.feed_forward
    if inner is None or inner.experts is None:
        return layer
    stacked = tuple(
        bare.but(shape=(bare.shape[0] * bare.shape[1] // parts, bare.shape[2])) for bare in inner.experts.stacked
    )
    experts = inner.experts.but(stacked=stacked)
    return layer.but(feed_forward=inner.but(experts=experts))


def _split(linears: tuple[Linear, ...], tensor: int) -> tuple[Linear, ...]:
    """Columns of all but the last, whose rows are split."""
    if not linears:
        return ()
    *columns, row = linears
    split = [linear.but(outputs=linear.outputs // tensor) for linear in columns]
    return (*split, row.but(inputs=row.inputs // tensor))


def of_rank(weight: Weight, recipe: Recipe) -> tuple[Weight, int]:
    """What FSDP divides, and over how many ranks: of experts that are spread, those of the rank's own, over the ranks
    that have the same, to which those of tensor parallelism belong where these hold whole ones."""
    degrees = recipe.parallel
    if degrees.expert == 1 or recipe.sharding.name != "fsdp2" or not weight.name.startswith("experts."):
        return weight, recipe.sharding.ranks
    parts = degrees.tensor // degrees.expert_tensor  # of what a rank's model has of them (``part_of``)
    rows, first = (size * parts // degrees.expert for size in (weight.rows, weight.first))
    return weight._replace(rows=rows, first=first), recipe.sharding.ranks * parts // degrees.expert
