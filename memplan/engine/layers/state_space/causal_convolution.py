"""Causal convolutions over each channel alone, as programs on the tape: ``causal_conv1d_fn`` as transformers 5.23
writes it without kernels, and the gated short convolutions of LFM2."""

from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.state_space import cuda_kernels as mixer_kernels
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.parts import Mixer, Part
from memplan.spec.state_space import ShortConvolution

LABEL = "convolution"


def bare(p: Pass, part: Part, name: str) -> Param | None:
    """The part's parameter of this name, when it has one."""
    found = next((each for each in part.tensors if each.name == name), None)
    return p.param(found.name, found.parameters) if found else None


def parameter(p: Pass, part: Part, name: str) -> Param:
    """A parameter that the part always has."""
    found = bare(p, part, name)
    assert found is not None
    return found


def without_padding(p: Pass, x: Tensor) -> Tensor:
    """``hidden_states * attention_mask[:, :, None]``, where there is padding; the mask is the batch's own."""
    if not p.mode.padded:
        return x
    return ops.with_constant(p.tape, x, x.itemsize, "inputs without padding")


def causal_convolution(
    p: Pass, mixer: Mixer, x: Tensor, kernel: int, name: str = "conv1d", active: bool = True
) -> Tensor:
    """``F.conv1d`` with padding on both sides, the end cut off, an activation of what is left.

    What is cut off stays: its storage is that of the view. The weight is in the dtype of its module, to which the input
    is cast, and cast back from; autocast casts both again."""
    tape, before, width = p.tape, x.itemsize, x.dim.elements // p.tokens
    weight, bias = bare(p, mixer, name), bare(p, mixer, name + ".bias")
    assert weight is not None
    if p.mode.operators.mixer_kernels:
        return mixer_kernels.convolution(p, x, (weight, bias))
    x = ops.autocast_input(tape, ops.cast(tape, x, weight.itemsize, "convolution inputs"))
    whole = Dim(x.dim.symbol, p.rows * (p.length + kernel - 1) * width)
    out = _convolve(p, x, weight, bias, whole)
    out = ops.view(tape, out, Dim(x.dim.symbol, p.tokens * width), whole=False)
    if active:
        out = ops.unary(tape, out, "activation")
    return ops.cast(tape, out, before, "convolution outputs")


def _convolve(p: Pass, x: Tensor, weight: Param, bias: Param | None, out: Dim) -> Tensor:
    """``aten::convolution``: keeps its input and its weight; all gradients are made at once."""
    tape, low = p.tape, p.tape.autocast
    parameters: list[Tensor] = [weight, *([bias] if bias is not None else [])]
    if low:
        parameters = [ops.cast(tape, each, low, "autocast copies of convolutions") for each in parameters]
    backward = ops.in_turn(ops.of_each(x), ops.of_weights(*parameters))
    return tape.new(out, x.itemsize, LABEL, tape.node((x, *parameters), (x, parameters[0]), backward))


def short_convolution(p: Pass, mixer: ShortConvolution, x: Tensor) -> tuple[Tensor, None]:
    """``C * conv(B * x)`` of three equal parts of one projection."""
    tape, width = p.tape, p.dim("h", mixer.width)
    x = without_padding(p, x)
    both = project(p, x, mixer.linears[0], "3h", "gates and channels")
    gate, out_gate, channels = ops.split(tape, both, 3, width)
    hidden = ops.mul(tape, gate, channels, "gated channels")
    hidden = causal_convolution(p, mixer, hidden, mixer.kernel, "conv", active=False)
    hidden = ops.mul(tape, out_gate, hidden, "gated outputs")
    return project(p, hidden, mixer.linears[1], "h", "mixer output"), None
