"""Operations of routed experts: choosing, copying rows to their experts, grouped matmuls, summing back."""

from memplan.engine.tape.graph import Backward, Grads, Param, Tensor
from memplan.engine.tape.ops import FP32, cast, expand, linear, own
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape

INDEX = 8
"""Bytes of an int64 index."""


def grouped_linear(tape: Tape, x: Tensor, weight: Param, out: Dim, label: str) -> Tensor:
    """``grouped_mm``: one matmul per expert, in the weight's own dtype whatever autocast says."""
    source = cast(tape, x, weight.itemsize, "expert inputs")
    autocast, tape.autocast = tape.autocast, 0
    result = linear(tape, source, weight, out, label, op="grouped_mm")
    tape.autocast = autocast
    return result


def into_zeros(x: Tensor) -> Backward:
    """The backward of what was gathered, indexed or sorted out of x: put into zeros, in place on a real device and out
    of place under a dispatch mode, such as a trace (FunctionsManual.cpp: gather_backward)."""
    like = x.dim, x.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        zeros = t.gradient(like, "scatter zeros")
        return (zeros if t.in_place else t.gradient(like),)

    return backward


def gather_rows(tape: Tape, x: Tensor, rows: Dim, label: str, index: Tensor | None = None) -> Tensor:
    """``x[index]``: a copy; the index is saved. Its gradient is put into zeros of the original's size."""
    return tape.new(rows, x.itemsize, label, tape.node((x,), (index,), into_zeros(x)))


def reduce(tape: Tape, x: Tensor, out: Dim, label: str) -> Tensor:
    """``x.sum(dim)``: saves nothing; its gradient is an expanded view, cast where autocast summed into fp32."""
    if sum_itemsize(tape, x) != x.itemsize:
        return sum_groups(tape, x, out, label)
    return tape.new(out, x.itemsize, label, tape.node((x,), (), lambda t, g: (g[0],)))


def sum_groups(tape: Tape, x: Tensor, out: Dim, label: str) -> Tensor:
    """``x.view(…).sum(dim)``: saves nothing; the expanded gradient is copied when it is seen in x's shape again."""
    return tape.new(out, sum_itemsize(tape, x), label, tape.node((x,), (), own(x)))


def sum_itemsize(tape: Tape, x: Tensor) -> int:
    """Element size of a sum of x: autocast has ``sum`` among the operations of fp32."""
    return max(FP32, x.itemsize) if tape.autocast else x.itemsize


def indices(tape: Tape, dim: Dim, itemsize: int = INDEX) -> Tensor:
    """Integers, which have no gradient."""
    return tape.new(dim, itemsize, "routing indices")


def top_k(tape: Tape, x: Tensor, chosen: Dim) -> tuple[Tensor, Tensor]:
    """``x.topk(k)``: values and their indices, which are saved; the gradient is scattered into zeros."""
    values = tape.result("topk", chosen, x.itemsize, "routing weights")
    index = tape.result("topk", chosen, INDEX, "routing indices")
    return Tensor(chosen, x.itemsize, values.storage, tape.node((x,), (index,), into_zeros(x))), index


def gather(tape: Tape, x: Tensor, index: Tensor, chosen: Dim) -> Tensor:
    """``x.gather(dim, index)``: saves both; as ``gather_rows`` on the way back."""
    return tape.new(chosen, x.itemsize, "routing weights", tape.node((x,), (x, index), into_zeros(x)))


def masked_fill(tape: Tape, x: Tensor, mask: Tensor, label: str) -> Tensor:
    """``x.masked_fill(mask, number)``: saves the mask."""
    return tape.new(x.dim, x.itemsize, label, tape.node((x,), (mask,), own(x)))


def divide(tape: Tape, x: Tensor, divisor: Tensor, in_place: bool) -> Tensor:
    """``x / divisor`` or ``x /= divisor``, the divisor a number for each row: both are saved, x as a clone where it
    is overwritten. Out of place, a wider divisor widens the result."""
    dim, itemsize, row, row_size = x.dim, x.itemsize, divisor.dim, divisor.itemsize
    want, wide = divisor.needs_grad, itemsize if in_place else max(itemsize, row_size)

    def backward(t: Tape, grads: Grads) -> Grads:
        dx = t.gradient((dim, wide))
        if wide != itemsize:
            dx = t.gradient((dim, itemsize))
        return (dx, t.gradient((row, row_size)) if want else None)

    kept: Tensor | None = x
    if in_place and tape.grad_enabled and x.needs_grad:
        kept = tape.new(dim, itemsize, "routing weights")
    node = tape.node((x, divisor), (kept, divisor), backward)
    if in_place:
        return Tensor(dim, itemsize, x.storage, node)
    return tape.new(dim, wide, "routing weights", node)


def in_place(tape: Tape, x: Tensor) -> Tensor:
    """``x *= number``, or the sign of what is subtracted: no bytes of its own; its gradient is another tensor."""
    return expand(tape, x, x.dim)


def add_in_place(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """``x.add_(y)`` of equal sizes: both receive the same gradient."""
    node = tape.node((x, y), (), lambda t, g: (g[0], g[0]))
    return Tensor(x.dim, x.itemsize, x.storage, node)


def noise_in_place(tape: Tape, x: Tensor) -> Tensor:
    """``x *= torch.empty_like(x).uniform_(…)``: saves the noise, and its gradient is a tensor of its own."""
    noise = tape.new(x.dim, x.itemsize, "noise on the experts' input")
    return Tensor(x.dim, x.itemsize, x.storage, tape.node((x,), (noise,), own(x)))
