"""Attention over context-parallel ranks that each have their queries, and need the keys and values of all.

torch's ring gathers them once for a forward and once for a backward (``_AllGatherRotater``, the default), and merges
partial results in fp32 (torch 2.13 distributed/tensor/experimental/_context_parallel). ring-flash-attention gathers a
few heads at a time for flash attention's own kernel (ring_flash_attn 0.1.8 llama3_flash_attn_varlen.py)."""

from typing import Any

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.ops import FP32
from memplan.engine.tape.tags import KERNELS, Dim


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
        within = [t.new(stats, FP32, "attention's row sums", category=KERNELS)]
        within.append(t.new(q.dim, FP32, "gradients of queries in fp32", category=KERNELS))
        within += [t.new(every_head, itemsize, "gradients of keys of every head", category=KERNELS) for _ in range(2)]
        within.clear()
        buffers.clear()
        return result

    node = tape.node((q, k, v), (q, k, v, result, lse), backward)
    return Tensor(out_dim, itemsize, result.storage, node)
