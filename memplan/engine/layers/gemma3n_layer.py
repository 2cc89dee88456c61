"""Gemma 3n's layers as programs on the tape: stacked streams of which each layer runs one (AltUp), a low-rank branch
beside attention (LAuReL), a feed-forward that keeps its largest gates (transformers 5.23, ``modeling_gemma3n.py``).

``streams`` × T × h is what comes in and goes out; a stream is a view, whose gradient is put into zeros of all.

Where Gemma 3n's streams begin and end: projections of the embedding, scaled to its magnitude and stacked, before the
first layer; and back, scaled and averaged, before the final norm (transformers 5.23, ``modeling_gemma3n.py``)."""

from collections.abc import Sequence

from memplan.engine.layers.activations import activate, power
from memplan.engine.layers.gemma4_layer import cut_out
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import subtract
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor, in_turn
from memplan.engine.tape.routing_ops import in_place
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import FeedForward, Linear

STREAMS = "residual streams"


def projections(spec: ModelSpec, name: str) -> list[Linear]:
    """Those into the streams, or out of them: all but the first stream's."""
    return [linear for part in spec.extra for linear in part.linears if linear.name == name]


def stacked(p: Pass, spec: ModelSpec, held: list[Tensor]) -> Tensor:
    """The first layer's input, of the embedding's output. ``held``: that output, to which the locals of the model's
    forward are added: the last projection, which it names to its end, then the others."""
    x = held[0]
    target = power(p.tape, mean_square(p, x))
    streams = [x]
    for linear in projections(spec, "altup_projections"):
        made = project(p, x, linear, "h", STREAMS, quantised=False)
        streams.append(to_magnitude(p, made, target, x.itemsize))
    held += [made, *streams, target]
    whole = stack(p.tape, streams)
    return ops.cast(p.tape, whole, p.mode.widths.input or whole.itemsize, STREAMS)


def averaged(p: Pass, spec: ModelSpec, inputs: list[Tensor], held: list[Tensor]) -> Tensor:
    """The final norm's input, of the last layer's output. ``held``: locals until the norm is done."""
    tape, hidden, h = p.tape, inputs.pop(), p.dim("h", spec.hidden_size)
    target = power(tape, mean_square(p, ops.view(tape, hidden, h, whole=False)))
    streams = [ops.view(tape, hidden, h, whole=False)]
    for linear in projections(spec, "altup_unembed_projections"):
        one = ops.view(tape, hidden, h, whole=False)
        made = project(p, one, linear, "h", STREAMS, quantised=False)
        del one  # the projection's node holds what it reads
        streams.append(to_magnitude(p, made, target, p.mode.numerics.itemsize))
    held += [*streams, target, made]
    hidden = stack(tape, streams)
    size = hidden.dim, hidden.itemsize
    node = tape.node((hidden,), (), lambda t, g: (t.gradient(size),))
    return tape.new(h, hidden.itemsize, "average of the streams", node)


def mean_square(p: Pass, x: Tensor) -> Tensor:
    """``(x ** 2).mean(-1)``."""
    return mean_of_rows(p.tape, power(p.tape, x), p.dim("1", 1))


def to_magnitude(p: Pass, made: Tensor, target: Tensor, itemsize: int) -> Tensor:
    """``x * target / sqrt(clamp(mean(x ** 2)))``."""
    tape, x = p.tape, ops.cast(p.tape, made, itemsize, STREAMS)
    own = ops.unary(tape, mean_square(p, x), "magnitudes")
    own = ops.unary(tape, own, "magnitudes", saves="result")
    return divide(tape, ops.mul(tape, x, target, STREAMS), own)


def divide(tape: Tape, x: Tensor, row: Tensor) -> Tensor:
    """``x / row``, one number for each row: saves both; the row's gradient is of x over its square."""
    size, of_row = (x.dim, max(x.itemsize, row.itemsize)), (row.dim, row.itemsize)
    before, wants = x.itemsize, row.needs_grad

    def backward(t: Tape, grads: Grads) -> Grads:
        dx, dr = t.gradient(size), None
        if wants:
            once = t.gradient(size)
            twice = t.gradient(size)
            del once
            negated = t.gradient(size)
            product = t.gradient(size)
            del twice, negated
            dr = t.gradient(of_row)
            del product
        return (dx if before == size[1] else t.gradient((size[0], before)), dr)

    return tape.new(x.dim, size[1], STREAMS, tape.node((x, row), (x if wants else None, row), backward))


def stack(tape: Tape, streams: Sequence[Tensor]) -> Tensor:
    """``torch.stack``: saves nothing; each gets a view of the gradient."""
    dims = [(each.dim, each.itemsize) for each in streams]
    itemsize = max(each.itemsize for each in streams)
    whole = Dim(streams[0].dim.symbol, sum(dim.elements for dim, _ in dims))

    def backward(t: Tape, grads: Grads) -> Grads:
        grad = grads[0]
        assert grad is not None
        return [Tensor(dim, size, grad.storage) if size == itemsize else t.gradient((dim, size)) for dim, size in dims]

    return tape.new(whole, itemsize, STREAMS, tape.node(streams, (), backward))


def mean_of_rows(tape: Tape, x: Tensor, row: Dim) -> Tensor:
    """``x.mean(-1)`` in x's dtype."""
    size = (x.dim, x.itemsize)
    return tape.new(row, x.itemsize, "means of rows", tape.node((x,), (), lambda t, g: (t.gradient(size),)))


PREDICTED, INNOVATION = "predicted streams", "innovation of the streams"
RETURNED = "corrected streams"


def layer_of_streams(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``Gemma3nTextDecoderLayer``; what was cut out of all layers' inputs was cut before."""
    tape, norms, own = p.tape, layer.norms, layer.own_input
    assert layer.feed_forward is not None
    assert own is not None
    with tape.at("attention"):
        cut = cut_out(p, own)
        predictions = predict(p, layer, x)
        active = stream(p, layer, predictions)
        normed = norm(p, norms[0], active, "h")
        laurel = low_rank(p, layer, normed)
        attended, weights = mix(p, layer.mixer, normed)
        attended = norm(p, norms[1], attended, "h")
        gated = ops.add(tape, active, attended, "residual stream")
        both = ops.scale(tape, ops.add(tape, gated, laurel, "residual stream"), "residual stream")
    with tape.at("feed-forward"):
        normed_both = norm(p, norms[2], both, "h")
        fed = gated_product(p, layer.feed_forward, normed_both)
        normed_fed = norm(p, norms[3], fed, "h")
        activated = ops.add(tape, both, normed_fed, "residual stream")
        corrected = correct(p, layer, predictions, activated)
        first = ops.copy(tape, stream(p, layer, corrected), "first stream")
        first = ops.mul(tape, first, p.param("correct_output_scale", layer.width), "scaled first stream")
        first = project(p, first, own.linears[0], "d", "gate of the layer's input")
        first = activate(tape, own.activation, first)
        first = ops.mul(tape, first, cut, "gated input")
        first = project(p, first, own.linears[1], "h", "projected input")
        first = norm(p, own.norms[0], first, "h")
        out = add_to_others(tape, corrected, first, layer.streams)
    # locals of Gemma3nTextDecoderLayer.forward
    del weights, laurel, normed, active, gated, normed_both, fed, normed_fed
    return out


def linear_of(layer: Layer, name: str) -> Linear:
    """The linear of this name among the streams' own."""
    return next(linear for part in layer.extra for linear in part.linears if linear.name == name)


def stream(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``x[i]``: one stream of all."""
    return ops.view(p.tape, x, p.dim("h", layer.width), whole=False)


def modalities(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``tanh(router(norm(x) * scale).float()).type_as(x)``: a number for each stream."""
    tape, before = p.tape, x.itemsize
    router_norm = next(of for part in layer.extra for of in part.norms if of.name == "router_norm")
    inputs = ops.scale(tape, norm(p, router_norm, x, "h"), "router inputs")
    routed = project(p, inputs, linear_of(layer, "modality_router"), "n", "routed")
    return ops.cast(tape, ops.unary(tape, ops.cast(tape, routed, ops.FP32), "routed", saves="result"), before)


def predict(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``x`` and a product of its streams with numbers of each token, added in place to a view of that product."""
    tape = p.tape
    routed = modalities(p, layer, stream(p, layer, x))
    coefs = project(p, routed, linear_of(layer, "prediction_coefs"), "n²", "coefficients of the streams")
    product = add_to_view(tape, ops.matmul(tape, x, coefs, x.dim, PREDICTED), x)
    return ops.cast(tape, ops.copy(tape, product, PREDICTED), x.itemsize, PREDICTED)


def add_to_view(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """``view of all of x += y``: its backward (``CopySlices``) makes a copy of the gradient and a clone, y's."""
    size, before = (x.dim, x.itemsize), y.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        whole, clone = t.gradient(size), t.gradient(size)
        return (whole, clone if before == size[1] else t.gradient((size[0], before)))

    return Tensor(x.dim, x.itemsize, x.storage, tape.node((x, y), (), backward))


def low_rank(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``x + norm(right(left(x)))``."""
    hidden = project(p, x, linear_of(layer, "linear_left"), "l", "low-rank branch")
    hidden = project(p, hidden, linear_of(layer, "linear_right"), "h", "low-rank branch")
    of = next(of for part in layer.extra for of in part.norms if of.name == "post_laurel_norm")
    return ops.add(p.tape, x, norm(p, of, hidden, "h"), "low-rank branch")


def gated_product(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """``down(act(gate(x)) * up(x))``, all of them locals; gates below a cut-off are zeros where ``spec.sparse``."""
    tape = p.tape
    gate = project(p, x, spec.linears[0], "F", "gate")
    if spec.sparse:
        gate = largest(p, gate)
    active = activate(tape, spec.activation, gate)
    up = project(p, x, spec.linears[1], "F", "up")
    out = project(p, ops.mul(tape, active, up, "feed-forward product"), spec.linears[2], "h", "feed-forward output")
    del gate, active, up  # ``gate_proj``, ``activations``, ``up_proj``: locals of Gemma3nTextMLP.forward
    return out


def largest(p: Pass, x: Tensor) -> Tensor:
    """``relu(x - (x.mean(-1) + x.std(-1) * number))``."""
    tape, row = p.tape, p.dim("1", 1)
    cut = mean_of_rows(tape, x, row)
    cut = ops.add(tape, cut, ops.scale(tape, deviation(tape, x, row), "cut-off"), "cut-off")
    return ops.unary(tape, subtract(tape, x, cut, "gate above its cut-off"), "largest gates", saves="result")


def deviation(tape: Tape, x: Tensor, row: Dim) -> Tensor:
    """``x.std(-1)``: saves x and its result; backward holds x less its mean, and the product with the gradient."""
    size = (x.dim, x.itemsize)
    out = tape.new(row, x.itemsize, "deviations of rows")
    back = in_turn(size, size)  # ``self - self.mean()`` of its product (FunctionsManual.cpp: var_backward)
    return Tensor(row, x.itemsize, out.storage, tape.node((x,), (x, out), back))


def correct(p: Pass, layer: Layer, predictions: Tensor, activated: Tensor) -> Tensor:
    """``predictions + coefficients * (activated - its prediction)``, which is repeated for all streams; the weight of
    the coefficients is clamped first."""
    tape = p.tape
    routed = modalities(p, layer, activated)
    innovation = ops.add(tape, activated, in_place(tape, stream(p, layer, predictions)), INNOVATION)
    innovation = ops.copy(tape, innovation, INNOVATION, predictions.dim)
    linear = linear_of(layer, "correction_coefs")
    weight = p.param(linear.name, linear.parameters)
    coefs = ops.linear(tape, routed, weight, p.dim("n", linear.outputs), "coefficients of the streams")
    coefs = ops.scale(tape, coefs, "coefficients of the streams", shares_gradient=True)
    corrected = ops.mul(tape, innovation, coefs, RETURNED)
    node = tape.node((corrected, predictions), (), lambda t, g: (g[0], g[0]))
    return Tensor(corrected.dim, corrected.itemsize, corrected.storage, node)


def add_to_others(tape: Tape, x: Tensor, y: Tensor, streams: int) -> Tensor:
    """``x[1:] += y``: an addition to a slice, y broadcast, then Python's copy of the slice onto itself; each is a
    ``CopySlices``, which makes the whole gradient anew and a clone of the slice's."""
    whole = (x.dim, x.itemsize)
    part = (Dim(x.dim.symbol, x.dim.elements // streams * (streams - 1)), x.itemsize)
    of_y, before = y.dim, y.itemsize

    def added(t: Tape, grads: Grads) -> Grads:
        result, clone = t.gradient(whole), t.gradient(part)
        summed = t.gradient((of_y, part[1]))
        del clone
        return (result, summed if before == part[1] else t.gradient((of_y, before)))

    def copied(t: Tape, grads: Grads) -> Grads:
        result, clone = t.gradient(whole), t.gradient(part)
        zeros = t.gradient(part)
        del zeros
        return (result, clone)

    x = Tensor(x.dim, x.itemsize, x.storage, tape.node((x, y), (), added))
    sliced = ops.view(tape, x, part[0], whole=False)
    return Tensor(x.dim, x.itemsize, x.storage, tape.node((x, sliced), (), copied))
