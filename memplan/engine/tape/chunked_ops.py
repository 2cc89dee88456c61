"""Operations of computations in chunks: copies of what cannot be seen otherwise, running sums, masks, padding."""

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.routing_ops import masked_fill
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape


def contract(
    tape: Tape,
    a: Tensor,
    b: Tensor,
    out: Dim,
    label: str,
    copies: tuple[bool, bool] = (False, False),
    grad: bool = False,
) -> Tensor:
    """``torch.einsum`` of two operands: one batched matmul.

    ``copies``: an operand whose order of dimensions cannot be seen as a batch of matrices is copied first; ``grad``:
    and so is the gradient of the result. Autocast casts operands of an einsum before it copies them, and holds the
    casts until it returns."""
    left, right = ops.autocast_input(tape, a), ops.autocast_input(tape, b)
    first = ops.copy(tape, left, label) if copies[0] else left
    second = ops.copy(tape, right, label) if copies[1] else right
    result = ops.matmul(tape, first, second, out, label)
    return seen(tape, result) if grad else result


def seen(tape: Tape, x: Tensor) -> Tensor:
    """A view whose gradient has to be copied to be seen as x was."""
    return ops.expand(tape, x, x.dim)


def running_sum(tape: Tape, x: Tensor, label: str) -> Tensor:
    """``cumsum``: saves nothing; backward is ``grad.flip(dim).cumsum(dim).flip(dim)`` (FunctionsManual.cpp:
    cumsum_backward)."""
    return tape.new(x.dim, x.itemsize, label, tape.node((x,), (), ops.in_three(x)))


def segment_sum(tape: Tape, x: Tensor, length: int, label: str) -> Tensor:
    """``segment_sum``: x seen ``length`` times, running sums of what a mask leaves, another mask."""
    square = Dim("c²", length * length)
    wide = Dim(x.dim.symbol + "·c", x.dim.elements * length)
    values = ops.expand(tape, x, wide)
    mask = tape.new(square, 1, "masks of a chunk")
    values = masked_fill(tape, values, tape.new(square, 1, "masks of a chunk"), label)
    sums = running_sum(tape, values, label)
    mask = tape.new(square, 1, "masks of a chunk")
    sums = masked_fill(tape, sums, tape.new(square, 1, "masks of a chunk"), label)
    del mask  # rebound for the second mask; that one is a local until ``segment_sum`` returns
    return sums


def pad(tape: Tape, x: Tensor, dim: Dim, label: str) -> Tensor:
    """``F.pad``, or what takes padding out: a copy even of nothing, and so is its gradient."""
    return tape.new(dim, x.itemsize, label, tape.node((x,), (), ops.own(x)))


def exponential(tape: Tape, x: Tensor, label: str) -> Tensor:
    """``exp``, in fp32 under autocast: keeps its result."""
    return ops.unary(tape, ops.cast(tape, x, ops.FP32, label) if tape.autocast else x, label, saves="result")
