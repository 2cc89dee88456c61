"""Where Gemma 3n's streams begin and end: projections of the embedding, scaled to its magnitude and stacked, before the
first layer; and back, scaled and averaged, before the final norm (transformers 5.23, ``modeling_gemma3n.py``)."""

from collections.abc import Sequence

from memplan.engine.layers.activations import power
from memplan.engine.layers.modules import Pass, project
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Linear

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
    return stack(p.tape, streams)


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
