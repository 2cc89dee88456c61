"""A layer's pieces as fused kernels: norms, gated products, rotary embeddings, as one autograd function each.

Liger's functions (liger-kernel 0.8.5 ops/) and what torch.compile makes of the same code differ in what they write
over (``tables/kernels.py``). h hidden, F feed-forward width, T tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape

if TYPE_CHECKING:
    from memplan.engine.layers.modules import Pass
    from memplan.spec.parts import Norm

FUSED_NORMS = frozenset(["rms", "rms-plus-one", "rms-wide", "rms-wide-weight"])
MULTIPROCESSORS = 132
"""Rows of fp32 partial sums of a norm's weight gradient: one for each multiprocessor (132 on an H100)."""


def fused_norm(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """RMSNorm in one kernel: keeps x itself and a reciprocal root mean square in fp32 per row.

    Compiled under autocast, what it writes has the precision that products read."""
    tape, kernels, dim, before = p.tape, p.mode.operators.kernels, x.dim, x.itemsize
    weight = p.param(spec.name, spec.width, p.mode.numerics.norm_itemsize)
    itemsize = tape.autocast if kernels.compiled and tape.autocast else before
    out = tape.new(dim, itemsize, "norm outputs")
    statistics = tape.new(per_row, ops.FP32, "norm statistics")
    want_x, want_weight, size, width = x.needs_grad, weight.needs_grad, weight.dim, weight.itemsize
    partial = Dim("SMs·h", MULTIPROCESSORS * weight.dim.elements)
    over = kernels.norm == "in-place"

    def backward(t: Tape, grads: Grads) -> Grads:
        dx = (grads[0] if over else t.gradient((dim, before))) if want_x else None
        if not want_weight:
            return (dx, None)
        sums = t.gradient((partial, ops.FP32), "partial sums of a norm's gradient")
        dw = t.new(size, width, "weight gradients", category="gradients")
        del sums  # the kernel's partial sums, added up to the weight's gradient
        return (dx, dw)

    node = tape.node((x, weight), (x, statistics, weight), backward)
    return Tensor(dim, itemsize, out.storage, node)


def fused_product(p: Pass, gate: Tensor, up: Tensor) -> Tensor:
    """``act(gate) * up`` in one kernel: keeps gate and up alone, and writes their gradients over them."""
    tape, kernels, dim, itemsize = p.tape, p.mode.operators.kernels, gate.dim, gate.itemsize
    if kernels.copies_chunks and up.storage is gate.storage:
        gate, up = (ops.copy(tape, half, "gate and up") for half in (gate, up))
    made, over = ops.of_each(gate, up), kernels.product == "in-place"

    def backward(t: Tape, grads: list[Tensor | None]) -> Grads:
        if over and t.running is not None:
            return [Tensor(dim, itemsize, storage) for storage in t.running.saved]
        return made(t, grads)

    node = tape.node((gate, up), (gate, up), backward)
    return tape.new(dim, itemsize, "feed-forward product", node)


def fused_rotary(p: Pass, x: Tensor) -> Tensor:
    """Queries or keys turned by one kernel: in the projection's own memory (a slice of a joint projection is copied
    first), or into a new tensor; keeps nothing of x."""
    tape, dim, itemsize = p.tape, x.dim, x.itemsize
    label = "queries and keys after rotary"
    if p.mode.operators.kernels.rotary == "in-place":
        if x.storage is not None and x.storage.size > -(-dim.elements * itemsize // 512) * 512:
            x = ops.copy(tape, x, label)
        node = tape.node((x,), (), lambda t, g: (g[0],))
        return Tensor(dim, itemsize, x.storage, node)
    return tape.new(dim, itemsize, label, tape.node((x,), (), lambda t, g: (t.gradient((dim, itemsize)),)))
