"""Attention as one kernel."""

from memplan.engine.tape.chunked_ops import pad
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.ops import FP32
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape


def fused_attention(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    statistics: Dim,
    out: Dim,
    bias: Tensor | None = None,
    grouped: bool = False,
    *,
    unpads: bool = False,
) -> Tensor:
    """Flash or memory-efficient attention: saves q, k, v, its result, an fp32 log-sum-exp per head, and a bias.
    ``grouped``: heads of queries share keys and values. ``unpads``: these are copies without padding, and the result is
    put into zeros of all tokens (transformers 5.24 ``modeling_flash_attention_utils.py``: _upad_input, _pad_input);
    counted as if nothing were padded, without the 8 bytes of each token's place."""
    if unpads:
        q, k, v = (pad(tape, x, x.dim, "without padding") for x in (q, k, v))
        return pad(tape, fused_attention(tape, q, k, v, statistics, out, bias, grouped), out, "attention output")
    sizes = tuple((x.dim, x.itemsize, x.needs_grad) for x in (q, k, v))
    result = tape.result("attention", out, q.itemsize, "attention output")
    lse = tape.result("attention", statistics, FP32, "attention log-sum-exp")

    def backward(t: Tape, grads: Grads) -> Grads:
        made = [(t.gradient((dim, size)), needs) for dim, size, needs in sizes]  # all three, whoever asks
        if t.in_place:
            within_backward(t, sizes[0][:2], statistics, sizes[0][0] if grouped else None)
        return [grad if needs else None for grad, needs in made]

    node = tape.node((q, k, v), (q, k, v, result, lse, bias), backward)
    return Tensor(out, q.itemsize, result.storage, node)


def within_backward(tape: Tape, q: tuple[Dim, int], statistics: Dim, every_head: Dim | None) -> None:
    """What the backward kernels take for themselves on a real device: a sum for each row, queries' gradients in fp32,
    their heads filled up to whole tiles, and those of keys and values for every query head where heads share them
    (flash-attn 2.0 to 2.8 csrc/flash_attn/flash_api.cpp: mha_bwd, mha_varlen_bwd, and the like in
    aten/native/transformers/cuda/flash_attn; mem_eff_attention/kernel_backward.h: workspace_elements_gq).

    Not counted: rows up to a multiple of 128, of each sequence where they are packed."""
    dim, itemsize = q
    head = -(-dim.elements // statistics.elements)
    tile = 32 if head <= 128 else 64
    wide = dim._replace(elements=statistics.elements * -(-head // tile) * tile)
    own = [tape.gradient((statistics, FP32), "attention's row sums")]
    own.append(tape.gradient((wide, FP32), "gradients of queries in fp32"))
    if every_head is not None:
        own += [tape.gradient((every_head, itemsize), "gradients of keys of every head") for _ in range(2)]
    own.clear()


def aligned_bias(tape: Tape, queries: int, keys: int, itemsize: int) -> Tensor:
    """A mask of booleans as the memory-efficient kernel takes it: a bias in the dtype of queries, whose rows are padded
    where they are not aligned (aten/native/transformers/attention.cpp: preprocess_mask)."""
    bias = tape.new(Dim("T·s", queries * keys), itemsize, "attention bias")
    if keys % 8:
        bias = tape.new(Dim("T·s", queries * -(-keys // 16) * 16), itemsize, "attention bias")
    return bias
