"""The gated linear recurrence of RecurrentGemma (RG-LRU) as a program on the tape: one position after the other, as
transformers 5.23 writes it (``RecurrentGemmaRglru``).

W: its channels. The state is in fp32; each step puts its output into one tensor."""

from memplan.engine.layers.activations import activate
from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.state_space.causal_convolution import causal_convolution, parameter
from memplan.engine.layers.state_space.gated_delta_chunks import FIRST, LAST, put, skipped
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import exponential, seen
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.state_space import GatedRecurrence

GATES = "gates of the recurrence"


def gated_recurrence(p: Pass, mixer: GatedRecurrence, x: Tensor) -> tuple[Tensor, None]:
    """``linear_out(recurrence(conv(linear_x(x))) * act(linear_y(x)))``."""
    tape = p.tape
    branch, hidden = entering(p, mixer, x)
    p.remember(None)
    hidden = causal_convolution(p, mixer, hidden, mixer.kernel, "conv_1d", active=False)
    hidden = recurrence(p, mixer, hidden)
    out = ops.mul(tape, hidden, branch, "gated outputs")
    return project(p, out, mixer.linears[2], "h", "mixer output"), None


def entering(p: Pass, mixer: GatedRecurrence, x: Tensor) -> tuple[Tensor, Tensor]:
    """What runs before the module lets go of its last state: ``act(linear_y(x))`` and ``linear_x(x)``."""
    branch = project(p, x, mixer.linears[0], "W", "branch beside the recurrence")
    branch = activate(p.tape, mixer.activation, branch)
    return branch, project(p, x, mixer.linears[1], "W", "channels")


def recurrence(p: Pass, mixer: GatedRecurrence, x: Tensor) -> Tensor:
    """``RecurrentGemmaRglru.forward``; what is a local there is one here."""
    tape, wide = p.tape, p.dim("W", mixer.width)
    heads = ops.copy(tape, seen(tape, x), "channels of each head") if p.rows > 1 else x
    gate_in = gate(p, mixer, heads, "input", [])
    held: list[Tensor] = []
    decay = gate(p, mixer, heads, "recurrent", held)
    weight = parameter(p, mixer, "recurrent_param")
    rate = ops.unary(tape, ops.cast(tape, weight, ops.FP32, GATES) if tape.autocast else weight, GATES)
    log = ops.mul(tape, ops.scale(tape, decay, GATES), rate, GATES)
    decay = exponential(tape, log, GATES)
    square = exponential(tape, ops.scale(tape, log, GATES), GATES)
    gated = ops.mul(tape, x, gate_in, "gated inputs")
    factor = bounded_root(tape, ops.scale(tape, square, GATES))
    factor = ops.with_constant(tape, factor, 1, GATES)
    factor = ops.scale(tape, factor, GATES, shares_gradient=True)
    inputs = ops.mul(tape, gated, ops.cast(tape, factor, x.itemsize, GATES), "gated inputs")
    reset = ops.with_constant(tape, decay, 1, GATES)
    start = [tape.new(Dim("W", p.rows * mixer.width), ops.FP32, "states")]
    out = run_positions(p, reset, inputs, start, tape.new(wide, inputs.itemsize, "outputs of positions"))
    # locals of RecurrentGemmaRglru.forward: ``reshape_act``, ``input_gate``, ``a_square``, ``multiplier``, …
    del heads, gate_in, held, log, decay, square, gated, factor, reset
    return out


def gate(p: Pass, mixer: GatedRecurrence, heads: Tensor, name: str, held: list[Tensor]) -> Tensor:
    """``sigmoid(baddbmm(bias, heads, weight))``; the product of all heads stays a local of the caller's."""
    tape, wide = p.tape, p.dim("W", mixer.width)
    weight, bias = (parameter(p, mixer, f"{name}_gate_{kind}") for kind in ("weight", "bias"))
    product = ops.linear(tape, heads, weight, wide, GATES, bias)
    held.append(product)
    return ops.unary(tape, ops.copy(tape, product, GATES), GATES, saves="result")


def bounded_root(tape: Tape, x: Tensor) -> Tensor:
    """``SqrtBoundDerivative``: keeps its input; the gradient is divided by the root of a clipped multiple of it."""
    dim, itemsize = x.dim, x.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        multiple = t.gradient((dim, itemsize))
        clipped = t.gradient((dim, itemsize))
        del multiple
        root = t.gradient((dim, itemsize))
        result = t.gradient((dim, itemsize))
        del clipped, root  # ``clipped_x_times_4`` and its root end with SqrtBoundDerivative.backward
        return (result,)

    return tape.new(dim, itemsize, GATES, tape.node((x,), (x,), backward))


def run_positions(p: Pass, decays: Tensor, inputs: Tensor, start: list[Tensor], out: Tensor) -> Tensor:
    """``state = decays[t] * state + inputs[t]; out[t] = state`` for each position.

    A long loop is not played position by position: those in the middle are one step (``delta_loop``). The start is
    taken out of its list, so that nobody else holds it. The last state stays an attribute of the module."""
    tape, length, state = p.tape, p.length, start.pop()
    middle, kept = max(length - FIRST - LAST, 0), 0
    for i in range(length - middle):
        if i == FIRST and middle:
            state, out = skipped(tape, (decays, inputs), middle, kept, state, out)
        before = tape.live
        state, out = one_position(tape, (decays, inputs), state, out, length)
        kept = tape.live - before
    p.remember(state)
    return out


def one_position(
    tape: Tape, operands: tuple[Tensor, Tensor], state: Tensor, out: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """The next state, and the outputs with it among them."""

    def part(x: Tensor) -> Tensor:
        view = ops.view(tape, x, Dim(x.dim.symbol, x.dim.elements // length), whole=False)
        return ops.cast(tape, view, ops.FP32, "states")

    decays, inputs = operands
    state = ops.mul(tape, part(decays), state, "states")
    state = ops.add(tape, state, part(inputs), "states")
    return state, put(tape, out, ops.cast(tape, state, out.itemsize, "states"))
