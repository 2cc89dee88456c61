"""torchao's recipes of training with products in float8: what each casts (torchao 0.18 float8/config.py)."""

from typing import NamedTuple


class Float8(NamedTuple):
    """Products of the layers' linears in float8. Weights, their gradients and what is saved keep their dtype."""

    rows: bool
    """A scale for each row: products of backward are scaled afterwards, by a matrix in fp32."""
    weight_gradient: bool = True
    """The gradient of a weight is a product in float8 too."""
    gathered: bool = False
    """FSDP2 gathers these weights in float8 (``enable_fsdp_float8_all_gather``)."""
    fused: bool = False
    """Compiled: a cast is one kernel, without copies in fp32."""


FLOAT8: dict[str, Float8] = {
    "tensorwise": Float8(rows=False),
    "rowwise": Float8(rows=True),
    "rowwise-gw-hp": Float8(rows=True, weight_gradient=False),
}
"""By name; ``rowwise_with_gw_hp`` is torchao's spelling of the last."""
LOW = 1
"""Bytes of an element in float8."""
MULTIPLE = 16
"""Linears whose sides are no multiples stay as they are (torchtitan components/quantization/utils.py; accelerate 1.15
utils/ao.py: filter_linear_layers)."""
CAPABILITY = 8.9
"""Compute capability from which cards have such products (torchtitan components/quantization/float8.py)."""


def fits(rows: int, columns: int) -> bool:
    """Whether a linear of these sides is converted."""
    return rows % MULTIPLE == 0 and columns % MULTIPLE == 0
