"""Activations of feed-forwards as programs on the tape: one kernel, or transformers' compositions of several.

transformers 5.23, ``activations.py``; autocast runs pow in fp32."""

from collections.abc import Callable
from functools import partial

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor, in_turn
from memplan.engine.tape.tape import Tape

LABEL = "activation"


def activate(tape: Tape, name: str, x: Tensor) -> Tensor:
    """The activation of this name; single kernels that keep their input need no entry."""
    return COMPOSED[name](tape, x) if name in COMPOSED else ops.unary(tape, x, LABEL)


def power(tape: Tape, x: Tensor) -> Tensor:
    """``pow`` by a number, in fp32 under autocast."""
    return ops.power(tape, ops.cast(tape, x, ops.FP32, LABEL) if tape.autocast else x, LABEL)


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """``0.5 * x * (1 + tanh(c * (x + 0.044715 * x.pow(3))))``."""
    half = ops.scale(tape, x, LABEL)
    inner = ops.scale(tape, power(tape, x), LABEL)
    inner = ops.add(tape, x, inner, LABEL)
    inner = ops.scale(tape, inner, LABEL)
    inner = ops.unary(tape, inner, LABEL, saves="result")
    inner = ops.scale(tape, inner, LABEL, shares_gradient=True)
    return ops.mul(tape, half, inner, LABEL)


def gelu_fast(tape: Tape, x: Tensor) -> Tensor:
    """``0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x)))``."""
    half = ops.scale(tape, x, LABEL)
    scaled = ops.scale(tape, x, LABEL)
    inner = ops.mul(tape, ops.scale(tape, x, LABEL), x, LABEL)
    inner = ops.scale(tape, inner, LABEL, shares_gradient=True)
    inner = ops.mul(tape, scaled, inner, LABEL)
    del scaled  # temporary of FastGELUActivation.forward (transformers/activations.py)
    inner = ops.unary(tape, inner, LABEL, saves="result")
    inner = ops.scale(tape, inner, LABEL, shares_gradient=True)
    return ops.mul(tape, half, inner, LABEL)


def quick_gelu(tape: Tape, x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 * x)``."""
    return ops.mul(tape, x, ops.unary(tape, ops.scale(tape, x, LABEL), LABEL, saves="result"), LABEL)


def relu_squared(tape: Tape, x: Tensor) -> Tensor:
    """``relu(x).square()``."""
    positive = ops.unary(tape, x, LABEL, saves="result")
    return power(tape, positive)


def where(tape: Tape, condition: Tensor, a: Tensor, b: Tensor, label: str) -> Tensor:
    """``torch.where``: saves the condition; both sides receive a gradient of full size."""
    dim, itemsize = a.dim, max(a.itemsize, b.itemsize)
    node = tape.node((a, b), (condition,), lambda t, g: (t.gradient((dim, itemsize)), t.gradient((dim, itemsize))))
    return tape.new(dim, itemsize, label, node)


def expm1(tape: Tape, x: Tensor) -> Tensor:
    """Saves its result; the gradient is ``grad * (result + 1)`` (tools/autograd/derivatives.yaml)."""
    dim, itemsize, out = x.dim, x.itemsize, tape.new(x.dim, x.itemsize, LABEL)
    return Tensor(dim, itemsize, out.storage, tape.node((x,), (out,), in_turn(*[(dim, itemsize)] * 2)))


def xielu(tape: Tape, x: Tensor, trained: bool = True) -> Tensor:
    """``where(x > 0, a * x * x + b * x, (expm1(min(x, eps)) - x) * c + b * x)`` of single operations, with trained a
    and c; the kernel of its authors, where it is installed, keeps less."""
    wide = ops.FP32 if tape.autocast else x.itemsize
    first, second = (Param(tape, f"act_fn.{name}", 1, wide, trained) for name in ("alpha_p", "alpha_n"))
    sign = tape.new(x.dim, 1, LABEL)
    squares = ops.mul(tape, ops.mul(tape, x, first, LABEL), x, LABEL)
    above = ops.add(tape, squares, ops.scale(tape, x, LABEL), LABEL)
    del squares  # temporaries of one line: ``alpha_p * x * x + beta * x`` (XIELUActivation._xielu_python)
    capped = ops.unary(tape, x, LABEL)
    decayed = expm1(tape, ops.cast(tape, capped, wide, LABEL))
    del capped  # the argument of ``torch.expm1(torch.min(x, self.eps))``
    less = ops.add(tape, decayed, x, LABEL)
    del decayed  # a temporary of ``(expm1(…) - x) * alpha_n + beta * x``, as is the difference
    below = ops.mul(tape, less, second, LABEL)
    del less
    below = ops.add(tape, below, ops.scale(tape, x, LABEL), LABEL)
    return where(tape, sign, above, below, LABEL)


def bloom_gelu(tape: Tape, x: Tensor) -> Tensor:
    """``GeLUFunction``: keeps its input alone, and holds five more tensors of its size while it runs back."""
    dim, itemsize = x.dim, x.itemsize
    transients = [tape.new(dim, itemsize, LABEL) for _ in range(4)]
    transients.clear()

    def backward(t: Tape, grads: Grads) -> Grads:
        held = [t.gradient((dim, itemsize)) for _ in range(5)]
        held.clear()
        return (t.gradient((dim, itemsize)),)

    return tape.new(dim, itemsize, LABEL, tape.node((x,), (x,), backward))


COMPOSED: dict[str, Callable[[Tape, Tensor], Tensor]] = {
    "gelu_new": gelu_new,
    "gelu_fast": gelu_fast,
    "quick_gelu": quick_gelu,
    "relu": partial(ops.unary, label=LABEL, saves="result"),
    "tanh": partial(ops.unary, label=LABEL, saves="result"),
    "relu2": relu_squared,
    "xielu": xielu,
    "xielu-frozen": partial(xielu, trained=False),
    "bloom-gelu": bloom_gelu,
}
"""Activations that keep something else than their input."""
