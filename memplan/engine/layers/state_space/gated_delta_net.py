"""Gated delta rules as programs on the tape: the PyTorch code of transformers 5.23 (``torch_chunk_gated_delta_rule``)
in Qwen3-Next and Qwen3.5, and the gated attention beside them.

Everything within the rule is in fp32. Symbols: K keys of all heads, V values of all heads, H value heads, L the length
rounded up to chunks of c."""

from typing import NamedTuple

from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import add_bias
from memplan.engine.layers.state_space import cuda_kernels as mixer_kernels
from memplan.engine.layers.state_space.causal_convolution import causal_convolution, parameter, without_padding
from memplan.engine.layers.state_space.gated_delta_chunks import Chunks, run_chunks
from memplan.engine.layers.state_space.mamba2 import difference, gated
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import contract, exponential, pad, running_sum, seen
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.routing_ops import masked_fill, reduce
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Norm
from memplan.spec.state_space import GatedDelta

RULE = "delta rule"


class Projected(NamedTuple):
    """What the projections make: q, k and v as the convolution takes them, gate, and two numbers for each head."""

    mixed: Tensor
    gate: Tensor
    b: Tensor
    a: Tensor
    held: tuple[Tensor, ...] = ()
    """What the forward still names: the outputs of the projections."""
    joined: tuple[Tensor, ...] = ()
    """And, until the convolution is cut: q, k and v before they were joined."""


def gated_delta(p: Pass, mixer: GatedDelta, x: Tensor) -> tuple[Tensor, None]:
    """Projections, convolution, the rule, a gated norm of each head, projection."""
    tape = p.tape
    x = without_padding(p, x)
    mixed, gate, b, a, held, joined = fused(p, mixer, x) if mixer.fused else apart(p, mixer, x)
    mixed = causal_convolution(p, mixer, mixed, mixer.kernel)
    keys, values = p.dim("K", mixer.keys), p.dim("v", mixer.values)
    q, k, v = ops.cut(tape, mixed, (keys, keys, values))
    del joined
    beta = ops.unary(tape, b, "write strengths", saves="result")
    decay = log_decay(p, mixer, a)
    if p.mode.operators.mixer_kernels:
        out = mixer_kernels.delta_rule(p, mixer, (q, k, v, decay, beta))
    else:
        out = delta_rule(p, mixer, q, k, v, decay, beta)
    normed = gated_norm(p, mixer, mixer.norms[0], out, gate)
    result = project(p, normed, mixer.linears[-1], "h", "mixer output")
    del held
    return result, None


def apart(p: Pass, mixer: GatedDelta, x: Tensor) -> Projected:
    """Qwen3.5: four linears."""
    of_qkv, of_z, of_b, of_a, _ = mixer.linears
    return Projected(
        project(p, x, of_qkv, "(2K+v)", "queries, keys, values"),
        project(p, x, of_z, "v", "gate"),
        project(p, x, of_b, "H", "write strengths"),
        project(p, x, of_a, "H", "decays"),
    )


def fused(p: Pass, mixer: GatedDelta, x: Tensor) -> Projected:
    """Qwen3-Next: two linears, whose outputs are cut by key head; what is flattened is copied where heads have more."""
    tape, heads = p.tape, p.dim("H", mixer.value_heads)
    keys, values = p.dim("K", mixer.keys), p.dim("v", mixer.values)
    both = project(p, x, mixer.linears[0], "(2K+2V)", "queries, keys, values, gate")
    numbers = project(p, x, mixer.linears[1], "2H", "write strengths and decays")
    q, k, v, z = ops.cut(tape, both, (keys, keys, values, values))
    b, a = ops.cut(tape, numbers, (heads, heads))
    shared = mixer.value_heads != mixer.key_heads
    if shared:
        v, z = (ops.copy(tape, each, "values and gate") for each in (v, z))
    b, a = (ops.copy(tape, each, "write strengths and decays") for each in (b, a))
    q, k = (ops.copy(tape, each, "queries and keys") for each in (q, k))
    if not shared:
        v = ops.copy(tape, v, "values")
    mixed = ops.concatenate(tape, (q, k, v), p.dim("(2K+v)", 2 * mixer.keys + mixer.values), "queries, keys, values")
    return Projected(mixed, z, b, a, (both, numbers), (q, k, v))


def log_decay(p: Pass, mixer: GatedDelta, a: Tensor) -> Tensor:
    """``-A_log.float().exp() * softplus(a.float() + dt_bias)``."""
    tape = p.tape
    rate = exponential(tape, ops.cast(tape, parameter(p, mixer, "A_log"), ops.FP32, RULE), RULE)
    rate = ops.scale(tape, rate, RULE)
    wide = ops.cast(tape, a, ops.FP32, "decays")
    shifted = add_bias(tape, wide, parameter(p, mixer, "dt_bias"), "decays")
    del wide  # ``a.float()``: a temporary of ``F.softplus(a.float() + self.dt_bias)``
    return ops.mul(tape, ops.unary(tape, shifted, "decays"), rate, "decays")


def delta_rule(p: Pass, mixer: GatedDelta, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """``torch_chunk_gated_delta_rule``; what is a local there is one here.

    In fp32, nothing brings heads before positions but products, which copy then; padding does too."""
    tape, before, heads, chunk = p.tape, q.itemsize, mixer.value_heads, mixer.chunk
    blocks = -(-p.length // chunk)
    tokens = p.rows * blocks * chunk
    of_keys, of_values = Dim("L·H·K", tokens * heads * mixer.key_dim), Dim("L·v", tokens * mixer.values)
    of_heads, square = Dim("L·H", tokens * heads), Dim("L·H·c", tokens * heads * chunk)
    if mixer.key_heads != heads:
        every = p.dim("H·K", heads * mixer.key_dim)
        q, k = (ops.copy(tape, each, "queries and keys of all heads", every) for each in (q, k))
    q, k, v, beta = (ops.cast(tape, each, ops.FP32, "delta rule in fp32") for each in (q, k, v, beta))
    q, k = l2_norm(p, mixer, q), l2_norm(p, mixer, k)
    q = ops.scale(tape, q, RULE)
    q, k, v = pad(tape, q, of_keys, RULE), pad(tape, k, of_keys, RULE), pad(tape, v, of_values, RULE)
    beta, decay = pad(tape, beta, of_heads, RULE), pad(tape, decay, of_heads, RULE)
    v_beta, k_beta = ops.mul(tape, v, beta, RULE), ops.mul(tape, k, beta, RULE)
    if blocks > 1:
        v_beta, k_beta = seen(tape, v_beta), seen(tape, k_beta)
    strided = before == ops.FP32 and tokens == p.tokens and heads > 1
    copies = (strided, strided)
    upper = tape.new(Dim("c²", chunk * chunk), 1, "masks of a chunk")
    sums = running_sum(tape, decay, RULE)
    pairs = masked_fill(tape, outer_difference(tape, sums, square), upper, "decays of pairs")
    pairs = exponential(tape, pairs, "decays of pairs")
    system = ops.mul(tape, contract(tape, k_beta, k, square, "triangular systems", copies), pairs, "triangular systems")
    within = ops.mul(
        tape, contract(tape, q, k, square, "scores within a chunk", copies), pairs, "scores within a chunk"
    )
    decayed = ops.mul(tape, k_beta, exponential(tape, sums, RULE), RULE)
    new_values, read_keys = solve(tape, system, v_beta, "new values"), solve(tape, system, decayed, "keys that read")
    start = [tape.new(Dim("H·K·v", p.rows * heads * mixer.key_dim * mixer.value_dim), new_values.itemsize, "states")]
    out = tape.new(of_values, new_values.itemsize, "mixer output in fp32")
    q = ops.mul(tape, q, exponential(tape, sums, RULE), RULE)
    last = ops.view(tape, sums, Dim("H", p.rows * blocks * heads), whole=False)
    k = ops.mul(tape, k, exponential(tape, difference(p, last, sums), RULE), RULE)
    ends = ops.view(tape, sums, Dim("H", p.rows * blocks * heads), whole=False)
    chunk_decay = exponential(tape, ends, RULE)
    chunks = Chunks(new_values, read_keys, q, k, within, chunk_decay, blocks, strided)
    state, out, held = run_chunks(tape, chunks, start, out)
    del state  # the last recurrent state is returned to nobody: training has no cache
    if blocks > 1:
        out = ops.copy(tape, out, "mixer output in fp32")
    if tokens != p.tokens:
        out = ops.view(tape, out, p.dim("v", mixer.values), whole=False)
    out = ops.copy(tape, out, "mixer output") if before == ops.FP32 else ops.cast(tape, out, before, "mixer output")
    del held  # locals of torch_chunk_gated_delta_rule: ``query``, ``key``, ``decay``, the last chunk's
    return out


def l2_norm(p: Pass, mixer: GatedDelta, x: Tensor) -> Tensor:
    """``x * rsqrt((x * x).sum() + eps)`` of each head."""
    tape, per_head = p.tape, p.dim("H", mixer.value_heads)
    total = reduce(tape, ops.mul(tape, x, x, "norm squares"), per_head, "norm statistics")
    total = ops.scale(tape, total, "norm statistics", shares_gradient=True)
    return ops.mul(tape, x, ops.unary(tape, total, "norm statistics", saves="result"), "normalised")


def outer_difference(tape: Tape, x: Tensor, square: Dim) -> Tensor:
    """``x.unsqueeze(4) - x.unsqueeze(3)``: every pair of a chunk."""
    dim, itemsize = x.dim, x.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        negated = t.gradient((square, itemsize))
        first, second = t.gradient((dim, itemsize)), t.gradient((dim, itemsize))
        del negated
        return (first, second)

    return tape.new(square, itemsize, "decays of pairs", tape.node((x, x), (), backward))


def solve(tape: Tape, system: Tensor, right: Tensor, label: str) -> Tensor:
    """``torch.linalg.solve_triangular``: keeps the system and the solution."""
    square, dim, itemsize = system.dim, right.dim, right.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        of_right = t.gradient((dim, itemsize))
        product = t.gradient((square, itemsize))
        negated = t.gradient((square, itemsize))
        del product
        of_system = t.gradient((square, itemsize))
        del negated
        return (of_system, of_right)

    out = tape.new(dim, itemsize, label)
    node = tape.node((system, right), (system, out), backward)
    return Tensor(dim, itemsize, out.storage, node)


def gated_norm(p: Pass, mixer: GatedDelta, spec: Norm, x: Tensor, gate: Tensor) -> Tensor:
    """``weight * norm(x).to(dtype) * silu(gate.float())``, narrowed at the end."""
    before = x.itemsize
    normed = norm(p, spec, x, "v", "H", mixer.value_heads)
    return ops.cast(p.tape, gated(p, normed, gate), before, "gated outputs")
