"""What is gathered and reduced together: a layer at a time, and the root that is left."""

from __future__ import annotations

from typing import NamedTuple

from memplan.engine.tensors import Weight, count, layer_weights, marked
from memplan.spec.model import ModelSpec
from memplan.units import ceil_div


class Units(NamedTuple):
    """Elements that are gathered and reduced together: one layer (the largest), and the root (embedding, norm,
    head).
    """

    layer: int
    root: int
    head: int
    total: int
    trained: int
    trained_layer: int
    trained_root: int


def most_trained(spec: ModelSpec) -> int:
    """Trained elements of the layer that has most of them, where some are frozen."""
    layers = (marked(layer_weights(run.layer, 1, True, None), run.layer.frozen) for run in spec.runs)
    return max(count([weight for weight in own if weight.trained]) for own in layers)


def units(weights: list[Weight], spec: ModelSpec) -> Units:
    """Units of a model wrapped layer by layer, with what is left in the root."""
    root = [weight for weight in weights if weight.unit != "layer"]
    trained = [weight for weight in weights if weight.trained]
    layers = sum(weight.elements * weight.copies for weight in weights if weight.unit == "layer")
    trained_layers = sum(weight.elements * weight.copies for weight in trained if weight.unit == "layer")
    largest = max(run.layer.parameters for run in spec.runs)
    share = ceil_div(largest * trained_layers, max(layers, 1))
    return Units(
        layer=largest,
        root=count(root),
        head=spec.head.parameters,
        total=count(weights),
        trained=count(trained),
        trained_layer=most_trained(spec) if spec.is_frozen else share,
        trained_root=count([weight for weight in root if weight.trained]),
    )
