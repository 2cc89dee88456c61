"""Products in FP8: which of a layer's run so, and what their casts move."""

from typing import NamedTuple

from memplan.spec.recipe import Recipe

CAST, CAST_COMPILED, CAST_ALONE = 5.0, 6.0, 19.0
"""Bytes of casting one element of half precision to FP8: read, for the scale and the cast (4, of which Transformer
Engine's fused norms and activations save some), and written, in both layouts (2, of which it saves some). torchao's
operations by themselves go by way of fp32: written and read twice (12), and one (1) more (float8/float8_utils.py)."""


class Eight(NamedTuple):
    """Which products run in FP8, and what their operands' casts move."""

    cast: float
    """Bytes of each element that comes in, and of each gradient's: read, for the scale and the cast, and written."""
    weight_gradient: bool = True
    experts: bool = True


def eight_of(recipe: Recipe) -> Eight | None:
    """Transformer Engine's products in Megatron, or torchao's of linears: stacked experts stay as they are."""
    if recipe.trainer.megatron:
        return Eight(CAST) if recipe.megatron.fp8_format else None
    own = recipe.operators.kernels.float8
    return Eight(CAST_COMPILED if own.fused else CAST_ALONE, own.weight_gradient, experts=False) if own else None
