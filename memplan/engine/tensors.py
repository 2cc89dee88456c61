"""The parameter tensors of a model, as the optimizer and the shards see them: how many of which size."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from memplan.spec.model import Layer, ModelSpec
from memplan.spec.parts import Bare, Norm, Part
from memplan.spec.recipe import Adapter


class Weight(NamedTuple):
    """``copies`` tensors of ``rows`` × ``columns`` elements (one column for a vector), ``unit`` the module that holds
    them.
    """

    name: str
    rows: int
    columns: int
    copies: int
    trained: bool
    unit: str
    """embedding, layer, head or norm: what is gathered and freed together."""
    adapter: bool = False
    stacked: int = 1
    """Matrices stacked in one 3-D tensor (experts)."""

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return self.rows * self.columns * self.stacked


def layer_weights(layer: Layer, count: int, trained: bool, adapter: Adapter | None) -> Iterator[Weight]:
    """Every parameter of a run of equal layers, in registration order."""
    for linear in layer.linears:
        yield Weight(linear.name, linear.outputs, linear.inputs, count, trained, "layer")
        if linear.bias:
            yield Weight(linear.name + ".bias", linear.outputs, 1, count, trained, "layer")
        if adapter and linear.name in adapter.targets:
            yield Weight(linear.name + ".lora_A", adapter.rank, linear.inputs, count, True, "layer", adapter=True)
            yield Weight(linear.name + ".lora_B", linear.outputs, adapter.rank, count, True, "layer", adapter=True)
    for bare in layer.experts.stacked if layer.experts else ():
        yield bare_weight(bare, count, trained, "layer")
    for part in layer.parts:
        for bare in part.tensors:
            yield bare_weight(bare, count, trained, "layer")
    for norm in (*layer.norms, *(norm for part in layer.parts for norm in part.norms)):
        yield from norm_weights(norm, count, trained, "layer")


def norm_weights(norm: Norm, count: int, trained: bool, unit: str) -> Iterator[Weight]:
    """Weight and bias of a norm."""
    yield Weight(norm.name, norm.width, 1, count, trained, unit)
    if norm.bias:
        yield Weight(norm.name + ".bias", norm.width, 1, count, trained, unit)


def bare_weight(bare: Bare, count: int, trained: bool, unit: str) -> Weight:
    """A parameter of any shape: its last extent are columns, the one before rows, what is left are stacked."""
    *stacked, rows, columns = (1, *bare.shape, 1) if len(bare.shape) == 1 else (1, *bare.shape)
    return Weight(bare.name, rows, columns, count, trained, unit, stacked=prod(stacked))


def part_weights(part: Part, trained: bool, unit: str) -> Iterator[Weight]:
    """Every parameter of what stands outside the layers."""
    for linear in part.linears:
        yield Weight(linear.name, linear.outputs, linear.inputs, 1, trained, unit)
        if linear.bias:
            yield Weight(linear.name + ".bias", linear.outputs, 1, 1, trained, unit)
    for bare in part.tensors:
        yield bare_weight(bare, 1, trained, unit)
    for norm in part.norms:
        yield from norm_weights(norm, 1, trained, unit)


def model_weights(spec: ModelSpec, trained: bool = True, adapter: Adapter | None = None) -> list[Weight]:
    """Every parameter tensor; a tied head is not there twice."""
    width = spec.embedding_width or spec.hidden_size
    weights = [Weight("embed_tokens", spec.vocab_size, width, 1, trained, "embedding")]
    for part in spec.extra:
        weights += part_weights(part, trained, "embedding")
    for run in spec.runs:
        weights += layer_weights(run.layer, run.count, trained, adapter)
    if spec.final_norm:
        weights += norm_weights(spec.final_norm, 1, trained, "norm")
    if not spec.head_is_tied:
        weights.append(Weight(spec.head.name, spec.head.outputs, spec.head.inputs, 1, trained, "head"))
        if spec.head.bias:
            weights.append(Weight(spec.head.name + ".bias", spec.head.outputs, 1, 1, trained, "head"))
    return weights


def count(weights: list[Weight]) -> int:
    """Elements of all tensors."""
    return sum(weight.elements * weight.copies for weight in weights)
