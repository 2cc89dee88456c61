"""BART's attention: within a stack, or to the encoder's output (transformers 5.23 ``modeling_bart.py``)."""

from memplan.engine.layers.attention.eager import masked
from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.attention.older_classes import PROBABILITIES, SCORES, batched, queries_and_keys
from memplan.engine.layers.modules import Pass, project
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.parts import Attention

OUTPUT = "attention output"


def bart_attention(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``BartAttention``: keys and values of x, or of what the encoder gave."""
    (q, k, v), keys = queries_and_keys(p, mixer, x, cross=mixer.style == "bart-cross")
    if p.mode.operators.attention == "eager":
        out, weights = eager(p, mixer, q, k, v, keys)
    else:
        out, weights = kernel(p, mixer, q, k, v, keys), None
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def eager(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Scores, a causal mask or one of padding, a softmax in their own dtype."""
    tape, dim = p.tape, Dim("T·H·s", p.tokens * keys * mixer.num_heads)
    weights = ops.scale(tape, ops.matmul(tape, batched(p, q), batched(p, k), dim, SCORES), SCORES)
    if p.mode.padded or mixer.style == "bart-decoder":
        weights = masked(p, weights)
    weights = ops.softmax(tape, weights, PROBABILITIES, to_fp32=tape.autocast > 0)
    if mixer.dropout:
        weights = ops.dropout(tape, weights, PROBABILITIES)
    out = ops.matmul(tape, weights, batched(p, v), q.dim, OUTPUT)
    return ops.copy(tape, out, OUTPUT), weights


def kernel(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: int) -> Tensor:
    """Flash in half precision without a mask, else memory-efficient, where a mask is a bias in the dtype of queries."""
    tape, bias = p.tape, None
    if p.mode.padded and mixer.style != "bart-decoder":  # the decoder's own mask is of ones, and needless
        one = tape.new(Dim("T·s", p.tokens * keys), tape.autocast or q.itemsize, "attention bias")
        bias = Tensor(Dim("T·H·s", p.tokens * keys * mixer.num_heads), one.itemsize, one.storage)
    q, k, v = (ops.autocast_input(tape, each) for each in (q, k, v))
    return fused_attention(tape, q, k, v, p.dim("H", mixer.num_heads), q.dim, bias)
