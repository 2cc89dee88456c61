"""The loop over chunks of a gated delta rule, as a program on the tape.

Each chunk puts its output into one tensor and hands a state on. On the way back, the gradient of each operand's chunk
is put into zeros of the whole operand's size, and added. A long loop is not played chunk by chunk: those in the middle
are one step that keeps what so many chunks keep, since the peak is where the last chunks run back."""

from collections.abc import Sequence
from typing import NamedTuple

from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import contract
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape

FIRST, LAST = 2, 3
"""Chunks that are played one by one at either end."""
LABEL = "states and new values of chunks"


class Chunks(NamedTuple):
    """The operands, each for all chunks."""

    values: Tensor
    read_keys: Tensor
    queries: Tensor
    keys: Tensor
    within: Tensor
    decay: Tensor
    chunks: int
    strided: bool
    """Queries and keys have to be copied to be seen as matrices."""


def run_chunks(tape: Tape, chunks: Chunks, start: list[Tensor], out: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The last state, the output, and what the loop's variables hold at its end.

    Takes the first state out of the list, so that nobody else holds it."""
    state = start.pop()
    middle, kept = max(chunks.chunks - FIRST - LAST, 0), 0
    held: list[Tensor] = []
    for i in range(chunks.chunks - middle):
        if i == FIRST and middle:
            state, out = skipped(tape, chunks[:6], middle, kept, state, out)
        before = tape.live
        state, out = one_chunk(tape, chunks, state, out, held)
        kept = tape.live - before
    return state, out, held


def one_chunk(tape: Tape, chunks: Chunks, state: Tensor, out: Tensor, held: list[Tensor]) -> tuple[Tensor, Tensor]:
    """``v_new = values - keys @ state``, the output, the next state; v_new and the state's share are held on."""

    def part(x: Tensor) -> Tensor:
        return ops.view(tape, x, Dim(x.dim.symbol, x.dim.elements // chunks.chunks), whole=False)

    def product(a: Tensor, b: Tensor, dim: Dim, label: str, copies: bool = False) -> Tensor:
        return contract(tape, a, b, dim, label, (copies, False))

    values = part(chunks.values)
    dim = values.dim
    new = minus(tape, values, product(part(chunks.read_keys), state, dim, "predicted values"))
    held[:1] = [new]
    across = product(part(chunks.queries), state, dim, "output of a chunk", chunks.strided)
    held[1:] = [across]
    inside = product(part(chunks.within), new, dim, "output of a chunk")
    out = put(tape, out, ops.add(tape, across, inside, "output of a chunk"))
    del inside
    decayed = ops.mul(tape, state, part(chunks.decay), "states")
    written = product(part(chunks.keys), new, state.dim, "states", chunks.strided)
    return ops.add(tape, decayed, written, "states"), out


def minus(tape: Tape, a: Tensor, b: Tensor, label: str = "new values") -> Tensor:
    """``a - b`` of equal sizes."""
    size = a.dim, b.itemsize
    return tape.new(a.dim, a.itemsize, label, tape.node((a, b), (), lambda t, g: (g[0], t.gradient(size))))


def put(tape: Tape, base: Tensor, value: Tensor) -> Tensor:
    """``base[:, :, i] = value``: its gradient is copied whole, the part cut out and zeroed."""
    size, part = (base.dim, base.itemsize), (value.dim, value.itemsize)

    def backward(t: Tape, grads: Grads) -> Grads:
        whole = t.gradient(size)
        cut = t.gradient(part)
        zeros = t.gradient(part)
        del zeros
        return (whole, cut)

    node = tape.node((base, value), (), backward)
    return Tensor(base.dim, base.itemsize, base.storage, node)


def skipped(
    tape: Tape, operands: Sequence[Tensor], count: int, kept: int, state: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """``skip`` of a loop with one state."""
    (state,), out = skip(tape, operands, count, kept, [state], out)
    return state, out


def skip(
    tape: Tape, operands: Sequence[Tensor], count: int, kept: int, states: list[Tensor], out: Tensor
) -> tuple[list[Tensor], Tensor]:
    """``count`` turns of a loop as one step: what they keep, and no gradients beyond those of the last ones.

    The gradient of ``out`` is handed on, where it was there before."""
    following = [tape.new(state.dim, max(state.itemsize, ops.FP32), "states") for state in states]
    others = kept * count - sum(state.storage.size for state in following if state.storage)
    saved = [tape.new(Dim("L·v", max(others // ops.FP32, 1)), ops.FP32, LABEL), *states]
    nothing, slot = (None,) * (len(operands) + len(states)), len(states)
    node = tape.node((*operands, *states, out), saved, lambda t, grads: (*nothing, grads[slot]))
    if node is not None:
        node.outputs = slot + 1
    after = [Tensor(x.dim, x.itemsize, x.storage, node, i) for i, x in enumerate(following)]
    return after, Tensor(out.dim, out.itemsize, out.storage, node, slot)
