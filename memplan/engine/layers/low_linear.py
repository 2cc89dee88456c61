"""Linears whose products run in float8.

torchao's (``Float8Linear``, ``MXLinear``): saved is what ``F.linear`` saves, and copies in float8 live as long as
their product. torchao 0.18 float8/float8_linear.py (matmul_with_hp_or_float8_args), float8_training_tensor.py
(_ToFloat8ConstrFunc), float8_ops.py (addmm_float8_unwrapped: copies in the layout that the kernel reads); 0.15
prototype/mx_formats/mx_linear.py (mx_mm). Scales of a tensor are not counted.

TransformerEngine's, as accelerate puts them in: saved are copies. TransformerEngine 2.20 pytorch/module/linear.py
(_linear_forward_impl, _linear_backward); accelerate 1.15 utils/transformer_engine.py (convert_model)."""

from typing import TYPE_CHECKING

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Linear
from memplan.tables.precisions import LOW, Float8, fits

if TYPE_CHECKING:
    from memplan.engine.layers.modules import Pass

COPIES = "float8 copies"


def runs_in_float8(how: Float8 | None, linear: Linear, inside: bool) -> bool:
    """Whether a linear is one of them; ``inside``: in a layer, outside of which torchao's are none."""
    if how is None or linear.transposed or not (inside or how.layouts):
        return False
    return fits(linear.inputs, linear.outputs)


def in_float8(p: "Pass", x: Tensor, linear: Linear, weight: Param, out: Dim, label: str) -> Tensor:
    """The product, and the bias added to it."""
    from memplan.engine.layers.norms import add_bias

    how = p.mode.operators.kernels.float8
    assert how is not None
    result = (te_linear if how.layouts else float8_linear)(p.tape, x, weight, out, label, how)
    return add_bias(p.tape, result, p.param(linear.name + ".bias", linear.outputs), label) if linear.bias else result


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
        turned = t.gradient((weight.dim, LOW), COPIES) if not how.block else None
        scale = t.gradient((x_size[0], ops.FP32), "scales of a product") if how.rows and not how.fused else None
        dx = t.gradient(x_size)
        del turned, scale  # temporaries of addmm_float8_unwrapped
        if how.weight_gradient:
            again = _cast(t, incoming, how), _cast(t, x_size, how)
            turned_sides = [t.gradient((each, LOW), COPIES) for each in (out, x_size[0]) if not how.block]
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
        return tape.gradient((_low(dim, how), LOW), COPIES)
    absolute = tape.gradient(of, "absolute values")
    del absolute  # ``torch.max(torch.abs(x))``
    wide = tape.gradient((dim, ops.FP32), "inputs of float8 in fp32") if itemsize != ops.FP32 else None
    scaled = tape.gradient((dim, ops.FP32), "inputs of float8 in fp32")
    del wide  # ``tensor.to(torch.float32) * scale``
    clamped = tape.gradient((dim, ops.FP32), "inputs of float8 in fp32")
    low = tape.gradient((dim, LOW), COPIES)
    del clamped, scaled
    return low


def _low(dim: Dim, how: Float8) -> Dim:
    return Dim(dim.symbol, how.low(dim.elements)) if how.block else dim


def te_linear(tape: Tape, x: Tensor, weight: Param, out: Dim, label: str, how: Float8) -> Tensor:
    """``transformer_engine.pytorch.Linear`` without its bias. Input and weight, as wide as they come, are cast in every
    forward (nobody says which micro-batch is the first, so that none is kept); saved are the input in the layout that
    the weight's gradient reads, and all copies of the weight."""
    half, wide, stored = tape.autocast or x.itemsize, (x.dim, x.itemsize), (weight.dim, weight.itemsize)
    want_x, want_w = x.needs_grad, weight.needs_grad

    def backward(t: Tape, grads: Grads) -> Grads:
        both = [t.gradient((_low(out, how), LOW), COPIES) for _ in range(how.layouts)]
        dx = t.gradient((wide[0], half)) if want_x else None
        dw = t.new(stored[0], half, "weight gradients", category="gradients") if want_w else None
        del both
        if dw is not None and stored[1] != half:
            dw = t.new(*stored, "weight gradients", category="gradients")
        if dx is not None and wide[1] != half:
            dx = t.gradient(wide)
        return (dx, dw)

    count = how.layouts if tape.grad_enabled else 1
    sides = [tape.new(_low(x.dim, how), LOW, "inputs of products in float8") for _ in range(count)]
    copies = [tape.new(_low(weight.dim, how), LOW, "weights in float8") for _ in range(count)]
    node = tape.node((x, weight), (sides[-1] if want_w else None, *copies), backward)
    result = tape.new(out, half, label, node)
    del sides, copies
    return result
