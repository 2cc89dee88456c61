"""Linears whose products run in float8, as torchao's ``Float8Linear`` has them: what is saved is what ``F.linear``
saves, in its own dtype; each product casts its two sides before it, and backward casts them again.

torchao 0.18 float8/float8_linear.py (matmul_with_hp_or_float8_args), float8_training_tensor.py (_ToFloat8ConstrFunc),
float8_ops.py (addmm_float8_unwrapped: copies in the layout that the kernel reads). Scales are not counted."""

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.tables.precisions import LOW, Float8

COPIES = "float8 copies"


def float8_linear(tape: Tape, x: Tensor, weight: Param, out: Dim, label: str, how: Float8) -> Tensor:
    """``Float8Linear.forward`` without its bias: x in autocast's dtype, the weight as it is."""
    source = ops.autocast_input(tape, x)
    x_size, w_size, stored = (source.dim, source.itemsize), (weight.dim, source.itemsize), weight.itemsize
    want_x, want_w = source.needs_grad, weight.needs_grad
    weight_dim = None if how.gathered else weight.dim

    def backward(t: Tape, grads: Grads) -> Grads:
        incoming = (out, x_size[1])
        g = _cast(t, incoming, how)
        w = _cast(t, (weight_dim, stored), how) if weight_dim else None
        turned = t.gradient((weight.dim, LOW), COPIES)
        scale = t.gradient((x_size[0], ops.FP32), "scales of a product") if how.rows and not how.fused else None
        dx = t.gradient(x_size)
        del turned, scale  # temporaries of addmm_float8_unwrapped
        if how.weight_gradient:
            again = _cast(t, incoming, how), _cast(t, x_size, how)
            turned_sides = t.gradient((out, LOW), COPIES), t.gradient((x_size[0], LOW), COPIES)
            wide = t.gradient((weight.dim, ops.FP32), "scales of a product") if how.rows and not how.fused else None
            dw = t.new(*w_size, "weight gradients", category="gradients")
            del again, turned_sides, wide
        else:
            dw = t.new(*w_size, "weight gradients", category="gradients")
        del g, w  # locals of backward
        if stored not in (LOW, dw.itemsize):
            dw = t.new(weight.dim, stored, "weight gradients", category="gradients")
        return (dx if want_x else None, dw if want_w else None)

    low = _cast(tape, x_size, how)
    low_weight = _cast(tape, (weight_dim, stored), how) if weight_dim else None
    node = tape.node((source, weight), (source, weight), backward)  # the policy of a checkpoint sees aten.mm
    result = tape.result("mm", out, source.itemsize, label, node)
    del low, low_weight  # locals of forward
    return result


def _cast(tape: Tape, of: tuple[Dim, int], how: Float8) -> Tensor:
    """``hp_tensor_to_float8_dynamic``: the largest absolute value, then scaled and clamped in fp32."""
    dim, itemsize = of
    if how.fused:
        return tape.gradient((dim, LOW), COPIES)
    absolute = tape.gradient(of, "absolute values")
    del absolute  # ``torch.max(torch.abs(x))``
    wide = tape.gradient((dim, ops.FP32), "inputs of float8 in fp32") if itemsize != ops.FP32 else None
    scaled = tape.gradient((dim, ops.FP32), "inputs of float8 in fp32")
    del wide  # ``tensor.to(torch.float32) * scale``
    clamped = tape.gradient((dim, ops.FP32), "inputs of float8 in fp32")
    low = tape.gradient((dim, LOW), COPIES)
    del clamped, scaled
    return low
