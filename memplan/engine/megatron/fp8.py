"""Products in FP8 by Transformer Engine: what they save of inputs, weights and gradients.

TransformerEngine 2.20 pytorch/module/linear.py, layernorm_linear.py, grouped_linear.py; megatron-core 0.16
extensions/transformer_engine.py. Master weights, gradients' buffer, norms, router, embedding, head and attention stay
as they are.
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.spec.hardware import Hardware
from memplan.spec.megatron import Megatron

SOURCE = "TransformerEngine 2.20 pytorch/module/linear.py: _linear_forward_impl, base.py: quantize_weight"
BLOCK = 1 + 1 / 32
"""Bytes of an element with its scale: of 1 byte for 32 (MXFP8), or of 4 bytes for 128 (blockwise)."""
PER_TENSOR = ("delayed", "tensorwise")


class Fp8(NamedTuple):
    """Bytes per element."""

    saved: float
    """Of a product's input, saved in one layout."""
    weight: float
    """Of a weight's copies: two layouts, where the card's products need them."""
    gradient: float
    """Of the output's gradient, quantised for both products of backward."""
    projection: bool
    """The output matmul saves an input of its own beside attention's output (delayed scaling)."""


def fp8_of(settings: Megatron, hardware: Hardware) -> Fp8 | None:
    """Of these settings. One scale for a tensor: a transposed copy before Blackwell; scales by block: always two."""
    if not settings.fp8_format:
        return None
    per_tensor = settings.fp8_recipe in PER_TENSOR
    one = 1.0 if per_tensor else BLOCK
    layouts = 1 if per_tensor and hardware.is_blackwell else 2
    of_weight = BLOCK if settings.fp8_recipe == "mxfp8" else 1.0
    return Fp8(one, layouts * of_weight, layouts * one, settings.fp8_recipe == "delayed")
