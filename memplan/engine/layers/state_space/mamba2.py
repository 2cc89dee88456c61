"""Mamba 2 as a program on the tape: the PyTorch code of transformers 5.23 (``mamba2_chunk_scan``), which Bamba, Granite
4, Falcon-H1 and Nemotron-H share.

All within the scan is fp32. Symbols: D channels, N the state of a head, G groups, H heads, c the length of a chunk."""

from memplan.engine.layers.attention.softmax import attention
from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.norms import add_bias
from memplan.engine.layers.state_space import cuda_kernels as mixer_kernels
from memplan.engine.layers.state_space.causal_convolution import bare, causal_convolution, parameter, without_padding
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import contract, exponential, pad, running_sum, seen, segment_sum
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Norm
from memplan.spec.state_space import BothMixers, StateSpaceDual

STATE = "state space"


def state_space_dual(p: Pass, mixer: StateSpaceDual, x: Tensor) -> tuple[Tensor, None]:
    """Projection to gate, channels and steps; convolution; scan; gated norm; projection."""
    tape, before = p.tape, x.itemsize
    x = without_padding(p, x)
    if mixer.scaled:
        x = ops.scale(tape, x, "scaled inputs")
    projected = project(p, x, mixer.linears[0], "(2D+2GN+H)", "gate, channels and steps")
    if mixer.scaled:
        constant = p.mode.widths.buffer or p.mode.numerics.itemsize
        projected = ops.with_constant(tape, projected, constant, "scaled projections")
    decay = negative_exponential(p, mixer)
    if p.mode.operators.mixer_kernels:
        names = ("conv1d", "conv1d.bias", "dt_bias", "D")
        weights = [bare(p, mixer, name) for name in names]
        weights += [p.param(spec.name, spec.width, p.mode.numerics.norm_itemsize) for spec in mixer.norms]
        return mixer_kernels.dual(p, mixer, projected, decay, weights), None
    inner, states = p.dim("D", mixer.inner), p.dim("GN", mixer.groups * mixer.state)
    gate, convolved, step = ops.cut(
        tape, projected, (inner, p.dim("(D+2GN)", mixer.convolved), p.dim("H", mixer.heads))
    )
    convolved = causal_convolution(p, mixer, convolved, mixer.kernel)
    convolved = without_padding(p, convolved)
    hidden, b, c = ops.cut(tape, convolved, (inner, states, states))
    del x
    out = chunk_scan(p, mixer, hidden, step, decay, b, c)
    if mixer.norms:
        out = gated_norm(p, mixer, mixer.norms[0], out, gate)
    else:
        out = ops.mul(tape, out, ops.unary(tape, gate, "activation"), "gated outputs")
    return project(p, ops.cast(tape, out, before, "mixer output"), mixer.linears[1], "h", "mixer output"), None


def negative_exponential(p: Pass, mixer: StateSpaceDual) -> Tensor:
    """``-torch.exp(A_log.float())``."""
    weight = parameter(p, mixer, "A_log")
    wide = exponential(p.tape, ops.cast(p.tape, weight, ops.FP32, STATE), STATE)
    return ops.scale(p.tape, wide, STATE)


def discrete_steps(p: Pass, mixer: StateSpaceDual, step: Tensor) -> Tensor:
    """``clamp(softplus(dt + dt_bias))``; autocast takes softplus in fp32."""
    tape = p.tape
    step = add_bias(tape, step, parameter(p, mixer, "dt_bias"), "steps")
    step = ops.unary(tape, ops.cast(tape, step, ops.FP32, "steps") if tape.autocast else step, "steps")
    return ops.unary(tape, step, "steps")


def chunk_scan(
    p: Pass, mixer: StateSpaceDual, hidden: Tensor, step: Tensor, decay: Tensor, b: Tensor, c: Tensor
) -> Tensor:
    """``mamba2_chunk_scan``; what is a local there is one here.

    Channels lie before positions in memory, as the convolution leaves them; B and C, copied for each head, after."""
    tape, heads, state, chunk = p.tape, mixer.heads, mixer.state, mixer.chunk
    chunks = -(-p.length // chunk)
    tokens, blocks = p.rows * chunks * chunk, p.rows * chunks
    many, several, rows = heads > 1 and blocks > 1, heads > 1 and chunks > 1, heads > 1 and p.rows > 1
    inner, per_head = Dim("L·D", tokens * mixer.inner), Dim("L·H", tokens * heads)
    wide = Dim("L·H·N", tokens * heads * state)
    of_chunk = Dim("D·N", blocks * mixer.inner * state)
    of_chunks = Dim("D·N", (blocks + p.rows) * mixer.inner * state)
    step = discrete_steps(p, mixer, step)
    hidden = ops.cast(tape, hidden, ops.FP32, "channels in fp32")
    b, c = (repeated(p, mixer, x) for x in (b, c))
    skipped = ops.mul(tape, pad(tape, hidden, inner, STATE), parameter(p, mixer, "D"), STATE)
    hidden = ops.mul(tape, hidden, ops.cast(tape, step, ops.FP32, "steps in fp32"), STATE)
    a = ops.mul(tape, ops.cast(tape, step, ops.FP32, "steps in fp32"), decay, STATE)
    hidden, a, b, c = (pad(tape, x, dim, STATE) for x, dim in ((hidden, inner), (a, per_head), (b, wide), (c, wide)))
    if several:
        hidden, b, c = (seen(tape, x) for x in (hidden, b, c))
    sums = running_sum(tape, a, STATE)
    within = exponential(tape, segment_sum(tape, a, chunk, "decays within a chunk"), "decays within a chunk")
    square = Dim("L·H·c", tokens * heads * chunk)
    scores = contract(tape, c, b, square, "scores within a chunk", (many, many))
    weights = ops.mul(tape, scores, within, "scores within a chunk")
    diagonal = contract(tape, weights, hidden, inner, STATE, (False, several), grad=many)
    last = ops.view(tape, sums, Dim("H", blocks * heads), whole=False)
    until_end = exponential(tape, difference(p, last, sums), STATE)
    decayed = ops.mul(tape, b, until_end, STATE)
    states = contract(tape, hidden, decayed, of_chunk, "states of chunks", (several, many), grad=several)
    previous = tape.new(Dim("D·N", p.rows * mixer.inner * state), states.itemsize, "states of chunks")
    states = ops.concatenate(tape, (previous, states), of_chunks, "states of chunks")
    between = exponential(tape, between_chunks(p, mixer, sums, chunks), STATE)
    new_states = contract(tape, between, states, of_chunks, "states of chunks", (False, rows), grad=rows)
    states = ops.view(tape, new_states, of_chunk, whole=False)
    from_start = exponential(tape, sums, STATE)
    carried = contract(tape, c, states, inner, STATE, (many, several), grad=many)
    off_diagonal = ops.mul(tape, carried, from_start, STATE)
    out = ops.copy(tape, ops.add(tape, diagonal, off_diagonal, STATE), STATE)
    out = ops.add(tape, out, skipped, "state-space output")
    if tokens != p.tokens:
        out = ops.view(tape, out, p.dim("D", mixer.inner), whole=False)
    return out


def repeated(p: Pass, mixer: StateSpaceDual, x: Tensor) -> Tensor:
    """B or C in fp32, for every head of its group."""
    x = ops.cast(p.tape, x, ops.FP32, "B and C in fp32")
    dim = p.dim("H·N", mixer.heads * mixer.state)
    if mixer.heads == mixer.groups:
        return ops.copy(p.tape, x, "B and C of all heads")
    return ops.copy(p.tape, x, "B and C of all heads", dim)


def difference(p: Pass, a: Tensor, b: Tensor) -> Tensor:
    """``a - b`` where a has one number for many of b's; b's gradient is negated, a's summed."""
    tape, (a_dim, dim, itemsize) = p.tape, (a.dim, b.dim, b.itemsize)

    def backward(t: Tape, grads: Grads) -> Grads:
        negated = t.gradient((dim, itemsize))
        return (t.gradient((a_dim, itemsize)), negated)

    return tape.new(dim, itemsize, STATE, tape.node((a, b), (), backward))


def between_chunks(p: Pass, mixer: StateSpaceDual, sums: Tensor, chunks: int) -> Tensor:
    """``segment_sum`` of the sums at the end of each chunk."""
    ends = ops.view(p.tape, sums, Dim("H", p.rows * chunks * mixer.heads), whole=False)
    padded = pad(p.tape, ends, Dim("H", p.rows * (chunks + 1) * mixer.heads), STATE)
    return segment_sum(p.tape, padded, chunks + 1, STATE)


def gated_norm(p: Pass, mixer: StateSpaceDual, spec: Norm, x: Tensor, gate: Tensor) -> Tensor:
    """``weight * norm(x * silu(gate))``, everything in fp32; or the gate last (Falcon-H1)."""
    tape, weight = p.tape, p.param(spec.name, spec.width, p.mode.numerics.norm_itemsize)
    x = ops.cast(tape, x, ops.FP32, "gated norm")
    if mixer.gate_first:
        x = gated(p, x, gate)
    normed = ops.normalise(tape, x, p.dim("G", spec.groups), "normalised")
    del x  # ``hidden_states`` is rebound before the weight's product (MambaRMSNormGated.forward)
    out = ops.mul(tape, normed, weight, "gated norm")
    return out if mixer.gate_first else gated(p, out, gate)


def gated(p: Pass, x: Tensor, gate: Tensor) -> Tensor:
    """``x * silu(gate.float())``."""
    wide = ops.cast(p.tape, gate, ops.FP32, "gate in fp32")
    return ops.mul(p.tape, x, ops.unary(p.tape, wide, "activation"), "gated outputs")


def both_mixers(p: Pass, mixer: BothMixers, x: Tensor) -> tuple[Tensor, object]:
    """A state space, then attention over the same input; outputs scaled (Falcon-H1) and named until the layer's end."""
    tape = p.tape
    mixed, _ = state_space_dual(p, mixer.state_space, x)
    mixed = ops.scale(tape, mixed, "scaled outputs")
    attended, weights = attention(p, mixer.attention, ops.scale(tape, x, "scaled inputs"))
    del weights  # ``_`` of ``self.self_attn(…)`` (FalconH1DecoderLayer.forward)
    attended = ops.scale(tape, attended, "scaled outputs")
    return ops.add(tape, mixed, attended, "sum of both mixers"), (mixed, attended)
