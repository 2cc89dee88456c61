"""One row per storage scheme: in which dtype weights, gradients, master weights and optimizer states are kept."""

from typing import NamedTuple


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
    Precision(
        "bf16-master",
        "bf16 weights and gradients, fp32 master weights and states (DeepSpeed)",
        "bf16",
        2,
        2,
        4,
        4,
        False,
    ),
    Precision(
        "fp16-master",
        "fp16 weights and gradients, fp32 master weights and states (DeepSpeed)",
        "fp16",
        2,
        2,
        4,
        4,
        False,
    ),
)
PRECISIONS = {row.name: row for row in _ROWS}
