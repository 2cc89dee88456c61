"""RWKV 4 as a program on the tape: its block, time mixing and channel mixing, in the PyTorch code of transformers 5.23.

``rwkv_linear_attention_cpu`` takes one position after the other, with a numerator, a denominator and the greatest
exponent of each channel in fp32. Symbols: A channels of the average, F the width of the feed-forward."""

from collections.abc import Sequence

from memplan.engine.layers.activations import power
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import add_bias
from memplan.engine.layers.state_space import cuda_kernels as mixer_kernels
from memplan.engine.layers.state_space.causal_convolution import parameter
from memplan.engine.layers.state_space.gated_delta_chunks import FIRST, LAST, minus, put, skip
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import exponential
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer
from memplan.spec.parts import FeedForward, Part
from memplan.spec.state_space import TimeMix

MIXED, AVERAGE = "mixed with the token before", "weighted average"


def rwkv_block(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm before each half; the first block normalises the embedding's output before it."""
    tape, (*first, before, between) = p.tape, layer.norms
    with tape.at("attention"):
        hidden = norm(p, first[0], x, "h") if first else x
        assert isinstance(layer.mixer, TimeMix)
        mixed, _ = time_mix(p, layer.mixer, norm(p, before, hidden, "h"))
        hidden = ops.add(tape, hidden, mixed, "residual stream")
    with tape.at("feed-forward"):
        assert layer.feed_forward is not None
        fed = channel_mix(p, layer.feed_forward, norm(p, between, hidden, "h"))
        out = ops.add(tape, hidden, fed, "residual stream")
    del mixed, fed  # ``attention`` and ``feed_forward`` are locals of RwkvBlock.forward
    return out


def time_mix(p: Pass, mixer: TimeMix, x: Tensor) -> tuple[Tensor, None]:
    """``output(sigmoid(receptance) * average of the values)``."""
    tape = p.tape
    receptance, key, value = projected(p, mixer, x)
    decay, first = parameter(p, mixer, "time_decay"), parameter(p, mixer, "time_first")
    if p.mode.operators.mixer_kernels:
        out = mixer_kernels.weighted_average(p, key, value, decay, first)
    else:
        out = average(p, key, value, decay, first)
    product = ops.mul(tape, receptance, out, "gated outputs")
    return project(p, product, mixer.linears[3], "h", "mixer output"), None


def projected(p: Pass, mixer: TimeMix, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``extract_key_value``: each of the three is made of its own mixture of a token and the one before."""
    shifted = one_later(p, x)
    key, value, receptance = (mixture(p, mixer, x, shifted, name) for name in ("key", "value", "receptance"))
    key = project(p, key, mixer.linears[0], "A", "keys")
    value = project(p, value, mixer.linears[1], "A", "values")
    receptance = project(p, receptance, mixer.linears[2], "A", "receptance")
    receptance = ops.unary(p.tape, receptance, "receptance", saves="result")
    del shifted  # ``shifted`` is a local of extract_key_value (RwkvSelfAttention)
    return receptance, key, value


def channel_mix(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """``sigmoid(receptance) * value(relu(key)²)``."""
    tape, (of_key, of_receptance, of_value) = p.tape, spec.linears
    shifted = one_later(p, x)
    key, receptance = (mixture(p, spec, x, shifted, name) for name in ("key", "receptance"))
    key = ops.unary(tape, project(p, key, of_key, "F", "up"), "activation", saves="result")
    key = power(tape, key)
    value = project(p, key, of_value, "h", "feed-forward output")
    receptance = project(p, receptance, of_receptance, "h", "receptance")
    receptance = ops.unary(tape, receptance, "receptance", saves="result")
    del shifted  # ``shifted`` is a local of RwkvFeedForward.forward
    return ops.mul(tape, receptance, value, "feed-forward output")


def one_later(p: Pass, x: Tensor) -> Tensor:
    """``nn.ZeroPad2d((0, 0, 1, -1))``: the token before; its gradient is padded back."""
    return p.tape.new(x.dim, x.itemsize, "the token before", p.tape.node((x,), (), ops.own(x)))


def mixture(p: Pass, part: Part, x: Tensor, shifted: Tensor, name: str) -> Tensor:
    """``x * mix + shifted * (1 - mix)``."""
    tape, weight = p.tape, parameter(p, part, "time_mix_" + name)
    own = ops.mul(tape, x, weight, MIXED)
    return ops.add(tape, own, ops.mul(tape, shifted, ops.scale(tape, weight, MIXED), MIXED), MIXED)


def average(p: Pass, key: Tensor, value: Tensor, decay: Param, first: Param) -> Tensor:
    """``rwkv_linear_attention_cpu``. Not played position by position: the middle is one step (``delta_loop``)."""
    tape, length = p.tape, p.length
    small = Dim("A", key.dim.elements // length)
    out = tape.new(key.dim, key.itemsize, "mixer output")
    states = [tape.new(small, ops.FP32, "states") for _ in range(2)]
    states.append(ops.scale(tape, tape.new(small, ops.FP32, "states"), "states"))
    rates = ops.scale(tape, exponential(tape, decay, AVERAGE), AVERAGE)
    middle, kept = max(length - FIRST - LAST, 0), 0
    held: dict[str, Tensor] = {}
    for i in range(length - middle):
        if i == FIRST and middle:
            states, out = skip(tape, (key, value, rates, first), middle, kept, states, out)
        before = tape.live
        out = one_position(p, key, value, rates, first, states, out, held)
        kept = tape.live - before
    return out


def one_position(
    p: Pass,
    key: Tensor,
    value: Tensor,
    rates: Tensor,
    first: Tensor,
    states: list[Tensor],
    out: Tensor,
    held: dict[str, Tensor],
) -> Tensor:
    """The output with one position more; ``states`` go on: numerator, denominator, exponent; ``held``: other locals."""
    tape, small = p.tape, states[0].dim
    numerator, denominator, most = states
    held["key"] = now = ops.cast(tape, ops.view(tape, key, small, whole=False), ops.FP32, AVERAGE)
    held["value"] = given = ops.view(tape, value, small, whole=False)
    held["max"] = maximum(tape, most, add_bias(tape, now, first, AVERAGE))
    held["e1"] = exponential(tape, minus(tape, most, held["max"], AVERAGE), AVERAGE)
    held["e2"] = exponential(tape, minus(tape, add_bias(tape, now, first, AVERAGE), held["max"], AVERAGE), AVERAGE)
    held["numerator"] = weighed(tape, held, numerator, given)
    held["denominator"] = weighed(tape, held, denominator)
    share = divide(tape, held["numerator"], held["denominator"])
    out = put(tape, out, ops.cast(tape, share, out.itemsize, AVERAGE))
    del share
    held["max of states"] = following = maximum(tape, add_bias(tape, most, rates, AVERAGE), now)
    held["e1"] = exponential(tape, minus(tape, add_bias(tape, most, rates, AVERAGE), following, AVERAGE), AVERAGE)
    held["e2"] = exponential(tape, minus(tape, now, following, AVERAGE), AVERAGE)
    states[0] = weighed(tape, held, numerator, given)
    del numerator
    states[1] = weighed(tape, held, denominator)
    states[2] = following
    return out


def weighed(tape: Tape, held: dict[str, Tensor], state: Tensor, given: Tensor | None = None) -> Tensor:
    """``e1 * state + e2 * given``, or ``e1 * state + e2``."""
    kept = ops.mul(tape, held["e1"], state, AVERAGE)
    added = held["e2"] if given is None else ops.mul(tape, held["e2"], given, AVERAGE)
    return ops.add(tape, kept, added, AVERAGE)


def maximum(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``torch.maximum``: keeps both; equal ones share the gradient."""
    dim, itemsize = a.dim, a.itemsize
    wanted = (a.needs_grad, b.needs_grad)

    def backward(t: Tape, grads: Grads) -> Grads:
        made: list[Tensor | None] = []
        for wants in wanted:
            if not wants:
                made.append(None)
                continue
            half, equal = t.gradient((dim, itemsize)), t.gradient((dim, 1))
            made.append(t.gradient((dim, itemsize)))
            of_smaller = t.gradient((dim, 1))
            del half, equal, of_smaller
        return made

    return tape.new(dim, itemsize, AVERAGE, tape.node((a, b), (a, b), backward))


def divide(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` of equal sizes: keeps both."""
    dim, itemsize = a.dim, a.itemsize

    def backward(t: Tape, grads: Sequence[Tensor | None]) -> Grads:
        inner = t.gradient((dim, itemsize))
        inner = t.gradient((dim, itemsize))
        negated = t.gradient((dim, itemsize))
        of_b = t.gradient((dim, itemsize))
        del inner, negated
        return (t.gradient((dim, itemsize)), of_b)

    return tape.new(dim, itemsize, AVERAGE, tape.node((a, b), (a, b), backward))
