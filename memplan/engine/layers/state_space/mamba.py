"""Mamba as a program on the tape: the PyTorch code of transformers 5.23 (``mamba_selective_scan``), one position after
the other, which Jamba and Falcon Mamba share.

Symbols: D channels, N numbers of state for each, R the width of which steps are made."""

from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import add_bias
from memplan.engine.layers.state_space import cuda_kernels as mixer_kernels
from memplan.engine.layers.state_space.causal_convolution import bare, causal_convolution, parameter, without_padding
from memplan.engine.layers.state_space.gated_delta_chunks import FIRST, LAST, skipped
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import contract, exponential, seen
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.state_space import StateSpace

SCAN = "selective scan"


def state_space(p: Pass, mixer: StateSpace, x: Tensor) -> tuple[Tensor, None]:
    """Projection to channels and gate, convolution, steps, scan, projection."""
    tape, before, inner = p.tape, x.itemsize, p.dim("D", mixer.inner)
    x = without_padding(p, x)
    projected = project(p, x, mixer.linears[0], "2D", "channels and gate")
    if p.rows > 1:
        projected = seen(tape, projected)
    rates = exponential(tape, ops.cast(tape, parameter(p, mixer, "A_log"), ops.FP32, SCAN), SCAN)
    rates = ops.scale(tape, rates, SCAN)
    if p.mode.operators.mixer_kernels and not mixer.norms:
        return mixer_kernels.inner_function(p, mixer, projected, rates, kernel_weights(p, mixer)), None
    hidden, gate = ops.split(tape, projected, 2, inner)
    hidden = causal_convolution(p, mixer, hidden, mixer.kernel)
    hidden = without_padding(p, hidden)
    steps, b, c = parameters_of_tokens(p, mixer, hidden)
    if p.mode.operators.mixer_kernels:
        out = mixer_kernels.selective_scan(p, mixer, (hidden, steps, b, c, gate), rates, [bare(p, mixer, "D")])
    else:
        out = scan(p, mixer, hidden, steps, rates, b, c, gate)
    flat = ops.cast(tape, out, before, "mixer output")
    del out
    flat = turned(p, flat, "mixer output")
    return project(p, flat, mixer.linears[3], "h", "mixer output"), None


def turned(p: Pass, x: Tensor, label: str) -> Tensor:
    """``x.transpose(1, 2)`` as a product takes it: copied, but for a single row."""
    return ops.copy(p.tape, x, label) if p.rows > 1 else x


def kernel_weights(p: Pass, mixer: StateSpace) -> list[Param | None]:
    """What one function of the whole mixer reads, beside its projections at either end."""
    of_x, of_steps = mixer.linears[1], mixer.linears[2]
    read = [bare(p, mixer, name) for name in ("conv1d", "conv1d.bias", "D")]
    read += [p.param(each.name, each.inputs * each.outputs) for each in (of_x, of_steps)]
    return [*read, p.param(of_steps.name + ".bias", mixer.inner)]


def parameters_of_tokens(p: Pass, mixer: StateSpace, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_proj's three parts, normalised in some classes; the step's through dt_proj's weight alone."""
    tape, states = p.tape, p.dim("N", mixer.state)
    flat = turned(p, hidden, "channels")
    both = project(p, flat, mixer.linears[1], "(R+2N)", "steps, B and C")
    steps, b, c = ops.cut(tape, both, (p.dim("R", mixer.rank), states, states))
    if mixer.norms:
        steps, b, c = (norm(p, spec, each, "R") for spec, each in zip(mixer.norms, (steps, b, c), strict=True))
    elif mixer.normalised:
        steps, b, c = (without_weights(p, each) for each in (steps, b, c))
    of_steps = mixer.linears[2]
    weight = p.param(of_steps.name, of_steps.inputs * of_steps.outputs)
    made = ops.linear(tape, steps, weight, p.dim("D", mixer.inner), "steps")
    return turned(p, seen(tape, made) if p.rows > 1 else made, "steps"), b, c


def without_weights(p: Pass, x: Tensor) -> Tensor:
    """``norm(x.float()).to(dtype)`` (Falcon Mamba)."""
    tape = p.tape
    wide = ops.cast(tape, x, ops.FP32, "norm inputs in fp32")
    return ops.cast(tape, ops.normalise(tape, wide, p.dim("1", 1), "normalised"), x.itemsize, "norm outputs")


def discrete_steps(p: Pass, mixer: StateSpace, steps: Tensor) -> Tensor:
    """``softplus(dt + bias)`` in the dtype of dt; autocast takes softplus in fp32."""
    tape = p.tape
    bias = p.param(mixer.linears[2].name + ".bias", mixer.inner)
    narrow = ops.cast(tape, ops.cast(tape, bias, ops.FP32, "steps"), steps.itemsize, "steps")
    steps = add_bias(tape, steps, narrow, "steps")
    return ops.unary(tape, ops.cast(tape, steps, ops.FP32, "steps") if tape.autocast else steps, "steps")


def scan(
    p: Pass, mixer: StateSpace, hidden: Tensor, steps: Tensor, rates: Tensor, b: Tensor, c: Tensor, gate: Tensor
) -> Tensor:
    """``mamba_selective_scan``; what is a local there is one here."""
    tape, before = p.tape, hidden.itemsize
    wide = p.dim("D·N", mixer.inner * mixer.state)
    steps = discrete_steps(p, mixer, steps)
    decays = exponential(tape, outer(tape, steps, rates, wide), SCAN)
    of_b = outer(tape, steps, ops.cast(tape, b, ops.FP32, "B in fp32"), wide)
    inputs = outer(tape, of_b, ops.cast(tape, hidden, ops.FP32, "channels in fp32"), wide)
    start = [tape.new(Dim("D·N", p.rows * mixer.inner * mixer.state), before, "states")]
    out, state, held = run_positions(p, mixer, (decays, inputs, c), start, before)
    skip = ops.cast(tape, parameter(p, mixer, "D"), ops.FP32, SCAN)
    out = ops.add(tape, out, ops.mul(tape, hidden, skip, SCAN), "state-space output")
    out = ops.mul(tape, out, ops.unary(tape, gate, "activation"), "gated outputs")
    del held, state, of_b  # locals of mamba_selective_scan: ``discrete_B``, the last position's state
    return out


def outer(tape: Tape, a: Tensor, b: Tensor, wide: Dim) -> Tensor:
    """``a * b``, each seen as larger: both gradients have the full size until they are summed."""
    itemsize = max(a.itemsize, b.itemsize)
    sides = tuple((x.dim, x.itemsize, x.needs_grad) for x in (a, b))

    def backward(t: Tape, grads: Grads) -> Grads:
        whole = [t.gradient((wide, itemsize)) if needs else None for *_, needs in sides]
        t.drop_unpacked()
        sums = []
        for dim, size, needs in sides:
            made = whole.pop(0)
            summed = dim.elements != wide.elements or size != itemsize
            sums.append(t.gradient((dim, size)) if needs and summed else made)
            del made  # each product is summed to its operand's size before the next (engine.cpp: validate_outputs)
        return sums

    node = tape.node((a, b), (a if b.needs_grad else None, b if a.needs_grad else None), backward)
    return tape.new(wide, itemsize, SCAN, node)


def run_positions(
    p: Pass, mixer: StateSpace, operands: tuple[Tensor, Tensor, Tensor], start: list[Tensor], itemsize: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """``state = decays[i] * state + inputs[i]`` and ``state @ C[i]`` for each position, the outputs stacked; with
    what the scan still names, the last state and the list of outputs.

    A long loop is not played position by position: those in the middle are one step (``delta_loop``)."""
    tape, length, state = p.tape, p.length, start.pop()
    middle, kept = max(length - FIRST - LAST, 0), 0
    outputs: list[Tensor] = []
    small = Dim("D", p.rows * mixer.inner)
    for i in range(length - middle):
        if i == FIRST and middle:
            dim = Dim("D", small.elements * middle)
            output = tape.new(dim, outputs[-1].itemsize, "outputs of positions")
            state, output = skipped(tape, operands, middle, kept, state, output)
            outputs.append(output)
        before = tape.live
        state, output = one_position(tape, operands, state, small, length, itemsize)
        kept = tape.live - before - (output.storage.size if output.storage else 0)
        outputs.append(output)
        del output
    stacked = ops.concatenate(tape, outputs, p.dim("D", mixer.inner), "outputs of positions")
    return stacked, state, outputs


def one_position(
    tape: Tape, operands: tuple[Tensor, Tensor, Tensor], state: Tensor, small: Dim, length: int, itemsize: int
) -> tuple[Tensor, Tensor]:
    """The next state, and its product with C."""
    decay, added, c = (ops.view(tape, x, Dim(x.dim.symbol, x.dim.elements // length), whole=False) for x in operands)
    state = ops.add(tape, ops.mul(tape, decay, state, "states"), added, "states")
    narrow = ops.cast(tape, state, itemsize, "states")
    return state, contract(tape, narrow, c, small, "outputs of positions")
