"""Attention of encoders (BERT and its kin, ModernBERT) as programs on the tape, in the order of transformers 5.23."""

from memplan.engine.layers.attention.eager import scores_of
from memplan.engine.layers.attention.older_classes import PROBABILITIES, QKV, SCORES, batched, dims, projected
from memplan.engine.layers.attention.sdpa import sdpa
from memplan.engine.layers.modules import Pass, project
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.parts import Attention

OUTPUT = "attention output"


def bert(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``BertSelfAttention`` and the dense layer of ``BertSelfOutput``."""
    q, k, v = projected(p, mixer, x)
    if p.mode.operators.attention == "eager":
        out, weights = eager(p, mixer, q, k, v)
    else:
        out, weights = sdpa(p, mixer, q, k, v, dims(p, mixer)[0]), None
    del q, k, v  # BertSelfAttention.forward returns: ``query_layer``, ``key_layer``, ``value_layer``
    if p.held is not None:
        p.held.append(out)
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def albert(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``AlbertAttention`` up to its dropout: one forward, holding queries, keys and values until its norm."""
    q, k, v = projected(p, mixer, x)
    if p.mode.operators.attention == "eager":
        out, weights = eager(p, mixer, q, k, v)
    else:
        out, weights = sdpa(p, mixer, q, k, v, dims(p, mixer)[0]), None
    if p.held is not None:
        p.held += (q, k, v)
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def eager(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, wide: bool = False) -> tuple[Tensor, Tensor]:
    """Scores, a mask where there is padding or a window, a softmax in their own dtype (``wide``: in fp32, and back)."""
    tape, before = p.tape, q.itemsize
    weights = ops.matmul(tape, batched(p, q), batched(p, k), scores_of(p, mixer), SCORES)
    weights = ops.scale(tape, weights, SCORES)
    if p.mode.padded or (mixer.window is not None and p.length >= mixer.window):
        weights = ops.scale(tape, weights, "masked scores", shares_gradient=True)
    to_fp32 = wide or tape.autocast > 0
    weights = ops.softmax(tape, weights, PROBABILITIES, to_fp32, p.mode.numerics.half_to_float)
    if wide:
        weights = ops.cast(tape, weights, before, PROBABILITIES)
    if mixer.dropout:
        weights = ops.dropout(tape, weights, PROBABILITIES)
    out = ops.matmul(tape, weights, batched(p, v), dims(p, mixer)[0], OUTPUT)
    return ops.copy(tape, out, OUTPUT), weights


def modernbert(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """One linear, cut by ``unbind``; q and k turn in fp32."""
    qkv = project(p, x, mixer.linears[0], "(q+2kv)", QKV)
    q_dim, kv_dim = dims(p, mixer)
    q, k, v = ops.cut(p.tape, qkv, (q_dim, kv_dim, kv_dim))
    q, k = turned(p, q, k)
    if p.mode.operators.attention == "eager":
        out, weights = eager(p, mixer, q, k, v, wide=True)
    else:
        out, weights = sdpa(p, mixer, q, k, v, q_dim), None
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
    crossed = ops.with_constant(tape, rotated_half(p, ops.cast(tape, x, size, label)), size, "rotary")
    return ops.add(tape, straight, crossed, label)


def rotated_half(p: Pass, x: Tensor) -> Tensor:
    """``cat((-x2, x1))``."""
    tape, half = p.tape, Dim(x.dim.symbol, x.dim.elements // 2)
    first, second = (ops.view(tape, x, half, whole=False) for _ in range(2))
    return ops.concatenate(tape, (ops.scale(tape, second, "rotary"), first), x.dim, "rotary")
