"""The engine of each stage, for a recipe's play."""

from __future__ import annotations

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.parallel.zero.flat_groups import groups_of
from memplan.engine.play.resident import in_order
from memplan.engine.play.zero.engine import joined
from memplan.engine.play.zero.partitions import Partitions
from memplan.engine.play.zero.places import Places
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights
from memplan.spec.recipe import Recipe


def with_engine(played: StepEvents, recipe: Recipe, rank: int | None = None) -> StepEvents:
    """A play whose hooks left notes, with what DeepSpeed does there; on the rank that keeps most, or another."""
    adapter = recipe.adapter
    groups = groups_of(recipe, model_weights(recipe.model, adapter is None, adapter))
    return joined(played, Partitions(played, recipe, Places(groups, trained(recipe), recipe.sharding.ranks, rank)))


def trained(recipe: Recipe) -> list[tuple[int | None, Weight]]:
    """Every trained parameter with its layer, in the model's order."""
    adapter, places, layer = recipe.adapter, list[int | None](), 0
    for run in recipe.model.runs:
        count = sum(1 for _ in marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen))
        places += [layer + i for i in range(run.count) for _ in range(count)]
        layer += run.count
    weights = in_order(recipe.model, adapter is None, adapter)
    first = next((i for i, weight in enumerate(weights) if weight.unit == "layer"), len(weights))
    behind = (None for _ in range(len(weights) - first - len(places)))
    layers: list[int | None] = [*(None for _ in range(first)), *places, *behind]
    return [(layer, weight) for layer, weight in zip(layers, weights, strict=True) if weight.trained]
