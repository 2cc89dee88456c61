"""Hyper-connections as a program on the tape: residual streams that are collapsed before a block and mixed after it.

Follows ``DeepseekV4HyperConnection`` and ``DeepseekV4HyperHead`` (transformers 5.23). What mixes the streams is
computed in fp32: n numbers for each token to collapse and n to expand them, n × n to mix them, made doubly stochastic
by alternate divisions, each of which autograd keeps. Symbols, per token: n streams of h."""

from memplan.engine.layers.feed_forward import feed_forward
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm
from memplan.engine.layers.norms import rms_bare
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Part

STREAMS, WEIGHTS = "residual streams", "weights of the streams"


def layer_of_connections(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``DeepseekV4DecoderLayer.forward``."""
    of_mixer, of_feed_forward = (part for part in layer.extra if len(part.tensors) == 3)
    with p.tape.at("attention"):
        post, comb, collapsed = connection(p, layer, of_mixer, x)
        out, weights = mix(p, layer.mixer, norm(p, layer.norms[0], collapsed, "h"))
        hidden = expanded(p, x, out, post, comb)
        del out
    with p.tape.at("feed-forward"):
        held = [post, comb, collapsed]
        post, comb, collapsed = connection(p, layer, of_feed_forward, hidden)
        held.clear()
        fed = feed_forward(p, layer.feed_forward, norm(p, layer.norms[1], collapsed, "h"))
        result = expanded(p, hidden, fed, post, comb)
    del weights  # ``_`` of ``self.self_attn(…)`` (DeepseekV4DecoderLayer.forward)
    return result


def connection(p: Pass, layer: Layer, part: Part, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What expands and what mixes the streams, and the streams collapsed into one."""
    tape, n = p.tape, layer.streams
    few, square = p.dim("n", n), p.dim("n²", n * n)
    fn, base, scale = part.tensors
    flat = normed(p, x, n * layer.width)
    weight = p.param(fn.name, fn.parameters, fn.itemsize)
    flat = ops.linear(tape, flat, weight, p.dim("(2+n)n", (2 + n) * n), WEIGHTS)
    parts = ops.cut(tape, flat, (few, few, square))
    offsets = ops.cut(
        tape, p.param(base.name, base.parameters, base.itemsize), [Dim("n", n), Dim("n", n), Dim("n²", n * n)]
    )
    factors = ops.split(tape, p.param(scale.name, scale.parameters, scale.itemsize), 3, Dim("1", 1))
    pre = shifted(tape, parts[0], factors[0], offsets[0])
    pre = ops.scale(tape, ops.unary(tape, pre, WEIGHTS, saves="result"), WEIGHTS, shares_gradient=True)
    post = shifted(tape, parts[1], factors[1], offsets[1])
    post = ops.scale(tape, ops.unary(tape, post, WEIGHTS, saves="result"), WEIGHTS)
    comb = shifted(tape, parts[2], factors[2], offsets[2])
    comb = ops.scale(tape, ops.unary(tape, comb, WEIGHTS, saves="result"), WEIGHTS, shares_gradient=True)
    for _ in range(2 * layer.stream_rounds - 1):
        comb = over_sums(tape, comb, few)
    return post, comb, collapse(p, x, pre, layer.width)


def normed(p: Pass, x: Tensor, width: int) -> Tensor:
    """``DeepseekV4UnweightedRMSNorm`` of all streams together, in fp32, seen as one by a view, where gradients meet."""
    x = Tensor(x.dim, x.itemsize, x.storage, p.tape.node((x,), (), lambda t, g: (g[0],)))
    wide = ops.cast(p.tape, x, ops.FP32, "streams in fp32")
    return rms_bare(p, wide, Dim("T", x.dim.elements // width))


def shifted(tape: Tape, x: Tensor, factor: Tensor, offset: Tensor) -> Tensor:
    """``x * factor + offset``: a number, which does not widen x, and a vector, which does."""
    dim, itemsize, wants = x.dim, x.itemsize, factor.needs_grad
    size, of_number = (dim, itemsize), (factor.dim, factor.itemsize)

    def backward(t: Tape, grads: Grads) -> Grads:
        dx, product = t.gradient(size), t.gradient(size) if wants else None
        number = t.gradient(of_number) if wants else None
        del product  # ``grad * x`` is summed to a number (engine.cpp: validate_outputs)
        return (dx, number)

    node = tape.node((x, factor), (x if wants else None, factor), backward)
    return plus(tape, tape.new(dim, itemsize, WEIGHTS, node), offset)


def plus(tape: Tape, x: Tensor, offset: Tensor) -> Tensor:
    """``x + vector``: the vector's gradient is a sum over tokens."""
    dim, itemsize, before = x.dim, max(x.itemsize, offset.itemsize), x.itemsize
    vector, wants, wants_x = (offset.dim, offset.itemsize), offset.needs_grad, x.needs_grad

    def backward(t: Tape, grads: Grads) -> Grads:
        dx = (grads[0] if before == itemsize else t.gradient((dim, before))) if wants_x else None
        return (dx, t.gradient(vector) if wants else None)

    return tape.new(dim, itemsize, WEIGHTS, tape.node((x, offset), (), backward))


def over_sums(tape: Tape, x: Tensor, rows: Dim) -> Tensor:
    """``x / (x.sum(keepdim) + eps)``: both are kept."""
    dim, itemsize = x.dim, x.itemsize
    size, row = (dim, itemsize), (rows, itemsize)

    def spread(t: Tape, grads: Grads) -> Grads:
        seen = grads[0]
        return (Tensor(dim, itemsize, seen.storage) if seen is not None else None,)

    total = tape.new(rows, itemsize, WEIGHTS, tape.node((x,), (), spread))
    total = ops.scale(tape, total, WEIGHTS, shares_gradient=True)

    def backward(t: Tape, grads: Grads) -> Grads:
        dx = t.gradient(size)
        temporaries = [t.gradient(size) for _ in range(4)]
        last = temporaries.pop()
        temporaries.clear()
        result = t.gradient(row)
        del last
        return (dx, result)

    return tape.new(dim, itemsize, WEIGHTS, tape.node((x, total), (x, total), backward))


def collapse(p: Pass, x: Tensor, pre: Tensor, width: int) -> Tensor:
    """``(pre.unsqueeze(-1) * streams).sum(dim=2).to(dtype)``: the product is as wide as fp32 and all streams."""
    product = outer(p.tape, pre, x, x.dim, "weighed streams")
    total = routing_ops.reduce(p.tape, product, p.dim("h", width), "collapsed streams")
    del product  # a temporary of ``(pre.unsqueeze(-1) * streams).sum(dim=2)``
    return ops.cast(p.tape, total, x.itemsize, "collapsed streams")


def outer(tape: Tape, a: Tensor, b: Tensor, dim: Dim, label: str) -> Tensor:
    """``a * b``, either or both broadcast to ``dim``: both gradients have that size until they are summed."""
    itemsize = max(a.itemsize, b.itemsize)
    sides = [(side.dim, side.itemsize, side.needs_grad) for side in (a, b)]

    def backward(t: Tape, grads: Grads) -> Grads:
        made: list[Tensor | None] = [t.gradient((dim, itemsize)) if needs else None for *_, needs in sides]
        t.drop_unpacked()
        for i, (small, size, needs) in enumerate(sides):
            if needs and small.elements != dim.elements and size != itemsize:
                made[i] = t.gradient((small, itemsize))
            if needs and (small.elements != dim.elements or size != itemsize):
                made[i] = t.gradient((small, size))
        return made

    node = tape.node((a, b), (a if b.needs_grad else None, b if a.needs_grad else None), backward)
    return tape.new(dim, itemsize, label, node)


def expanded(p: Pass, x: Tensor, out: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``post * out + combᵀ @ streams``."""
    tape, size = p.tape, x.itemsize
    spread = outer(tape, ops.cast(tape, post, size, WEIGHTS), out, x.dim, STREAMS)
    mixed = ops.matmul(tape, ops.cast(tape, comb, size, WEIGHTS), x, x.dim, STREAMS)
    return ops.add(tape, spread, mixed, STREAMS)


def opened(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """The first layer's input: the embedding's output, once for each stream."""
    return ops.copy(p.tape, x, STREAMS, p.dim("n·h", spec.streams * spec.hidden_size))


def closed(p: Pass, spec: ModelSpec, inputs: list[Tensor], held: list[Tensor]) -> Tensor:
    """``DeepseekV4HyperHead.forward``, before the final norm; forward still names the streams (``held``)."""
    tape, n, x = p.tape, spec.streams, inputs.pop()
    held.append(x)
    fn, base, scale = next(part.tensors for part in spec.extra if len(part.tensors) == 3)
    flat = normed(p, x, n * spec.hidden_size)
    mixes = ops.linear(tape, flat, p.param(fn.name, fn.parameters, fn.itemsize), p.dim("n", n), WEIGHTS)
    factor = p.param(scale.name, 1, scale.itemsize)
    pre = shifted(tape, mixes, factor, p.param(base.name, base.parameters, base.itemsize))
    pre = ops.scale(tape, ops.unary(tape, pre, WEIGHTS, saves="result"), WEIGHTS, shares_gradient=True)
    collapsed = collapse(p, x, pre, spec.hidden_size)
    del flat
    return collapsed
