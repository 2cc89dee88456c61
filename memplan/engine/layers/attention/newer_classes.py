"""Attention of newer classes: GPT-OSS, Qwen3-Next, Llama 4, Gemma 4 (transformers 5.23 ``modeling_<type>.py``), and
from the tokens of a text to its images (MllamaTextCrossAttention)."""

from memplan.engine.layers.attention.eager import masked, repeat_kv, scores_of, weighted
from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.attention.older_classes import QKV, SCORES, dims, projected
from memplan.engine.layers.attention.softmax import core
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import subtract
from memplan.engine.layers.rotary import SHARED, rotary, turn
from memplan.engine.layers.shared_inputs import CROSS_MASK, MEMORY, keys_of, values_of
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.routing_ops import into_zeros
from memplan.engine.tape.tags import Dim
from memplan.spec.attention_kinds import SharedKVAttention
from memplan.spec.parts import Attention, Norm
from memplan.spec.vision import ImageCross


def sink_attention(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """GPT-OSS: projections, two half rotations joined, scores with a sink, output projection; in eager form alone.

    A sink is a learned logit beside the scores of each head; the softmax runs in the model's own dtype."""
    q_dim, kv_dim = dims(p, mixer)
    q, k, v = projected(p, mixer, x)
    q, k = _turned(p, q, q_dim), _turned(p, k, kv_dim)
    out, weights = _with_sinks(p, mixer, q, k, v, q_dim)
    return project(p, out, mixer.linears[3], "h", "attention projection"), weights


def _turned(p: Pass, x: Tensor, dim: Dim) -> Tensor:
    """``cat(first * cos - second * sin, second * cos + first * sin)``."""
    tape, itemsize, half = p.tape, p.mode.residual_itemsize, Dim(dim.symbol, dim.elements // 2)
    first, second = ops.split(tape, x, 2, half)

    def times(part: Tensor) -> Tensor:
        return ops.with_constant(tape, part, itemsize, "rotary")

    left = subtract(tape, times(first), times(second), "rotary")
    right = ops.add(tape, times(second), times(first), "rotary")
    return ops.concatenate(tape, (left, right), dim, "queries and keys after rotary")


def _with_sinks(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, q_dim: Dim) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``: what lives until it returns are its locals: logits, probabilities, keys, values."""
    tape, heads = p.tape, mixer.num_heads
    scores_dim = scores_of(p, mixer)
    wide = Dim("T·H·(s+1)", scores_dim.elements + p.tokens * heads)
    keys = repeat_kv(p, mixer, k, "repeated keys", q_dim, batched=True)
    values = repeat_kv(p, mixer, v, "repeated values", q_dim, batched=True)
    weights = ops.scale(tape, ops.matmul(tape, q, keys, scores_dim, "attention scores"), "attention scores")
    weights = masked(p, weights)
    sinks = ops.expand(tape, p.param("sinks", heads), p.dim("H", heads))
    both: tuple[Tensor, ...] = (weights, sinks)
    if tape.autocast:
        both = tuple(ops.cast(tape, part, max(weights.itemsize, sinks.itemsize), "attention scores") for part in both)
    logits = ops.concatenate(tape, both, wide, "scores with sinks")
    del both  # autocast's copies for ``torch.cat([attn_weights, sinks])``: no locals
    logits = less_the_largest(p, logits, p.dim("H", heads))
    probabilities = ops.softmax(tape, logits, "attention probabilities", to_fp32=False)
    scores = ops.view(tape, probabilities, scores_dim, whole=False)
    kept = ops.dropout(tape, scores, "attention probabilities") if mixer.dropout else scores
    weights = ops.cast(tape, kept, values.itemsize, "attention probabilities")  # until then, the masked scores
    del kept  # ``dropout(scores, …).to(value_states.dtype)``: what is cast is a temporary
    out = ops.matmul(tape, weights, values, q_dim, "attention output")
    return ops.copy(tape, out, "attention output"), weights


def less_the_largest(p: Pass, x: Tensor, rows: Dim) -> Tensor:
    """``x - x.max(keepdim).values``: the index of the largest is saved."""
    tape = p.tape
    largest, index = tape.new(rows, x.itemsize, "largest scores"), tape.new(rows, 8, "largest scores")
    values = Tensor(rows, x.itemsize, largest.storage, tape.node((x,), (index,), into_zeros(x)))
    return subtract(tape, x, values, "scores with sinks")


def gated_attention(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Qwen3-Next: queries and gates of one projection, each head's norm, attention, outputs times the gate's sigmoid; a
    gate is copied to be seen flat."""
    tape, heads, kv_heads = p.tape, mixer.num_heads, mixer.num_kv_heads
    q_dim = p.dim("q", heads * mixer.head_dim)
    of_q, of_k, of_v, of_o = mixer.linears
    q, gate = ops.split(tape, project(p, x, of_q, "2q", "queries and gates"), 2, q_dim)
    gate = ops.copy(tape, gate, "gates")
    q = norm(p, mixer.norms[0], q, "q", "H", heads)
    k = norm(p, mixer.norms[1], project(p, x, of_k, "kv", "queries, keys, values"), "kv", "K", kv_heads)
    v = project(p, x, of_v, "kv", "queries, keys, values")
    q, k = rotary(p, mixer, q, k)
    out, weights = core(p, mixer, q, k, v, q_dim)
    out = ops.mul(tape, out, ops.unary(tape, gate, "gates", saves="result"), "gated outputs")
    return project(p, out, of_o, "h", "attention projection"), weights


def llama4_attention(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``Llama4TextAttention.forward``, whose result is a local of the layer until that returns.

    q and k turned as complex numbers and normalised without weights, or neither, queries scaled by position."""
    q_dim, _ = dims(p, mixer)
    q, k, v = projected(p, mixer, x)
    if mixer.rotary != "none":
        q, k = turned(p, q, k)
    if mixer.unweighted_norms:
        q, k = normalised(p, q, "H", mixer.num_heads), normalised(p, k, "K", mixer.num_kv_heads)
    if mixer.scaled_queries:
        q = scaled(p, q)
    out, weights = core(p, mixer, q, k, v, q_dim)
    result = project(p, out, mixer.linears[3], "h", "attention projection")
    return result, result if weights is None else weights


def turned(p: Pass, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Both in fp32 as complex numbers, both products, then both cast back."""
    tape = p.tape
    wide = [ops.cast(tape, x, ops.FP32, "queries and keys in fp32") for x in (q, k)]
    products = [ops.with_constant(tape, x, ops.FP32, "rotary") for x in wide]
    out = [
        ops.cast(tape, product, x.itemsize, "queries and keys after rotary")
        for product, x in zip(products, (q, k), strict=True)
    ]
    return out[0], out[1]


def normalised(p: Pass, x: Tensor, symbol: str, heads: int) -> Tensor:
    """Each head over its root mean square, in fp32."""
    wide = ops.cast(p.tape, x, ops.FP32, "norm inputs in fp32")
    normed = ops.normalise(p.tape, wide, p.dim(symbol, heads), "normalised")
    del wide  # ``self._norm(x.float()).type_as(x)``: the argument ends with the call (Llama4TextL2Norm.forward)
    return ops.cast(p.tape, normed, x.itemsize, "norm outputs")


def scaled(p: Pass, q: Tensor) -> Tensor:
    """``(q * scale).to(q.dtype)`` with an fp32 factor of each position."""
    factor = p.tape.new(Dim("s", p.length), ops.FP32, "query scales")
    product = ops.with_constant(p.tape, q, ops.FP32, "scaled queries", factor)
    return ops.cast(p.tape, product, q.itemsize, "scaled queries")


def shared_kv_attention(p: Pass, mixer: SharedKVAttention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gemma 4: queries, keys and values, each normalised, and queries and keys turned, before the next one is made.

    Keys and values may be those of an earlier layer."""
    heads, kv_heads, width = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    q = project(p, x, mixer.linears[0], "q", "queries, keys, values")
    q = norm(p, mixer.norms[0], q, "q", "H", heads)
    q = turn(p, mixer, q, SHARED)
    if mixer.reads:
        k, v = p.shared[keys_of(mixer.reads)], p.shared[values_of(mixer.reads)]
    else:
        k = project(p, x, mixer.linears[1], "kv", "queries, keys, values")
        v = project(p, x, mixer.linears[2], "kv", "queries, keys, values") if len(mixer.linears) > 3 else k
        k = norm(p, mixer.norms[1], k, "kv", "K", kv_heads)
        k = turn(p, mixer, k, SHARED)
        v = norm(p, Norm(name="v_norm", width=width, kind="rms-power-bare"), v, "kv", "K", kv_heads)
    if mixer.makes_kv:
        p.shared[keys_of(mixer.makes_kv)], p.shared[values_of(mixer.makes_kv)] = k, v
    out, weights = core(p, mixer, q, k, v, p.dim("q", heads * width))
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


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
