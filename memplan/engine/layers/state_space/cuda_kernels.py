"""State spaces, gated delta rules and convolutions as their CUDA kernels run them, read off the autograd functions of
mamba-ssm 2.3.2 (``MambaInnerFn``, ``SelectiveScanFn``, ``MambaSplitConv1dScanCombinedFn``), causal-conv1d 1.6.1
(``CausalConv1dFn``) and flash-linear-attention 0.5.2
(``ChunkGatedDeltaRuleFunction``), and of transformers' own RWKV.

What a function saves is exact; what it allocates on the way follows its Python code, without the splits that it makes
by the number of multiprocessors and what a kernel keeps to itself. Symbols as in the programs of PyTorch's code."""

from collections.abc import Sequence

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Linear
from memplan.spec.state_space import GatedDelta, StateSpace, StateSpaceDual

INSIDE = "inside the mixer's kernel"
SCAN_CHUNK = 2048
"""Positions of one chunk of ``selective_scan_cuda``, which keeps two numbers of state for each."""


def inside(t: Tape, *sizes: tuple[Dim, int]) -> list[Tensor]:
    """Tensors that a function makes for a while."""
    return [t.new(dim, itemsize, INSIDE, category="temporaries") for dim, itemsize in sizes]


def convolution(p: Pass, x: Tensor, weights: Sequence[Param | None]) -> Tensor:
    """``causal_conv1d_fn``: keeps its input; the activation is within."""
    made = [each for each in weights if each is not None]
    node = p.tape.node((x, *made), (x,), ops.in_turn(ops.of_each(x), ops.of_weights(*made)))
    return p.tape.new(x.dim, x.itemsize, "convolution", node)


def output_weights(p: Pass, linear: Linear) -> tuple[Tensor, list[Param]]:
    """out_proj as a function reads it, cast under autocast, and its parameters."""
    weight = p.param(linear.name, linear.inputs * linear.outputs)
    low = p.tape.autocast
    cast = (
        ops.cast(p.tape, Tensor(weight.dim, weight.itemsize, None), low, "autocast copies of weights")
        if low
        else weight
    )
    return cast, [weight, *([p.param(linear.name + ".bias", linear.outputs)] if linear.bias else [])]


def dual(p: Pass, mixer: StateSpaceDual, projected: Tensor, decay: Tensor, weights: Sequence[Param | None]) -> Tensor:
    """``mamba_split_conv1d_scan_combined``: keeps what in_proj made and what the scan gave, before the gate."""
    tape, size = p.tape, projected.itemsize
    blocks = p.rows * -(-p.length // mixer.chunk)
    inner, convolved = p.dim("D", mixer.inner), p.dim("(D+2GN)", mixer.convolved)
    heads, states = p.dim("H", mixer.heads), Dim("D·N", blocks * mixer.inner * mixer.state)
    scores = Dim("G·c²", blocks * mixer.groups * mixer.chunk * mixer.chunk)
    groups, split = p.dim("GN", mixer.groups * mixer.state), projected.dim
    normed = bool(mixer.norms)
    out_weight, out_params = output_weights(p, mixer.linears[1])
    trained = [each for each in (*weights, *out_params) if each is not None]
    x_conv, steps, sums, wide = inside(
        tape, (convolved, size), (heads, ops.FP32), (heads, ops.FP32), (states, ops.FP32)
    )
    passed = inside(tape, (states, size))
    del wide
    products = inside(tape, (scores, ops.FP32), (inner, size))
    out = tape.new(inner, size, "state-space output")
    statistics = tape.new(p.dim("G", mixer.groups), ops.FP32, "norm statistics") if normed else None
    result = tape.new(p.dim("h", mixer.linears[1].outputs), out_weight.itemsize, "mixer output")
    del x_conv, steps, sums, passed, products
    of_weights = ops.of_weights(*trained)

    def backward(t: Tape, grads: list[Tensor | None]) -> Grads:
        again, conv, given, inner_grad = inside(t, (inner, size), (convolved, size), (convolved, size), (inner, size))
        whole = t.gradient((split, size))
        more = inside(t, (inner, size), (heads, ops.FP32), (heads, ops.FP32), (scores, ops.FP32), (states, ops.FP32))
        wide_grad = inside(t, (states, ops.FP32))
        narrow = inside(t, (states, size), (states, size))
        del wide_grad
        last = inside(
            t, (groups, ops.FP32), (groups, ops.FP32), (scores, ops.FP32), (heads, ops.FP32), (heads, ops.FP32)
        )
        del more, narrow, last
        made = of_weights(t, grads)
        del again, conv, given, inner_grad
        return (whole, None, *made)

    node = tape.node((projected, decay, *trained), (projected, out, statistics, out_weight), backward)
    return Tensor(result.dim, result.itemsize, result.storage, node)


def inner_function(
    p: Pass, mixer: StateSpace, projected: Tensor, rates: Tensor, weights: Sequence[Param | None]
) -> Tensor:
    """``mamba_inner_fn``: keeps a copy of what in_proj made, x_proj's output, B and C, the scan's output and its
    states; convolution and steps are made again."""
    tape, size = p.tape, projected.itemsize
    inner, both = p.dim("D", mixer.inner), projected.dim
    numbers, state = p.dim("(R+2N)", mixer.rank + 2 * mixer.state), p.dim("N", mixer.state)
    chunks = p.rows * -(-p.length // SCAN_CHUNK)
    between = Dim("2·D·N", 2 * chunks * mixer.inner * mixer.state)
    out_weight, out_params = output_weights(p, mixer.linears[3])
    trained = [each for each in (*weights, *out_params) if each is not None]
    copied = tape.new(both, size, "channels and gate")
    conv, steps = inside(tape, (inner, size), (inner, size))
    kept = [tape.new(dim, size, "steps, B and C") for dim in (numbers, state, state)]
    normed = inside(tape, (inner, size)) if mixer.normalised else []
    kept += [tape.new(inner, size, "state-space output"), tape.new(between, ops.FP32, "states of chunks")]
    gated = inside(tape, (inner, size))
    result = tape.new(p.dim("h", mixer.linears[3].outputs), out_weight.itemsize, "mixer output")
    del conv, steps, normed, gated
    of_weights = ops.of_weights(*trained)

    def backward(t: Tape, grads: list[Tensor | None]) -> Grads:
        again = inside(t, *[(inner, size)] * 2)
        whole = t.gradient((both, size))
        grads_inside = inside(t, *[(inner, size)] * 4, (state, ops.FP32), (state, ops.FP32), (numbers, size))
        copy = inside(t, (inner, size)) if p.rows > 1 else []
        made = of_weights(t, grads)
        del again, grads_inside, copy
        return (whole, None, *made)

    node = tape.node((projected, rates, *trained), (copied, *kept, out_weight), backward)
    return Tensor(result.dim, result.itemsize, result.storage, node)


def selective_scan(
    p: Pass, mixer: StateSpace, operands: Sequence[Tensor], rates: Tensor, weights: Sequence[Param | None]
) -> Tensor:
    """``selective_scan_fn`` of channels, steps, B, C and gate: keeps copies in which positions lie beside each other,
    its output before the gate, and its states."""
    tape, size = p.tape, operands[0].itemsize
    chunks = p.rows * -(-p.length // SCAN_CHUNK)
    between = Dim("2·D·N", 2 * chunks * mixer.inner * mixer.state)
    trained = [each for each in weights if each is not None]
    copies = [tape.new(each.dim, each.itemsize, "channels, B, C and gate") for each in operands]
    kept = [tape.new(operands[0].dim, size, "state-space output"), tape.new(between, ops.FP32, "states of chunks")]
    backward = ops.in_turn(ops.of_each(*operands), lambda t, g: (None,), ops.of_weights(*trained))
    node = tape.node((*operands, rates, *trained), (*copies, *kept), backward)
    return tape.new(operands[0].dim, size, "gated outputs", node)


def delta_rule(p: Pass, mixer: GatedDelta, operands: Sequence[Tensor]) -> Tensor:
    """``chunk_gated_delta_rule`` of q, k, v, decays and strengths: keeps normalised q and k, v, sums of decays, and the
    inverse of each chunk's system; states are made again."""
    q, k, v, _, beta = operands
    tape, size, heads = p.tape, q.itemsize, mixer.value_heads
    blocks = p.rows * -(-p.length // mixer.chunk)
    every_key, of_heads = p.dim("H·K", heads * mixer.key_dim), p.dim("H", heads)
    of_values = v.dim  # not ``v``: backward would hold what it is cut from
    states = Dim("H·K·v", blocks * heads * mixer.key_dim * mixer.value_dim)
    rows = p.dim("Hk", mixer.key_heads)
    kept = [tape.new(x.dim, size, "normalised queries and keys, values") for x in (q, k, v)]
    kept += [tape.new(rows, ops.FP32, "norm statistics") for _ in range(2)]
    kept += [tape.new(of_heads, ops.FP32, "sums of decays"), tape.new(of_heads, beta.itemsize, "write strengths")]
    kept.append(tape.new(p.dim("H·c", heads * mixer.chunk), size, "inverses of chunks"))
    made = inside(tape, (every_key, size), (of_values, size), (states, size), (of_values, size))
    out = tape.new(of_values, size, "mixer output")
    del made
    gradients = ops.of_each(*operands)

    def backward(t: Tape, grads: list[Tensor | None]) -> Grads:
        again = inside(t, (every_key, size), (of_values, size), (states, size), (of_values, size))
        of_states = inside(t, (states, size), (of_values, size))
        of_keys = inside(t, *[(every_key, size)] * 4, (of_values, size), (of_heads, ops.FP32))
        del again, of_states
        results = gradients(t, grads)
        del of_keys
        return results

    node = tape.node(operands, kept, backward)
    return Tensor(out.dim, out.itemsize, out.storage, node)


def weighted_average(p: Pass, key: Tensor, value: Tensor, decay: Param, first: Param) -> Tensor:
    """``RwkvLinearAttention`` (kernels-community/rwkv): keeps keys, values and its output, all in fp32 for fp16."""
    tape, before = p.tape, key.itemsize
    sizes = [(x.dim, x.itemsize, x.needs_grad) for x in (key, value)]
    rates = tape.new(decay.dim, ops.FP32, INSIDE)
    narrow = (tape.autocast or p.mode.numerics.itemsize) == 2
    wide = ops.FP32 if narrow and p.mode.numerics.half_to_float else before
    kept = [tape.new(x.dim, wide, "keys and values in fp32") if wide != before else x for x in (key, value)]
    out = tape.new(key.dim, wide, "mixer output")
    of_weights = ops.of_weights(decay, first)

    def backward(t: Tape, grads: list[Tensor | None]) -> Grads:
        made = [t.gradient((dim, wide)) for dim, *_ in sizes]
        inputs = [
            None if not wants else grad if wide == size else t.gradient((dim, size))
            for grad, (dim, size, wants) in zip(made, sizes, strict=True)
        ]
        return (*inputs, *of_weights(t, grads))

    node = tape.node((key, value, decay, first), (*kept, out, rates), backward)
    if wide != before:
        return tape.new(key.dim, before, "mixer output", node)
    return Tensor(out.dim, out.itemsize, out.storage, node)
