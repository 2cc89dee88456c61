"""The sizes that a layer of one rank is made of."""

from __future__ import annotations

from typing import NamedTuple

from memplan.spec.megatron import Megatron
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


class Shape(NamedTuple):
    """One micro-batch on one rank."""

    tokens: int
    """T: rows × sequence length / context parallel: what attention, products and head see."""
    local: int
    """t: tokens between tensor-parallel products: T / tensor parallel under sequence parallelism, else T."""
    hidden: int
    itemsize: int
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    sequence: bool
    """Sequence parallelism, where tensor parallelism is on."""
    layer_norm: bool
    settings: Megatron
    recomputed: frozenset[str] = frozenset()
    """Modules that selective checkpointing makes again."""

    @property
    def gathers(self) -> bool:
        """Whether inputs of tensor-parallel products are gathered along the sequence."""
        return self.sequence and self.tensor > 1


def shape_of(recipe: Recipe, rows: int = 0) -> Shape:
    """The sizes of this recipe's micro-batch."""
    degrees = recipe.parallel
    tokens = ceil_div((rows or recipe.rows) * recipe.sequence_length, degrees.context)
    sequence = degrees.sequence and degrees.tensor > 1
    norm = recipe.model.final_norm
    return Shape(
        tokens=tokens,
        local=ceil_div(tokens, degrees.tensor) if sequence else tokens,
        hidden=recipe.model.hidden_size,
        itemsize=recipe.precision.weights if not recipe.precision.mixed else 2,
        tensor=degrees.tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_tensor,
        sequence=sequence,
        layer_norm=norm is not None and norm.kind.startswith("layer"),
        settings=recipe.megatron,
        recomputed=recipe.recompute.modules,
    )
