"""What tensor-parallel modules exchange along the sequence, in torch's own tensor parallelism, and DeepSpeed-Ulysses.

As torchtitan parallelises its models (``models/llama3/infra/parallelize.py``: DTensor's ``ColwiseParallel``,
``RowwiseParallel``, ``SequenceParallel``): between products the residual stream and its norms are split along the
sequence; before the first matmul of attention and feed-forward the whole sequence is gathered, and what the last one
makes is summed and split again. Column-parallel linears save the gathered input.

Under Ulysses ranks have a part of every sequence, and within attention a part of the heads of whole sequences (verl 0.2
to 0.9 models/transformers/monkey_patch.py: _ulysses_flash_attention_forward, utils/ulysses.py: all_to_all_tensor,
SeqAllToAll).

Attention over context-parallel ranks that each have their queries, and need the keys and values of all.

torch's ring gathers them once for a forward and once for a backward (``_AllGatherRotater``, the default), and merges
partial results in fp32 (torch 2.13 distributed/tensor/experimental/_context_parallel). ring-flash-attention gathers a
few heads at a time for flash attention's own kernel (ring_flash_attn 0.1.8 llama3_flash_attn_varlen.py)."""

from typing import Any

from memplan.engine.layers.attention.fused_kernel import fused_attention, within_backward
from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor, in_turn
from memplan.engine.tape.ops import FP32
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention
from memplan.units import ceil_div


def gathered(p: Pass, x: Tensor) -> Tensor:
    """``Shard(1)`` to ``Replicate``: each rank's part of the sequence, joined by a ``cat`` of the all-gather's output.

    Backward copies the gradient into the order of the reduce-scatter, which leaves the rank's part; where ranks have
    the whole sequence, it sums what each made of it."""
    tape, part, itemsize = p.tape, x.dim, x.itemsize
    if p.mode.summed > 1:
        return Tensor(part, itemsize, x.storage, tape.node((x,), (), in_turn(*[(part, itemsize)] * 2)))
    if p.mode.tensor == 1:
        return x
    whole = Dim(part.symbol, part.elements * p.mode.tensor)
    output = tape.new(whole, itemsize, "all-gathered sequence")
    back = in_turn((whole, itemsize), (part, itemsize))  # the reduce-scatter has read the first
    result = tape.new(whole, itemsize, "sequence joined again", tape.node((x,), (), back))
    del output
    return result


def scattered(p: Pass, x: Tensor) -> Tensor:
    """``Partial`` to ``Shard(1)``: of the sum over ranks each keeps its part of the sequence; backward gathers it. To
    ``Replicate`` where each keeps all of it."""
    tape, whole, itemsize = p.tape, x.dim, x.itemsize
    if p.mode.summed > 1:
        return tape.new(whole, itemsize, "sums over ranks", tape.node((x,), (), lambda t, g: g))
    if p.mode.tensor == 1:
        return x
    part = Dim(whole.symbol, whole.elements // p.mode.tensor)
    ordered = tape.new(whole, itemsize, "sums to be scattered")
    label, back = "summed part of the sequence", in_turn(*[(whole, itemsize)] * 2)
    result = tape.result("reduce-scatter", part, itemsize, label, tape.node((x,), (), back))
    del ordered
    return result


def of_all_ranks(p: Pass, table: Param, spec: ModelSpec) -> Tensor:
    """The embedding's rows as a lookup's gradient has them: those of all ranks (torch 2.13 distributed/tensor/_ops/
    _embedding_ops.py: embedding_dense_backward), of which a tied head's sum takes the rank's own."""
    if spec.embedding_parts == 1:
        return table
    back = in_turn((table.dim, table.itemsize)) if spec.head_is_tied else lambda t, g: g
    dim = Dim(table.dim.symbol, table.dim.elements * spec.embedding_parts)
    return Tensor(dim, table.itemsize, None, p.tape.node((table,), (), back))


def whole_logits(p: Pass, logits: Tensor) -> Tensor:
    """``Shard(-1)`` to ``Replicate``: the logits of all ranks side by side (transformers 5.24 distributed/
    tensor_parallel.py: colwise_gather_output); backward takes the rank's own out of the gradient."""
    if p.mode.summed == 1:
        return logits
    tape, itemsize = p.tape, logits.itemsize
    whole, back = Dim("T·V", logits.dim.elements * p.mode.summed), in_turn((logits.dim, itemsize))
    output = tape.new(whole, itemsize, "all-gathered logits")
    result = tape.new(whole, itemsize, "logits", tape.node((logits,), (), back))
    del output
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


def ring_attention(p: Pass, q: Tensor, k: Tensor, v: Tensor, stats: Dim, out_dim: Dim) -> Tensor:
    """``_templated_ring_attention``: keeps q, k, v, the output and its log-sum-exp, as a single kernel does.

    Beside them in forward: contiguous k and v, both joined, those of all ranks, and of the output four copies in fp32
    while two blocks are merged. In backward: sums in fp32 of the gradients of q, k and v, a block's own, and the
    joined gradients of k and v on their way round."""
    tape, ranks = p.tape, p.mode.context
    q, k, v = (ops.autocast_input(tape, x) for x in (q, k, v))
    itemsize, both = q.itemsize, k.dim.elements + v.dim.elements
    pair = Dim("2·" + k.dim.symbol, both)
    everyone = Dim("2·cp·" + k.dim.symbol, ranks * both)
    copies = [tape.new(each.dim, itemsize, "contiguous keys and values") for each in (k, v)]
    joined = tape.new(pair, itemsize, "joined keys and values")
    gathered = tape.new(everyone, itemsize, "keys and values of all ranks")
    del joined
    block = tape.new(out_dim, itemsize, "attention output of a block")
    merging = [tape.new(out_dim, FP32, "attention outputs being merged") for _ in range(4)]
    del merging[1:], block
    result = tape.new(out_dim, itemsize, "attention output")
    lse = tape.new(stats, FP32, "log-sum-exp of the scores")
    merging.clear()
    del gathered, copies
    dims = (q.dim, k.dim, v.dim)

    def backward(t: Any, grads: Any) -> Any:
        sums = [t.gradient((dim, FP32)) for dim in dims]
        both = t.new(everyone, itemsize, "keys and values of all ranks")
        own = [t.gradient((dim, itemsize)) for dim in dims]
        round_ = [t.new(pair, FP32, "gradients of keys and values on their way round") for _ in range(2)]
        del own, both
        result = [t.gradient((dim, itemsize)) for dim in dims]
        sums.clear()
        round_.clear()
        return result

    node = tape.node((q, k, v), (q, k, v, result, lse), backward)
    return Tensor(out_dim, itemsize, result.storage, node)


def gathered_attention(p: Pass, q: Tensor, k: Tensor, v: Tensor, stats: Dim, out_dim: Dim) -> Tensor:
    """``Llama3FlashAttnVarlenFunc``: keeps q, k, v, the output and its log-sum-exp, as a single kernel does.

    Beside them in forward: two buffers of all ranks' keys and values, and the heads' outputs before ``cat``. In
    backward: the two buffers and one of gradients, those of q, k and v, and what the kernel takes for itself, keys'
    gradients of every query head among it. Counted as if all heads were gathered at once, an upper bound: with
    ``heads_k_stride`` heads at a time the buffers shrink more than the copies that are sent take."""
    tape, ranks = p.tape, p.mode.context
    q, k, v = (ops.autocast_input(tape, x) for x in (q, k, v))
    itemsize, dims = q.itemsize, (q.dim, k.dim, v.dim)
    everyone = Dim("2·cp·" + k.dim.symbol, 2 * ranks * k.dim.elements)
    every_head = Dim("cp·" + q.dim.symbol, ranks * q.dim.elements)
    buffers = [tape.new(everyone, itemsize, "keys and values of all ranks") for _ in range(2)]
    parts = tape.new(out_dim, itemsize, "attention output of a block")
    result = tape.new(out_dim, itemsize, "attention output")
    lse = tape.new(stats, FP32, "log-sum-exp of the scores")
    del buffers, parts

    def backward(t: Any, grads: Any) -> Any:
        buffers = [t.new(everyone, itemsize, "keys and values of all ranks") for _ in range(3)]
        result = [t.gradient((dim, itemsize)) for dim in dims]
        within_backward(t, (q.dim, itemsize), stats, every_head)
        buffers.clear()
        return result

    node = tape.node((q, k, v), (q, k, v, result, lse), backward)
    return Tensor(out_dim, itemsize, result.storage, node)
