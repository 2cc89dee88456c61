"""FSDP1's flat parameters that hold trained and frozen weights together (``use_orig_params``).

A flat parameter needs a gradient as soon as one of its weights does, and modules use views of it: they save, and
autograd makes gradients, as if all of it were trained (torch 2.13 distributed/fsdp/_flat_param.py:
_validate_tensors_to_flatten, _use_unsharded_views). The optimizer steps on the trained ones, of which a rank holds what
its part of the flat parameter covers (_get_shard_metadata): one rank more than another.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from memplan.engine.fsdp2_units import gathers, in_flat
from memplan.engine.modules import Mode
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights
from memplan.spec.layer import Layer
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

Unit = tuple[list[Weight], int]
"""The weights of one flat parameter, one of each, and how many such units there are."""


def mode_of_layer(mode: Mode, layer: Layer) -> Mode:
    """How a layer's modules run: which of its weights receive gradients."""
    if layer.unadapted and mode.adapter is not None:
        mode = mode._replace(adapter=mode.adapter.nowhere)
    if mode.flat:
        weights = layer_weights(layer, 1, False, mode.adapter)
        return mode._replace(trained=any(in_flat(weight, mode.flat == "apart", mode.adapter) for weight in weights))
    return mode._replace(frozen=layer.frozen) if layer.frozen else mode


def flat_mode(recipe: Recipe) -> str:
    """``Mode.flat`` of the policy."""
    if recipe.sharding != "fsdp" or recipe.adapter is None or not gathers(recipe):
        return ""
    return "apart" if recipe.fsdp.wraps_adapters else "together"


def mixes(recipe: Recipe) -> bool:
    """Whether some flat parameter may hold trained and frozen weights. Critics are seen without."""
    some = recipe.adapter is not None or recipe.model.is_frozen
    return recipe.sharding == "fsdp" and gathers(recipe) and some and recipe.critic is None


def root_trains(recipe: Recipe) -> bool:
    """Whether the root's flat parameter holds a trained weight beside adapters, so that all of it gets gradients."""
    if not flat_mode(recipe):
        return False
    *_, (root, _) = _units(recipe.model, recipe.adapter)
    return _is_trained(recipe, root)


def reached_spec(recipe: Recipe) -> ModelSpec:
    """The model with nothing frozen where autograd makes gradients all the same."""
    spec = recipe.model
    if not (mixes(recipe) and recipe.adapter is None):
        return spec
    *layers, (root, _) = _units(spec, None)
    nothing: frozenset[str] = frozenset()
    runs = tuple(
        run.model_copy(update={"layer": run.layer.model_copy(update={"frozen": nothing})})
        if run.layer.frozen and _is_trained(recipe, weights)
        else run
        for run, (weights, _) in zip(spec.runs, layers, strict=True)
    )
    return spec.model_copy(update={"runs": runs, "frozen": nothing if _is_trained(recipe, root) else spec.frozen})


def reached(recipe: Recipe, weights: list[Weight]) -> list[Weight]:
    """The weights that autograd makes gradients of."""
    if not mixes(recipe):
        return [weight for weight in weights if weight.trained]
    return [
        weight._replace(copies=weight.copies * count, trained=True)
        for unit, count in _units(recipe.model, recipe.adapter)
        for weight in unit
        if weight.trained or _is_trained(recipe, unit)
    ]


def fullest(recipe: Recipe, weights: list[Weight]) -> list[Weight]:
    """The trained weights; where ranks hold unequal parts, so large as if all of them held what the fullest does."""
    trained = [weight for weight in weights if weight.trained]
    if not mixes(recipe):
        return trained
    parts, rank = _all_parts(recipe), fullest_rank(recipe)
    return [
        weight._replace(rows=size[rank] * recipe.ranks, columns=1, stacked=1)
        for unit in parts
        for weight, size in unit
        if size[rank]
    ]


def fullest_rank(recipe: Recipe) -> int:
    """The rank that holds most of what is trained: the first, where all hold as much."""
    if not mixes(recipe):
        return 0
    units = _all_parts(recipe)
    held = [sum(size[rank] * weight.copies for unit in units for weight, size in unit) for rank in range(recipe.ranks)]
    return held.index(max(held))


def _all_parts(recipe: Recipe) -> list[list[tuple[Weight, list[int]]]]:
    return [_parts(recipe, unit, count) for unit, count in _units(recipe.model, recipe.adapter)]


def _parts(recipe: Recipe, unit: list[Weight], count: int) -> list[tuple[Weight, list[int]]]:
    """Each trained weight of a unit with the elements that every rank holds of it; adapters apart are split evenly."""
    ranks, apart = recipe.ranks, recipe.fsdp.wraps_adapters
    together = [weight for weight in unit if not (weight.trained and not in_flat(weight, apart, recipe.adapter))]
    ends = list(accumulate(weight.elements * weight.copies for weight in together))
    part = ceil_div(ends[-1], ranks) if ends else 0
    found = []
    for weight, end in zip(together, ends, strict=True):
        start = end - weight.elements * weight.copies
        sizes = [max(0, min(end, (r + 1) * part) - max(start, r * part)) for r in range(ranks)]
        found.append((weight._replace(copies=count), sizes))
    alone = [(weight, [ceil_div(weight.elements, ranks)] * ranks) for weight in unit if weight not in together]
    found += [(weight._replace(copies=weight.copies * count), sizes) for weight, sizes in alone]
    return [(weight, sizes) for weight, sizes in found if weight.trained]


def _is_trained(recipe: Recipe, unit: list[Weight]) -> bool:
    return any(in_flat(weight, recipe.fsdp.wraps_adapters, recipe.adapter) for weight in unit)


@lru_cache(maxsize=64)
def _units(spec: ModelSpec, adapter: Adapter | None) -> list[Unit]:
    """The flat parameter of each run's layers; the root's last."""
    found: list[Unit] = [
        (list(marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen)), run.count)
        for run in spec.runs
    ]
    root = [weight for weight in model_weights(spec, adapter is None, adapter) if weight.unit != "layer"]
    return [*found, (root, 1)]
