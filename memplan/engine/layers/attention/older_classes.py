"""Attention as older classes write it, each by itself: operations and locals are those of transformers 5.23 and 5.24.

``Attention.style`` names the program (GPT-J, CodeGen, GPT-Neo, GPT-2 upcast, Bloom, MPT); 'standard', 'gpt2' and 'opt'
are the one in ``softmax.py``. BART's is within a stack, or to the encoder's output."""

from memplan.engine.layers.attention.eager import masked, scores_of, weighted
from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.attention.sdpa import sdpa
from memplan.engine.layers.attention.softmax import unfused
from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.rotary import joined, turn
from memplan.engine.layers.shared_inputs import MEMORY
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.parts import Attention

Mixed = tuple[Tensor, "Tensor | None"]
PROBABILITIES, SCORES, QKV = "attention probabilities", "attention scores", "queries, keys, values"


def dims(p: Pass, mixer: Attention) -> tuple[Dim, Dim]:
    """Extents of q, and of k or v."""
    return p.dim("q", mixer.num_heads * mixer.head_dim), p.dim("kv", mixer.num_kv_heads * mixer.head_dim)


def projected(p: Pass, mixer: Attention, x: Tensor) -> list[Tensor]:
    """q, k and v of three linears, or of one."""
    q_dim, kv_dim = dims(p, mixer)
    if mixer.fused_qkv:
        return unfused(p, mixer, project(p, x, mixer.linears[0], "(q+2kv)", QKV), q_dim, kv_dim)
    symbols = ("q", "kv", "kv")
    return [project(p, x, linear, symbol, QKV) for linear, symbol in zip(mixer.linears, symbols, strict=False)]


def queries_and_keys(p: Pass, mixer: Attention, x: Tensor, cross: bool) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """Queries of x; keys and values of x, or of what the encoder gave, and how long its rows are."""
    source, keys = (p.shared[MEMORY], p.part(p.rows, p.memory)) if cross else (x, p)
    q = project(p, x, mixer.linears[0], "q", QKV)
    k, v = (project(keys, source, linear, "q", QKV) for linear in mixer.linears[1:3])
    return (q, k, v), keys.length


def batched(p: Pass, x: Tensor) -> Tensor:
    """Heads of several rows as one batch of matrices: a copy, where they lie beside each other; a view for one row."""
    return ops.copy(p.tape, x, QKV) if p.rows > 1 else x


def own_tables(p: Pass, mixer: Attention, x: Tensor, itemsize: int) -> Tensor:
    """What turns of x, by cos and sin that are interleaved anew for it (``rotate_every_two``)."""
    size = Dim("s·rotary", p.length * (mixer.rotary_dim or mixer.head_dim))
    sin, cos = (p.tape.new(size, itemsize, "rotary tables of the layer") for _ in range(2))
    return turn(p, mixer, x, (cos, sin), itemsize)


def turned(
    p: Pass, mixer: Attention, q: Tensor, k: Tensor, itemsize: int
) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """The first ``rotary_dim`` elements of each head turned, keys first, and joined to the rest; and both parts, which
    the module's forward holds."""
    rotary_dim, both = mixer.rotary_dim or mixer.head_dim, []
    for x in (k, q):
        elements = x.dim.elements // mixer.head_dim * rotary_dim
        rotated = ops.view(p.tape, x, Dim(x.dim.symbol, elements), whole=False)
        passed = ops.view(p.tape, x, Dim(x.dim.symbol, x.dim.elements - elements), whole=False)
        both.append((own_tables(p, mixer, rotated, itemsize), passed))
        del rotated, passed
    key, query = (joined(p, *parts) for parts in both)
    return query, key, both


def gptj(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """Rotated by tables of each layer, which GPT-J narrows and CodeGen does not; scores in fp32.

    CodeGen cuts its fused linear in four parts of q, v and k each, so that heads are gathered by copies."""
    tape, size = p.tape, Dim("s·rotary", p.length * (mixer.rotary_dim or mixer.head_dim))
    q, k, v = views = projected(p, mixer, x)
    if mixer.style == "codegen":
        q, k, v = (ops.copy(tape, part, QKV) for part in views)
    else:
        views = []
    itemsize = ops.FP32 if mixer.style == "codegen" else k.itemsize
    tables = tape.new(size, itemsize, "rotary tables of the layer")
    q, k, parts = turned(p, mixer, q, k, itemsize)
    scores, wide = wide_scores(p, mixer, q, k)
    scores = ops.scale(tape, scores, SCORES)
    scores = ops.scale(tape, scores, "masked scores", shares_gradient=True)
    held = [scores]
    del scores  # ``held`` hands it on: ``attn_weights`` is rebound by softmax (GPTJAttention._attn)
    out, weights = weighted(p, held, v, dims(p, mixer)[0], v.itemsize, mixer.dropout, apart=True)
    # ``query`` and ``key`` in fp32 are _attn's locals, ``k_rot`` and ``k_pass`` forward's (GPTJAttention)
    del tables, parts, wide, views
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def interleaved(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """GPT-J and CodeGen from transformers 5.24 on: any kernel; eager's scores in fp32. Tables have the dtype of the
    embedding's output, CodeGen's are in fp32."""
    tape, parted, weights = p.tape, mixer.fused_qkv, None
    q, k, v = views = projected(p, mixer, x)
    if parted:
        q, k, v = (ops.copy(tape, part, QKV) for part in views)
    itemsize = ops.FP32 if parted else max(k.itemsize, p.mode.numerics.itemsize)
    q, k, parts = turned(p, mixer, q, k, itemsize)
    if parted:
        q, k = (ops.cast(tape, each, v.itemsize, QKV) for each in (q, k))
    if p.mode.operators.attention == "eager":
        scores, _ = wide_scores(p, mixer, q, k)
        del _  # temporaries of ``torch.matmul(query.to(torch.float32), …)``
        scores = ops.scale(tape, scores, SCORES)
        scores = ops.scale(tape, scores, "masked scores", shares_gradient=True)
        held = [scores]
        del scores  # ``attn_weights`` is rebound by softmax (eager_attention_forward)
        out, weights = weighted(p, held, v, dims(p, mixer)[0], v.itemsize, mixer.dropout)
    else:
        out = sdpa(p, mixer, q, k, v, dims(p, mixer)[0])
    del parts, views  # ``k_rot``, ``k_pass`` and ``qkv`` are forward's (GPTJAttention)
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def wide_scores(p: Pass, mixer: Attention, q: Tensor, k: Tensor) -> tuple[Tensor, list[Tensor]]:
    """``q.float() @ k.float().T``, and the wide q and k."""
    wide_q, wide_k = (ops.cast(p.tape, x, ops.FP32, "queries and keys in fp32") for x in (q, k))
    return ops.matmul(p.tape, wide_q, wide_k, scores_of(p, mixer), SCORES), [wide_q, wide_k]


def gpt_neo(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """Scores in fp32, not scaled; a causal mask of the layer's own, then the one of all. GPT-2's
    ``reorder_and_upcast_attn`` has the latter alone, behind ``baddbmm`` of q and k outside of autocast."""
    tape, of_gpt2 = p.tape, mixer.style == "gpt2-upcast"
    q, k, v = projected(p, mixer, x)
    autocast, tape.autocast = tape.autocast, 0 if of_gpt2 else tape.autocast
    scores, wide = wide_scores(p, mixer, q, k)
    tape.autocast = autocast
    scores = scores if of_gpt2 else ops.scale(tape, scores, "masked scores")
    scores = ops.scale(tape, scores, "masked scores", shares_gradient=True)
    held = [scores]
    del scores  # ``attn_weights`` is rebound by softmax (GPTNeoSelfAttention._attn, _upcast_and_reordered_attn)
    out, weights = weighted(p, held, v, dims(p, mixer)[0], v.itemsize, mixer.dropout, apart=True)
    del wide  # ``query`` and ``key`` in fp32 are _attn's locals
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def bloom(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """``alibi.baddbmm(q, k)``: several rows make copies of q, k and v, one row has them as views."""
    views = projected(p, mixer, x)
    q, k, v = (batched(p, part) for part in views)
    scores = scaled_product(p, mixer, q, k)
    summed = masked(p, scores)
    out, weights = weighted(p, [summed], v, dims(p, mixer)[0], q.itemsize, mixer.dropout)
    del scores, summed, views  # locals of BloomAttention.forward
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def scaled_product(p: Pass, mixer: Attention, q: Tensor, k: Tensor) -> Tensor:
    """``baddbmm``: keeps both factors; each gradient is multiplied by alpha."""
    tape = p.tape
    left, right = ops.autocast_input(tape, q), ops.autocast_input(tape, k)
    sizes = tuple((x.dim, x.itemsize) for x in (left, right))

    def backward(t: object, grads: Grads) -> Grads:
        results = []
        for size in sizes:
            plain = tape.gradient(size)
            results.append(tape.gradient(size))
            del plain  # ``maybe_multiply(grad.bmm(…), alpha)`` (derivatives.yaml: baddbmm)
        return results

    return tape.new(scores_of(p, mixer), left.itemsize, SCORES, tape.node((left, right), (left, right), backward))


def mpt(p: Pass, mixer: Attention, x: Tensor) -> Mixed:
    """Slopes in fp32 widen the scores; the mask fills them."""
    tape = p.tape
    q_dim, kv_dim = dims(p, mixer)
    fused = project(p, x, mixer.linears[0], "(q+2kv)", QKV)
    if mixer.clipped:
        fused = ops.unary(tape, fused, "clipped queries, keys, values")
    q, k, v = unfused(p, mixer, fused, q_dim, kv_dim)
    scores = ops.matmul(tape, batched(p, q), batched(p, k), scores_of(p, mixer), SCORES)
    scores = ops.scale(tape, scores, SCORES)
    scores = ops.cast(tape, scores, ops.FP32, "scores and slopes")
    scores = ops.scale(tape, scores, "masked scores")
    out, weights = weighted(p, [scores], v, q_dim, v.itemsize, mixer.dropout, QKV if p.rows > 1 else "")
    del scores  # ``attention_scores`` is a local of MptAttention.forward
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


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
