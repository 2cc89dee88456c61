"""Liger's functions in the layers of a real model, their Triton kernels left out: what each allocates, saves and writes
over (liger-kernel 0.8.5, ops/rms_norm.py, ops/swiglu.py, ops/rope.py; ``ensure_contiguous`` included)."""

import sys
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from memplan.engine.layers.fused_kernels import MULTIPROCESSORS
from memplan.tables.kernels import Kernels


class RmsNorm(torch.autograd.Function):
    """``LigerRMSNormFunction``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, over: bool) -> Tensor:
        """The normed input, and a reciprocal root mean square per row."""
        shape, x = x.shape, x.contiguous().view(-1, x.shape[-1])
        out = torch.empty_like(x)
        statistics = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, statistics)
        ctx.over = over
        return out.view(*shape)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of x over the one that came in, or beside it."""
        (grad,) = (each.contiguous() for each in grads)
        _, weight, _ = ctx.saved_tensors
        dw = None
        if ctx.needs_input_grad[1]:
            partial = torch.empty((MULTIPROCESSORS, weight.shape[0]), dtype=torch.float32, device=grad.device)
        dx = grad if ctx.over else torch.zeros_like(grad)
        if ctx.needs_input_grad[1]:
            dw = partial.sum(dim=0).to(weight.dtype)
        return dx, dw, None


class GatedProduct(torch.autograd.Function):
    """``LigerSiLUMulFunction`` and ``LigerGELUMulFunction``."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        """The product; both factors are saved."""
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients over the factors."""
        gate, up = ctx.saved_tensors
        return gate, up


class Rotary(torch.autograd.Function):
    """``LigerRopeFunction``: in place where the physical layout is token-major."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        """Both turned."""
        q, k = (each.transpose(1, 2).contiguous() for each in (q, k))
        ctx.save_for_backward(cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """And turned back."""
        dq, dk = (each.transpose(1, 2).contiguous() for each in grads)
        return dq.transpose(1, 2), dk.transpose(1, 2), None, None


def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Any:
    return Rotary.apply(q, k, cos, sin)


def _product(self: Any, x: Tensor) -> Any:
    return self.down_proj(GatedProduct.apply(self.gate_proj(x), self.up_proj(x)))


def _product_of_chunks(self: Any, x: Tensor) -> Any:
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(GatedProduct.apply(gate, up))


def patch(model: torch.nn.Module, kernels: Kernels) -> Any:
    """Put the functions into every layer; returns what takes the rotary one out of the modelling code again."""
    code: Any = None
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm") and kernels.norm:
            over = kernels.norm == "in-place"
            module.forward = MethodType(lambda self, x, over=over: RmsNorm.apply(x, self.weight, over), module)
        elif name.endswith("MLP") and kernels.product:
            module.forward = MethodType(_product_of_chunks if kernels.copies_chunks else _product, module)
        elif name.endswith("Attention"):
            code = sys.modules[type(module).__module__]
    if not kernels.rotary or not hasattr(code, "apply_rotary_pos_emb"):
        return lambda: None
    before, code.apply_rotary_pos_emb = code.apply_rotary_pos_emb, _rotary
    return lambda: setattr(code, "apply_rotary_pos_emb", before)
