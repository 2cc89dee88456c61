"""Unsloth's functions on the tape: adapters fused with the products beside them.

unsloth 2026.8 kernels/fast_lora.py (LoRA_QKV, LoRA_MLP, LoRA_W) and kernels/utils.py (matmul_lora)."""

from collections.abc import Sequence

from memplan.engine.layers.modules import Pass
from memplan.engine.layers.quantised_linear import dequantise
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import FeedForward, Linear


def fuses(p: Pass, linears: Sequence[Linear]) -> bool:
    """Whether Unsloth patches these: all adapted, none with a bias, without dropout, DoRA or trained biases
    (models/llama.py: patch_peft_model)."""
    adapter = p.mode.adapter
    if p.mode.operators.kernels.adapters == "foak":
        from memplan.engine.layers import foak

        return foak.fuses(p, linears)
    if not p.mode.operators.kernels.adapters or adapter is None or adapter.dropout or adapter.dora or adapter.biased:
        return False
    return all(linear.name in adapter.targets and not linear.bias for linear in linears)


def _product(p: Pass, x: Tensor, linear: Linear, out: Dim, sides: Sequence[Param], label: str) -> Tensor:
    """``matmul_lora``: the product, the adapter's added in place; unpacked into a lasting buffer (``unsloth_rows``)."""
    tape, itemsize, rank = p.tape, x.itemsize, sides[0].dim.elements // linear.inputs
    result = tape.new(out, itemsize, label)
    from memplan.engine.layers.lora import as_cast

    half = as_cast(tape, sides[0], itemsize)
    low = tape.new(p.dim("r", rank), itemsize, "adapter rank-r outputs")
    del half
    half = as_cast(tape, sides[1], itemsize)
    del low, half
    return result


def _unpacked(t: Tape, p: Pass, linear: Linear, itemsize: int) -> Tensor | None:
    """``fast_dequantize`` in backward, which allocates."""
    return dequantise(t, linear, p.mode.quantised, itemsize) if p.mode.quantised is not None else None


def adapted_products(
    p: Pass, x: Tensor, linears: Sequence[Linear], dims: Sequence[Dim], label: str, over: bool
) -> list[Tensor]:
    """``LoRA_QKV`` and ``LoRA_W``: products of one input and their adapters as one function, which keeps the input
    alone. ``over``: the input's gradient is written over it."""
    if p.mode.operators.kernels.adapters == "foak":
        from memplan.engine.layers import foak

        return foak.adapted_products(p, x, linears, dims, label, over)
    tape, dim, itemsize, want_x = p.tape, x.dim, x.itemsize, x.needs_grad
    from memplan.engine.layers.lora import as_cast, gradients_of, in_their_dtype, sides_of

    pairs = [sides_of(p, linear) for linear in linears]
    sides = [side for pair in pairs for side in pair]
    outs = [_product(p, x, linear, out, pair, label) for linear, out, pair in zip(linears, dims, pairs, strict=True)]

    def backward(t: Tape, grads: Grads) -> Grads:
        halves = [as_cast(t, side, itemsize) for side in sides]
        found = gradients_of(t, sides, itemsize)
        own = t.running.saved[0] if t.running is not None else None
        dx = (Tensor(dim, itemsize, own) if over else t.gradient((dim, itemsize))) if want_x else None
        for linear in linears if want_x else ():
            matrix = _unpacked(t, p, linear, itemsize)
            del matrix
        del halves
        return (dx, *in_their_dtype(t, found, sides))

    node = tape.node((x, *sides), (x,), backward)
    if node is not None:
        node.outputs = len(outs)
    return [Tensor(out.dim, itemsize, out.storage, node, slot) for slot, out in enumerate(outs)]


def adapted_feed_forward(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """``LoRA_MLP``: keeps its input, gate and up; backward makes one tensor of their size, and writes the product over
    it, the gradients of gate and up over these, and the input's over the input."""
    tape, dim, itemsize, want_x = p.tape, x.dim, x.itemsize, x.needs_grad
    wide, (gate, up, down) = p.dim("F", spec.intermediate), spec.linears
    from memplan.engine.layers.lora import as_cast, gradients_of, in_their_dtype, sides_of

    pairs = [sides_of(p, linear) for linear in spec.linears]
    sides = [side for pair in pairs for side in pair]
    gates = _product(p, x, gate, wide, pairs[0], "gate")
    ups = _product(p, x, up, wide, pairs[1], "up")
    product = tape.new(wide, itemsize, "feed-forward product")
    out = _product(p, product, down, dim, pairs[2], "feed-forward output")
    del product

    def backward(t: Tape, grads: Grads) -> Grads:
        halves = [as_cast(t, side, itemsize) for side in sides]
        of_product = t.gradient((wide, itemsize))
        found = gradients_of(t, sides, itemsize)
        for linear in (up, gate) if want_x else ():
            matrix = _unpacked(t, p, linear, itemsize)
            del matrix
        own = t.running.saved[0] if t.running is not None else None
        del halves, of_product
        return (Tensor(dim, itemsize, own) if want_x else None, *in_their_dtype(t, found, sides))

    node = tape.node((x, *sides), (x, gates, ups), backward)
    return Tensor(dim, itemsize, out.storage, node)
