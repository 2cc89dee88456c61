"""Attention of encoders (BERT and its kin, ModernBERT) as programs on the tape, in the order of transformers 5.23."""

from memplan.engine.layers.attention.eager import scores_of, weighted
from memplan.engine.layers.attention.older_classes import QKV, SCORES, Mixed, batched, dims, projected
from memplan.engine.layers.attention.sdpa import sdpa
from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.rotary import rotated_half
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.spec.parts import Attention


def bert(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """``BertSelfAttention`` and the dense layer of ``BertSelfOutput``; or ``AlbertAttention`` up to its dropout: one
    forward, holding queries, keys and values until its norm."""
    q, k, v = projected(p, mixer, x)
    out, weights = core(p, mixer, q, k, v)
    held = (q, k, v) if mixer.style == "albert" else (out,)
    del q, k, v  # BertSelfAttention.forward returns: ``query_layer``, ``key_layer``, ``value_layer``
    if p.held is not None:
        p.held += held
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def core(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, wide: bool = False) -> Mixed:
    """Softmax attention itself, and the probabilities that eager returns."""
    if p.mode.operators.attention == "eager":
        return eager(p, mixer, q, k, v, wide)
    return sdpa(p, mixer, q, k, v, dims(p, mixer)[0]), None


def eager(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, wide: bool = False) -> tuple[Tensor, Tensor]:
    """Scores, a mask where there is padding or a window, a softmax in their own dtype (``wide``: in fp32, and back)."""
    tape, before = p.tape, q.itemsize
    weights = ops.matmul(tape, batched(p, q), batched(p, k), scores_of(p, mixer), SCORES)
    weights = ops.scale(tape, weights, SCORES)
    if p.mode.padded or (mixer.window is not None and p.length >= mixer.window):
        weights = ops.scale(tape, weights, "masked scores", shares_gradient=True)
    held = [weights]
    del weights  # rebound by softmax
    size, copied, to_fp32 = before if wide else 0, QKV if p.rows > 1 else "", wide or tape.autocast > 0
    return weighted(p, held, v, dims(p, mixer)[0], size, mixer.dropout, copied, wide=to_fp32)


def modernbert(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """One linear, cut by ``unbind``; q and k turn in fp32."""
    qkv = project(p, x, mixer.linears[0], "(q+2kv)", QKV)
    q_dim, kv_dim = dims(p, mixer)
    q, k, v = ops.cut(p.tape, qkv, (q_dim, kv_dim, kv_dim))
    q, k = turned(p, q, k)
    out, weights = core(p, mixer, q, k, v, wide=True)
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def turned(p: Pass, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """``(x.float() * cos) + (rotate_half(x.float()) * sin)``, both in fp32 before either is narrowed."""
    before = q.itemsize
    wide = [turn(p, x) for x in (q, k)]
    narrow = [ops.cast(p.tape, x, before, "queries and keys after rotary") for x in wide]
    return narrow[0], narrow[1]


def turn(p: Pass, x: Tensor) -> Tensor:
    """x by cos, and its turned half by sin: a copy in fp32 for each."""
    tape, size, label = p.tape, ops.FP32, "queries and keys in fp32"
    straight = ops.with_constant(tape, ops.cast(tape, x, size, label), size, "rotary")
    crossed = ops.with_constant(tape, rotated_half(tape, ops.cast(tape, x, size, label)), size, "rotary")
    return ops.add(tape, straight, crossed, label)
