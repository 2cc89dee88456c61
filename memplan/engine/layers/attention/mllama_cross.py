"""Attention from the tokens of a text to its images as a program on the tape (transformers 5.23,
``modeling_mllama.py``: MllamaTextCrossAttention)."""

from memplan.engine.layers.attention.eager import masked, weighted
from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.attention.older_classes import QKV, SCORES
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.shared_inputs import CROSS_MASK, MEMORY
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.vision import ImageCross


def image_cross(p: Pass, mixer: ImageCross, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Queries of the text, keys and values of images' states, norms of each head's q and k; a mask over tiles."""
    heads, kv_heads = mixer.num_heads, mixer.num_kv_heads
    keys = p.part(p.rows, p.memory)
    q = norm(p, mixer.norms[0], project(p, x, mixer.linears[0], "q", QKV), "q", "H", heads)
    k, v = (project(keys, p.shared[MEMORY], linear, "kv", QKV) for linear in mixer.linears[1:3])
    k = norm(keys, mixer.norms[1], k, "kv", "K", kv_heads)
    whole, weights = keys.dim("q", heads * mixer.head_dim), None
    if p.mode.operators.attention == "eager":
        out, weights = _eager(p, mixer, q, k, v, whole)
    else:
        out = _kernel(p, mixer, q, k, v, whole)
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def _kernel(p: Pass, mixer: ImageCross, q: Tensor, k: Tensor, v: Tensor, whole: Dim) -> Tensor:
    """The memory-efficient kernel: keys and values are repeated to all heads, and the mask is a bias in the dtype of
    queries, whose rows are padded where they are not aligned."""
    tape, mask = p.tape, p.shared[CROSS_MASK]
    if mixer.num_kv_heads != mixer.num_heads:
        k, v = ops.copy(tape, k, "repeated keys", whole), ops.copy(tape, v, "repeated values", whole)
    low_q, low_k, low_v = (ops.autocast_input(tape, each) for each in (q, k, v))
    low = bias = ops.cast(tape, mask, low_q.itemsize, "attention bias")
    if p.memory % 8:
        bias = tape.new(Dim("T·s", p.tokens * -(-p.memory // 16) * 16), low.itemsize, "attention bias")
    return fused_attention(tape, low_q, low_k, low_v, p.dim("H", mixer.num_heads), q.dim, bias)


def _eager(p: Pass, mixer: ImageCross, q: Tensor, k: Tensor, v: Tensor, whole: Dim) -> tuple[Tensor, Tensor]:
    """Scores, scaling, the mask, an fp32 softmax, probabilities in the low precision. Products of several rows see
    copies of what lies across heads."""
    tape, scores = p.tape, Dim("T·H·s", p.tokens * p.memory * mixer.num_heads)
    grouped = mixer.num_kv_heads != mixer.num_heads
    if grouped:
        k, v = ops.copy(tape, k, "repeated keys", whole), ops.copy(tape, v, "repeated values", whole)
    queries = ops.copy(tape, q, "queries") if p.rows > 1 else q
    keys = k if grouped or p.rows == 1 else ops.copy(tape, k, "keys")
    weights = ops.matmul(tape, queries, keys, scores, SCORES)
    del queries, keys  # copies that ``matmul`` makes of strided operands, not locals
    weights = ops.scale(tape, weights, SCORES)
    held = [masked(p, weights)]
    del weights  # rebound by softmax
    return weighted(p, held, v, q.dim, q.itemsize, mixer.dropout, "" if grouped or p.rows == 1 else "values")
