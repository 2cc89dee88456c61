"""Falcon's attention and linears, operation by operation (transformers 5.23, ``modeling_falcon.py``)."""

from memplan.engine.layers.attention.eager import repeat_kv, scores_of
from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.attention.older_classes import PROBABILITIES, QKV, SCORES, Mixed, batched, dims
from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.rotary import rotary
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.routing_ops import in_place
from memplan.engine.tape.tags import Dim
from memplan.spec.parts import Attention


def falcon(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """Linears without ``F.linear``; a mask always, in which slopes of distance (alibi) stand already.

    SDPA is called without grouped heads: one key/value head for all queries leaves only the math kernel."""
    tape, (q_dim, _) = p.tape, dims(p, mixer)
    fused = project(p, x, mixer.linears[0], "(q+2kv)", QKV)
    q, k, v = falcon_heads(p, mixer, fused)
    if mixer.rotary != "none":
        q, k = rotary(p, mixer, q, k)
    weights = None
    if p.mode.operators.attention == "eager":
        out, weights = falcon_eager(p, mixer, q, k, v, x.itemsize)
    elif mixer.style == "falcon" and mixer.num_kv_heads != mixer.num_heads:
        out = falcon_math(p, mixer, q, k, v)
    else:
        bias = None
        if mixer.mask_form != "heads":
            bias = tape.new(Dim("T·s", p.tokens * p.length), tape.autocast or q.itemsize, "attention bias")
        elif tape.autocast and tape.autocast != p.mode.numerics.itemsize:  # the mask with its slopes, copied
            bias = tape.new(scores_of(p, mixer), tape.autocast, "attention bias")
        q, k, v = (ops.autocast_input(tape, part) for part in (q, k, v))
        out = fused_attention(tape, q, k, v, p.dim("H", mixer.num_heads), q_dim, bias)
        del bias
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def falcon_heads(p: Pass, mixer: Attention, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v: slices where there are as many; one head or each group's by an index, which copies."""
    tape, (q_dim, kv_dim) = p.tape, dims(p, mixer)
    q = ops.view(tape, fused, q_dim, whole=False)
    if mixer.style == "falcon-alibi" or (mixer.style == "falcon" and mixer.num_kv_heads == mixer.num_heads):
        return q, ops.view(tape, fused, kv_dim, whole=False), ops.view(tape, fused, kv_dim, whole=False)
    k, v = (ops.copy(tape, fused, QKV, kv_dim) for _ in range(2))
    if mixer.style == "falcon":
        return q, k, v
    return (
        ops.copy(tape, q, QKV),
        ops.copy(tape, k, "repeated keys", q_dim),
        ops.copy(tape, v, "repeated values", q_dim),
    )


def falcon_math(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``_scaled_dot_product_attention_math`` whose products broadcast the one key/value head."""
    tape, before, (q_dim, _) = p.tape, p.tape.autocast or q.itemsize, dims(p, mixer)
    q, k, v = (ops.autocast_input(tape, part) for part in (q, k, v))
    autocast, tape.autocast = tape.autocast, 0
    q, k, v = (ops.cast(tape, part, ops.FP32, "attention in fp32") for part in (q, k, v))
    bias = tape.new(Dim("T·s", p.tokens * p.length), ops.FP32, "attention bias")
    scaled_q, scaled_k = ops.scale(tape, q, "scaled queries"), ops.scale(tape, k, "scaled keys")
    scaled_q = batched(p, scaled_q)
    all_k = repeat_kv(p, mixer, scaled_k, "repeated keys", q_dim, batched=True)
    scores = ops.matmul(tape, scaled_q, all_k, scores_of(p, mixer), SCORES)
    del all_k, scaled_q, scaled_k  # temporaries of _scaled_dot_product_attention_math's product (attention.cpp)
    weights = ops.softmax(tape, scores, PROBABILITIES, to_fp32=False)
    del scores  # ``attn`` is rebound by its softmax
    all_v = repeat_kv(p, mixer, v, "repeated values", q_dim, batched=True)
    out = ops.matmul(tape, weights, all_v, q_dim, "attention output")
    del weights, bias  # locals of _scaled_dot_product_attention_math
    tape.autocast = autocast
    return ops.copy(tape, ops.cast(tape, out, before, "attention output"), "attention output")


def falcon_eager(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, itemsize: int) -> tuple[Tensor, Tensor]:
    """Softmax in the dtype of the layer's input; alibi adds its slopes in fp32."""
    tape, (q_dim, _) = p.tape, dims(p, mixer)
    keys = repeat_kv(p, mixer, k, "repeated keys", q_dim, batched=p.rows > 1)
    scores = ops.matmul(tape, batched(p, q), keys, scores_of(p, mixer), SCORES)
    del keys  # the copy that ``query_layer @ key_layer.transpose(-1, -2)`` makes, not a local
    wide = logits = scores
    if mixer.mask_form == "heads":
        wide = ops.cast(tape, scores, ops.FP32, SCORES)
        logits = in_place(tape, ops.scale(tape, wide, "scores and slopes", shares_gradient=True))
    masked = ops.scale(tape, logits, "masked scores", shares_gradient=True)
    weights = ops.softmax(tape, ops.cast(tape, masked, itemsize, "masked scores"), PROBABILITIES, to_fp32=False)
    del masked  # a temporary argument of ``F.softmax(attention_logits + attention_mask, …)``
    if mixer.dropout:
        weights = ops.dropout(tape, weights, PROBABILITIES)
    values = repeat_kv(p, mixer, v, "repeated values", q_dim, batched=p.rows > 1)
    out = ops.matmul(tape, weights, values, q_dim, "attention output")
    del scores, wide, logits  # alibi: ``attention_scores``, ``attention_logits`` are locals of FalconAttention.forward
    return ops.copy(tape, out, "attention output"), weights
