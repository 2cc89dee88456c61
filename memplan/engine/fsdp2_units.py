"""The units that FSDP2 gathers and reduces: a decoder layer each, and the root around them; sizes of one in bytes.

Sizes are padded: each tensor is split along its first dimension (torch 2.13 _fully_shard/_fsdp_param.py).
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.engine.passes import TracedPass
from memplan.engine.tensors import Weight, layer_weights, model_weights
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


class Unit(NamedTuple):
    """What is gathered and reduced together, in bytes."""

    gathered: int
    """Weights as modules use them."""
    gradients: int
    """Whole gradients as autograd makes them."""
    reduced: int
    """Input of the reduce-scatter, in the reduction's dtype."""
    scattered: int
    """Its output, and the copy in the weights' dtype where that is another."""
    shard: int
    """Gradients that stay: the rank's part, in the weights' dtype."""
    last: int
    """The gradient of its last tensor: a loop's variable keeps it through the reduction (``foreach_reduce``)."""


class Frame(NamedTuple):
    """The units of a model, and how they are gathered."""

    layers: list[Unit]
    root: Unit
    reshards: bool

    @property
    def all_layers(self) -> int:
        """Gathered bytes of all layers."""
        return sum(unit.gathered for unit in self.layers)


def padded(weight: Weight, ranks: int) -> int:
    """Elements of a tensor whose first dimension is filled up to a multiple of the ranks."""
    first = weight.stacked if weight.stacked > 1 else weight.rows
    return ceil_div(first, ranks) * ranks * (weight.elements // first)


def waits_for_reduction(recipe: Recipe) -> bool:
    """Whether some backward of the step reduces nothing: micro-steps before the last, halves before the last."""
    halves = recipe.method.pairs and recipe.pair_pass in ("split", "gradcache")
    return not recipe.sync_each_batch and (recipe.accumulates or halves)


def adds_in_place(recipe: Recipe) -> bool:
    """Whether a gradient is added to one that waits in autograd's own dtype; in another dtype it waits as a copy
    (``to_accumulated_grad_if_needed``).
    """
    return waits_for_reduction(recipe) and recipe.reduce_itemsize == recipe.compute_itemsize


def unit_of(weights: list[Weight], recipe: Recipe) -> Unit:
    """The bytes of one unit."""
    gathered = gradients = reduced = scattered = shard = last = 0
    for weight in weights:
        elements, used = padded(weight, recipe.ranks) * weight.copies, recipe.compute_itemsize
        if weight.adapter and recipe.adapter and not recipe.precision.mixed:
            used = weight.itemsize or recipe.adapter.itemsize
        gathered += elements * used
        if weight.trained:
            summed = recipe.reduce_itemsize if recipe.reduce_itemsize != recipe.compute_itemsize else used
            stored = recipe.adapter.itemsize if weight.adapter and recipe.adapter else recipe.precision.weights
            last = elements * used
            gradients += last
            reduced += elements * summed
            scattered += elements // recipe.ranks * (summed + (stored if stored != summed else 0))
            shard += elements // recipe.ranks * stored
    return Unit(gathered, gradients, reduced, scattered, shard, last)


def frame(recipe: Recipe, weights: list[Weight]) -> Frame:
    """The policy's units."""
    adapter = recipe.adapter
    layers = []
    for run in recipe.model.runs:
        of_layer = list(layer_weights(run.layer, 1, adapter is None, adapter))
        layers += [unit_of(of_layer, recipe)] * run.count
    root = unit_of([weight for weight in weights if weight.unit != "layer"], recipe)
    return Frame(layers, root, recipe.reshard_after_forward)


def frozen_frame(recipe: Recipe, traced: TracedPass) -> Frame:
    """The reference's units, in the dtype that it computes in; none is reduced."""
    itemsize, spec, ranks = traced.plan.mode.weight_itemsize, traced.plan.spec, recipe.ranks

    def unit(weights: list[Weight]) -> Unit:
        return Unit(sum(padded(weight, ranks) * weight.copies for weight in weights) * itemsize, 0, 0, 0, 0, 0)

    layers = [unit(list(layer_weights(run.layer, 1, False, None))) for run in spec.runs for _ in range(run.count)]
    return Frame(layers, unit(_root_weights(spec)), recipe.reshard_after_forward)


def _root_weights(spec: ModelSpec) -> list[Weight]:
    return [weight for weight in model_weights(spec, False) if weight.unit != "layer"]
