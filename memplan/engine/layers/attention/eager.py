"""``eager_attention_forward``: scores, mask, softmax and probabilities are tensors of their own."""

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.parts import Attention, Mixer


def eager(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, q_dim: Dim) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``: scores, scaling, soft-cap, mask, fp32 softmax, low-precision probabilities."""
    tape = p.tape
    scores_dim = scores_of(p, mixer)
    several = p.rows > 1 or not mixer.split_qkv
    viewed = mixer.num_kv_heads in (1, mixer.num_heads)  # then the products alone see copies
    if mixer.num_kv_heads == 1:  # views, made before the products, so that their gradients are summed last
        k, v = ops.expand(tape, k, q_dim), ops.expand(tape, v, q_dim)
    keys = repeat_kv(p, mixer, k, "repeated keys", q_dim, batched=several)
    values = v if viewed else repeat_kv(p, mixer, v, "repeated values", q_dim, batched=several)
    strided = mixer.rotary == "none" or p.mode.operators.kernels.rotary == "in-place"
    copied = strided and mixer.style != "opt" and p.rows > 1
    queries = ops.copy(tape, q, "queries") if copied else q
    weights = ops.matmul(tape, queries, keys, scores_dim, "attention scores")
    del queries  # the copy that ``matmul`` makes of a strided operand, not a local
    if viewed:
        del keys  # ``expand`` then is a view: the copy is matmul's own; elsewhere ``key_states`` is a local to the end
    weights = ops.scale(tape, weights, "attention scores")
    if mixer.softcap is not None:
        weights = ops.scale(tape, weights, "attention scores")
        weights = ops.unary(tape, weights, "soft-capped scores", saves="result")
        weights = ops.scale(tape, weights, "attention scores")
    weights = masked(p, weights)
    to_fp32 = mixer.style not in ("gpt2", "llama4") or tape.autocast > 0
    probabilities = ops.softmax(tape, weights, "attention probabilities", to_fp32, p.mode.numerics.half_to_float)
    if mixer.style != "llama4":  # its softmax is not cast back: the product casts what is left of it
        probabilities = ops.cast(tape, probabilities, q.itemsize, "attention probabilities")
    weights = probabilities
    del probabilities  # ``softmax(…, dtype=torch.float32).to(query.dtype)``: fp32 ones live on if saved
    if mixer.dropout:
        weights = ops.dropout(tape, weights, "attention probabilities")
    if viewed:
        values = repeat_kv(p, mixer, v, "repeated values", q_dim, batched=several)
    out = ops.matmul(tape, weights, values, q_dim, "attention output")
    if viewed:
        del values  # matmul's own copy, as of keys; elsewhere the local ``value_states``
    return ops.copy(tape, out, "attention output"), weights


def weighted(
    p: Pass,
    scores: list[Tensor],
    v: Tensor,
    out: Dim,
    itemsize: int,
    dropout: bool = False,
    copied: str = "",
    *,
    wide: bool = True,
    apart: bool = False,
) -> tuple[Tensor, Tensor]:
    """Softmax (``wide``: in fp32) of scores that have been masked, probabilities of ``itemsize`` (0: as it
    leaves them), their sum of values. Takes the scores out of the list, when the probabilities are cast, or (``apart``)
    before that, in a statement of its own; a caller whose module holds them on keeps them elsewhere. ``copied``: what
    the copy is of values that lie across heads, which the product makes."""
    tape, label = p.tape, "attention probabilities"
    weights = ops.softmax(tape, scores[-1], label, wide, p.mode.numerics.half_to_float)
    if apart:
        scores.clear()
    weights = ops.cast(tape, weights, itemsize or weights.itemsize, label)
    scores.clear()  # ``attn_weights = softmax(attn_weights, …).to(…)`` rebinds it
    if dropout:
        weights = ops.dropout(tape, weights, label)
    result = ops.matmul(tape, weights, ops.copy(tape, v, copied) if copied else v, out, "attention output")
    return ops.copy(tape, result, "attention output"), weights


def masked(p: Pass, scores: Tensor, itemsize: int = 0) -> Tensor:
    """``scores + mask``: the mask has the dtype of the embeddings, or ``itemsize``, so that under autocast fp32 ones
    widen the sum."""
    itemsize = itemsize or p.mode.numerics.itemsize
    if scores.itemsize < itemsize:
        return ops.cast(p.tape, scores, itemsize, "masked scores")
    return ops.scale(p.tape, scores, "masked scores", shares_gradient=True)


def repeat_kv(p: Pass, mixer: Attention, x: Tensor, label: str, dim: Dim, batched: bool = False) -> Tensor:
    """``repeat_kv``: a copy for every query head. A single key/value head is repeated by a view, which a batched
    product over several rows copies after all."""
    if mixer.num_kv_heads == mixer.num_heads and not batched:
        return x
    if mixer.num_kv_heads == 1 and (not batched or p.rows == 1):
        return x if x.dim.elements == dim.elements else ops.expand(p.tape, x, dim)
    return ops.copy(p.tape, x, label, dim)


def scores_of(p: Pass, mixer: Mixer, length: int = 0) -> Dim:
    """One element for each query head and pair of positions, in rows of ``length`` where they are not the pass's."""
    return Dim("T·H·s", p.tokens * (length or p.length) * mixer.num_heads)
