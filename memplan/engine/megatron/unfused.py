"""Attention that makes its scores: two batched products, and a softmax between them.

TransformerEngine 2.20 pytorch/attention/dot_product_attention/backends.py: UnfusedDotProductAttention; softmax.py:
FusedScaleMaskSoftmax. Megatron-core's own DotProductAttention keeps the same. Each rank has its heads' scores, of the
whole sequence. Nothing measured holds them: the one report of such a run (GPT-2 large on a V100) asked for 29.6 GiB in
its first step, and this says 27.4; so each row of scores has a high figure of its own (``DOUBT``).
"""

from __future__ import annotations

from memplan.engine.megatron import te
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import Held, Step

SOURCE = "TransformerEngine 2.20 pytorch/attention/dot_product_attention/backends.py: UnfusedDotProductAttention"
PROBABILITIES, MASK, DROPPED, REPEATED = (
    "probabilities",
    "dropout's mask",
    "dropped probabilities",
    "keys, values of heads",
)
SCORES = (PROBABILITIES, PROBABILITIES + " in fp32", MASK, DROPPED, REPEATED)
"""What selective checkpointing of the core attention makes again."""
DOUBT = 0.25
"""Of the scores: layers of other releases, and Megatron's own buffer of them."""
LONGEST = 16384
"""The kernel of mask and softmax takes shorter sequences."""


def unfused(s: Shape, q: int, kv: int, heads: int) -> Step:
    """Over widths of q and of k and v. Keys and values of groups are repeated to all heads. Without a kernel of mask
    and softmax, it runs in fp32."""
    groups, rate, e = kv < q, s.settings.attention_dropout, s.itemsize
    fused = _has_kernel(s, heads)
    kept = [te.of_tokens(s, "queries", q, "q")]
    whole = te.of_tokens(s, "keys, values", 2 * kv, "2·kv")
    kept.append(te.of_tokens(s, REPEATED, 2 * q, "2·q") if groups else whole)
    wide = _scores(s, heads, PROBABILITIES + " in fp32", te.FP32)
    kept += [] if fused else [wide]
    if fused or not rate:
        kept.append(_scores(s, heads, PROBABILITIES, e))
    if rate:
        kept += [_scores(s, heads, MASK, 1), _scores(s, heads, DROPPED, e)]
    kept.append(te.of_tokens(s, "attention's output", q, "out"))
    forward = [
        te.of_tokens(s, "the fused q, k, v product", q + 2 * kv, "(q + 2·kv)"),
        whole,
        _scores(s, heads, "scores", e),
    ]
    forward += [] if fused else [wide._replace(name="scores in fp32")]
    moment = (e if rate else 2 * e) if fused else 2 * te.FP32 - e - bool(rate)
    backward = (
        te.stream(s, te.STREAM_GRADIENT),
        te.of_tokens(s, "gradient of attention's output", q, "out"),
        te.of_tokens(s, "gradients of q, k, v", 3 * q, "3·q"),
        _scores(s, heads, "gradients of the scores", moment),
    )
    return Step("attention", tuple(kept), tuple(forward), backward, SOURCE)


def _scores(s: Shape, heads: int, name: str, itemsize: int) -> Held:
    """A number for each head, query and key."""
    return Held(name, "T·heads·s·e", (s.tokens, heads, s.unfused, itemsize), doubt=DOUBT)


def _has_kernel(s: Shape, heads: int) -> bool:
    """``FusedScaleMaskSoftmax.is_kernel_available``: half precision, lengths and batches that its blocks divide."""
    rows = s.tokens // s.unfused
    return s.itemsize == 2 and 16 < s.unfused < LONGEST and s.unfused % 8 == 0 and rows * heads % 4 == 0
