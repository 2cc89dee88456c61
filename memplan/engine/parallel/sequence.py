"""What tensor-parallel modules exchange along the sequence, in torch's own tensor parallelism, and DeepSpeed-Ulysses.

As torchtitan parallelises its models (``models/llama3/infra/parallelize.py``: DTensor's ``ColwiseParallel``,
``RowwiseParallel``, ``SequenceParallel``): between products the residual stream and its norms are split along the
sequence; before the first matmul of attention and feed-forward the whole sequence is gathered, and what the last one
makes is summed and split again. Column-parallel linears save the gathered input.

Under Ulysses ranks have a part of every sequence, and within attention a part of the heads of whole sequences (verl 0.2
to 0.9 models/transformers/monkey_patch.py: _ulysses_flash_attention_forward, utils/ulysses.py: all_to_all_tensor,
SeqAllToAll)."""

from typing import Any

from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Attention
from memplan.units import ceil_div


def gathered(p: Pass, x: Tensor) -> Tensor:
    """``Shard(1)`` to ``Replicate``: each rank's part of the sequence, joined by a ``cat`` of the all-gather's output.

    Backward copies the gradient into the order of the reduce-scatter, which leaves the rank's part."""
    if p.mode.tensor == 1:
        return x
    tape, part, itemsize = p.tape, x.dim, x.itemsize
    whole = Dim(part.symbol, part.elements * p.mode.tensor)
    output = tape.new(whole, itemsize, "all-gathered sequence")

    def backward(t: Any, grads: Any) -> Any:
        ordered = t.gradient((whole, itemsize))
        result = t.gradient((part, itemsize))
        del ordered  # the reduce-scatter has read it
        return (result,)

    result = tape.new(whole, itemsize, "sequence joined again", tape.node((x,), (), backward))
    del output
    return result


def scattered(p: Pass, x: Tensor) -> Tensor:
    """``Partial`` to ``Shard(1)``: of the sum over ranks each keeps its part of the sequence; backward gathers it."""
    if p.mode.tensor == 1:
        return x
    tape, whole, itemsize = p.tape, x.dim, x.itemsize
    part = Dim(whole.symbol, whole.elements // p.mode.tensor)
    ordered = tape.new(whole, itemsize, "sums to be scattered")

    def backward(t: Any, grads: Any) -> Any:
        output = t.gradient((whole, itemsize))
        result = t.gradient((whole, itemsize))
        del output
        return (result,)

    label = "summed part of the sequence"
    result = tape.result("reduce-scatter", part, itemsize, label, tape.node((x,), (), backward))
    del ordered
    return result


def ulysses_attention(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, out: Dim) -> Tensor:
    """q, k and v are exchanged, heads for sequence; the kernel runs over whole sequences; its output goes back.

    Keys and values are repeated where there are fewer heads than ranks. A rank's part of the heads of whole sequences
    is as large as all heads of its part of the sequence."""
    tape, repeats = p.tape, ceil_div(p.mode.context, mixer.num_kv_heads)
    if repeats > 1:
        k, v = (ops.copy(tape, x, "repeated keys", Dim(x.dim.symbol, x.dim.elements * repeats)) for x in (k, v))
    q, k, v = (_exchanged(tape, ops.autocast_input(tape, x), "heads of whole sequences") for x in (q, k, v))
    attended = fused_attention(tape, q, k, v, p.dim("H", mixer.num_heads), out)
    return _exchanged(tape, attended, "attention output")


def _exchanged(tape: Tape, x: Tensor, label: str) -> Tensor:
    """``all_to_all``: contiguous parts for and from every rank, and what they are joined to; backward alike."""
    dim, itemsize = x.dim, x.itemsize
    parts = [tape.new(dim, itemsize, f"{label}, exchanged") for _ in range(2)]
    joined = tape.new(dim, itemsize, label)
    parts.clear()  # locals of all_to_all_tensor

    def backward(t: Tape, grads: Grads) -> Grads:
        sent = [t.gradient((dim, itemsize)) for _ in range(2)]
        result = t.gradient((dim, itemsize))
        sent.clear()
        return (result,)

    return Tensor(dim, itemsize, joined.storage, tape.node((x,), (), backward))
