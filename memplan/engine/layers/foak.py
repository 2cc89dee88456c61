"""fms-acceleration-foak's functions on the tape: adapters fused with the products of a quantised base.

fms-acceleration 0.7 plugins/fused-ops-and-kernels/src/fms_acceleration_foak/fused_ops/unsloth_lora/bnb/fast_lora.py
(LoRA_QKV, LoRA_W) and utils.py (matmul_lora, fast_dequantize): Unsloth's of 2024, with dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.engine.layers.lora import as_cast, gradients_of, in_their_dtype, sides_of
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.groups import Quantised
from memplan.spec.parts import Linear

if TYPE_CHECKING:
    from memplan.engine.layers.modules import Pass


def fuses(p: Pass, linears: Sequence[Linear]) -> bool:
    """Whether foak patches these: queries, keys and values together, or the output alone, where all are adapted."""
    adapter = p.mode.adapter
    return adapter is not None and all(linear.name in adapter.targets for linear in linears)


def _unpacked(t: Tape, linear: Linear, base: Quantised, itemsize: int) -> Tensor:
    """``fast_dequantize``: the matrix, beside it for a moment its scales in fp32, the offset added in place."""
    elements = linear.inputs * linear.outputs
    matrix = t.gradient((Dim("in·out", elements), itemsize), "dequantised weights")
    scales = t.gradient((Dim("in·out/64", -(-elements // base.scheme.group)), ops.FP32), "absmax in fp32")
    del scales
    return matrix


def _product(
    p: Pass, x: Tensor, linear: Linear, out: Dim, sides: Sequence[Param], label: str
) -> tuple[Tensor, Tensor | None]:
    """``matmul_lora``: the product, and the adapter's, which is added in place; and the input after dropout, which is
    kept whole (its mask is not: no gradient is asked for here)."""
    tape, itemsize, base = p.tape, x.itemsize, p.mode.quantised
    adapter = p.mode.adapter
    assert base is not None
    assert adapter is not None
    matrix = _unpacked(tape, linear, base, itemsize)
    result = tape.new(out, itemsize, label)
    del matrix  # ``matmul`` with a frozen weight saves nothing of it: backward unpacks again
    dropped = None
    if adapter.dropout:
        mask = tape.new(x.dim, 1, "dropout masks")
        dropped = tape.new(x.dim, itemsize, "inputs after dropout")
        del mask
    half = as_cast(tape, sides[0], itemsize)
    low = tape.new(p.dim("r", adapter.rank_of(linear.name)), itemsize, "adapter rank-r outputs")
    del half
    half = as_cast(tape, sides[1], itemsize)
    scaled = tape.new(sides[1].dim, itemsize, "scaled adapters")
    high = tape.new(out, itemsize, "adapter outputs")
    del low, half, scaled, high
    return result, dropped


def adapted_products(
    p: Pass, x: Tensor, linears: Sequence[Linear], dims: Sequence[Dim], label: str, over: bool
) -> list[Tensor]:
    """``LoRA_QKV`` and ``LoRA_W``: products of one input and their adapters as one function, which keeps the input, and
    beside it the dropped input of each.

    Backward: the input's gradient is written over it (``over``) or made new; each adapter's part of it is a product, a
    mask of what was not dropped, and their product."""
    tape, dim, itemsize, want_x, base = p.tape, x.dim, x.itemsize, x.needs_grad, p.mode.quantised
    assert base is not None
    pairs = [sides_of(p, linear) for linear in linears]
    sides = [side for pair in pairs for side in pair]
    made = [_product(p, x, linear, out, pair, label) for linear, out, pair in zip(linears, dims, pairs, strict=True)]
    outs, dropped = [result for result, _ in made], [source for _, source in made if source is not None]
    del made

    def backward(t: Tape, grads: Grads) -> Grads:
        found = gradients_of(t, sides, itemsize)
        dx = None
        for linear in linears if want_x else ():
            matrix = _unpacked(t, linear, base, itemsize)
            if dx is None and over and t.running is not None:
                dx = Tensor(dim, itemsize, t.running.saved[0])
            elif dx is None:
                dx = t.gradient((dim, itemsize))
            else:
                product = t.gradient((dim, itemsize))
                del product
            del matrix
            kept = t.gradient((dim, 1), "what was not dropped")
            product, masked = t.gradient((dim, itemsize)), t.gradient((dim, itemsize))
            del kept, product, masked
        return (dx, *in_their_dtype(t, found, sides))

    node = tape.node((x, *sides), (x, *sides, *dropped), backward)
    if node is not None:
        node.outputs = len(outs)
    return [Tensor(out.dim, itemsize, out.storage, node, slot) for slot, out in enumerate(outs)]
