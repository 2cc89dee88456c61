"""One row per storage scheme: in which dtype weights, gradients, master weights and optimizer states are kept. And
recipes of training with products in float8: what each casts (torchao 0.18 float8/config.py; 0.15 prototype/mx_formats;
TransformerEngine 2.20 pytorch/module/linear.py, as accelerate puts it in)."""

from typing import NamedTuple

from memplan.units import ceil_div


class Precision(NamedTuple):
    """Bytes per element of what is stored, and the dtype that matmuls run in."""

    name: str
    title: str
    dtype: str
    weights: int
    gradients: int
    master: int
    """fp32 copy of the weights that the optimizer steps on; 0 where it steps on the weights themselves."""
    states: int
    """Element size of the optimizer's states: that of the tensor it steps on."""
    mixed: bool
    """fp32 weights whose matmuls run in half precision, by autocast or by FSDP's mixed precision."""


_ROWS = (
    Precision("fp32", "everything in fp32", "fp32", 4, 4, 0, 4, False),
    Precision("bf16", "pure bf16: weights, gradients and states", "bf16", 2, 2, 0, 2, False),
    Precision("fp16", "pure fp16: weights, gradients and states", "fp16", 2, 2, 0, 2, False),
    Precision("bf16-amp", "fp32 weights, bf16 matmuls (mixed precision)", "bf16", 4, 4, 0, 4, True),
    Precision("fp16-amp", "fp32 weights, fp16 matmuls (mixed precision)", "fp16", 4, 4, 0, 4, True),
    Precision("bf16-master", "bf16 weights and gradients, fp32 master weights and states (DeepSpeed)", "bf16", 2, 2, 4,
        4, False),
    Precision("fp16-master", "fp16 weights and gradients, fp32 master weights and states (DeepSpeed)", "fp16", 2, 2, 4,
        4, False),
)  # fmt: skip
PRECISIONS = {row.name: row for row in _ROWS}


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
    block: int = 0
    """Elements that share a scale of one byte; 0: a tensor or a row has one."""
    layouts: int = 0
    """TransformerEngine's modules: copies that a product's operand has for forward and backward; 0: torchao's."""

    def low(self, elements: int) -> int:
        """Bytes of so many elements in float8, with their scales by block."""
        return elements * LOW + (ceil_div(elements, self.block) if self.block else 0)


FLOAT8: dict[str, Float8] = {
    "tensorwise": Float8(rows=False),
    "rowwise": Float8(rows=True),
    "rowwise-gw-hp": Float8(rows=True, weight_gradient=False),
    "mxfp8": Float8(rows=False, block=32),
    "te": Float8(rows=False, layouts=2),
    "te-mxfp8": Float8(rows=False, block=32, layouts=2),
}
"""By name; ``rowwise_with_gw_hp`` is torchao's spelling of the third."""
LOW = 1
"""Bytes of an element in float8."""
MULTIPLE = 16
"""Linears with sides no multiples stay (torchtitan components/quantization/utils.py; accelerate 1.15 utils/ao.py)."""
CAPABILITY = 8.9, 10.0
"""Compute capability from which cards have such products, and those with scales by block (torchtitan
components/quantization/float8.py, mx.py)."""


def fits(rows: int, columns: int) -> bool:
    """Whether a linear of these sides is converted."""
    return rows % MULTIPLE == 0 and columns % MULTIPLE == 0
