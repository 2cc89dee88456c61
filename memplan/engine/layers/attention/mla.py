"""Low-rank attention (MLA) as programs on the tape: queries and keys of a part without and one with positions.

Follows ``modeling_deepseek_v3.py`` and its kin (transformers 5.23): DeepSeek-V2 to V3.2, Kimi K2.5, GLM-4-MoE-Lite,
GLM-MoE-DSA, MiniCPM3. Symbols, per token: H heads, dn and dr the widths of a query's parts, dv of a value, ql and
kl of the latents.

DeepSeek sparse attention as a program on the tape: an indexer scores pairs of tokens, and the best become a mask.

Nothing of it has a gradient (``DeepseekV32Indexer.forward`` runs under ``no_grad``), so that all is gone when the layer
is; but its scores, s × s for every head in fp32, can be the layer's peak."""

from memplan.engine.layers import rotary
from memplan.engine.layers.attention.eager import masked
from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import subtract
from memplan.engine.parallel.sequence import gathered, ring_attention, scattered
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.attention_kinds import Indexer, LatentAttention

INT32, INT64 = 4, 8


def chosen_tokens(p: Pass, spec: Indexer, x: Tensor, latent: Tensor) -> Tensor:
    """Indices of the tokens that each query attends to, in int32."""
    tape = p.tape
    grad_enabled, tape.grad_enabled = tape.grad_enabled, False
    held: list[Tensor] = []
    scores = index_scores(p, spec, x, latent, held)
    kept = p.dim("topk", min(spec.topk, p.length))
    values = tape.result("topk", kept, scores.itemsize, "index scores")
    index = tape.result("topk", kept, INT64, "chosen tokens")
    del values
    chosen = tape.new(kept, INT32, "chosen tokens")
    tape.grad_enabled = grad_enabled
    del index
    held.clear()
    return chosen


def index_scores(p: Pass, spec: Indexer, x: Tensor, latent: Tensor, held: list[Tensor]) -> Tensor:
    """``relu(q · k * scale) · weights`` summed over the indexer's heads: a score for each pair of tokens.

    The product repeats the keys of several rows for every query. What the indexer's locals keep goes into ``held``."""
    tape, wide = p.tape, ops.FP32
    to_q, to_k, to_weights = spec.linears
    low = tape.autocast or wide
    q = _turned(p, spec, project(p, latent, to_q, "Hi·di", "index queries"), held)
    k = _turned(p, spec, norm(p, spec.norms[0], project(p, x, to_k, "di", "index keys"), "di"), held)
    operands = [ops.cast(tape, q, wide, "index queries"), ops.cast(tape, k, wide, "index keys")]
    operands += [ops.autocast_input(tape, operand) for operand in operands]
    if p.rows > 1:
        operands.append(tape.new(Dim("T·di·s", p.tokens * p.length * spec.width), low, "repeated index keys"))
    scores = tape.result("bmm", Dim("T·Hi·s", p.tokens * p.length * spec.heads), low, "index scores")
    operands.clear()
    scores = ops.scale(tape, scores, "index scores")
    scores = ops.scale(tape, scores, "index scores")
    weights = ops.cast(tape, project(p, x, to_weights, "Hi", "index weights"), wide, "index weights")
    weights = ops.scale(tape, weights, "index weights")
    total = tape.result("bmm", Dim("T·s", p.tokens * p.length), low, "index scores")
    held += [q, k, scores, weights]
    return ops.scale(tape, total, "masked index scores")


def _turned(p: Pass, spec: Indexer, x: Tensor, held: list[Tensor]) -> Tensor:
    """The rotated part joined with the rest again; what it was made of is held by locals."""
    itemsize = max(x.itemsize, p.mode.residual_itemsize)
    turns = Dim(x.dim.symbol, x.dim.elements // spec.width * spec.rope)
    held += [x, p.tape.new(turns, itemsize, "index queries and keys")]
    return p.tape.new(x.dim, itemsize, "index queries and keys")


def index_mask(p: Pass, topk: int) -> list[Tensor]:
    """What is not chosen, and the mask that remains: one byte for each pair (eager: the mask's own dtype)."""
    tape, pairs = p.tape, Dim("T·s", p.tokens * p.length)
    scattered = [
        tape.new(pairs, 1, "index masks"),
        tape.new(p.dim("topk", min(topk, p.length)), INT64, "chosen tokens"),
    ]
    unchosen = tape.new(pairs, 1, "index masks")
    scattered.clear()
    if p.mode.operators.attention == "eager":
        return [unchosen, tape.new(pairs, p.mode.residual_itemsize, "attention masks")]
    negated = tape.new(pairs, 1, "index masks")
    mask = tape.new(pairs, 1, "attention masks")
    del negated
    return [unchosen, mask]


FLASH_HEAD_DIM = 256


def latent_attention(p: Pass, mixer: LatentAttention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``DeepseekV3Attention.forward``; its locals live until it returns."""
    tape, heads = p.tape, mixer.num_heads
    nope, rope, value = mixer.nope, mixer.rope, mixer.value
    x = gathered(p, x)
    *to_queries, to_latent, from_latent, out_proj = mixer.linears
    latent_query = None
    if mixer.query_low_rank:
        latent_query = norm(p, mixer.norms[0], project(p, x, to_queries[0], "ql", "latent of queries"), "ql")
    q = project(p, x if latent_query is None else latent_query, to_queries[-1], "H·(dn+dr)", "queries")
    if not mixer.indexed:
        latent_query = None
    q_pass, q_turn = ops.cut(tape, q, (p.dim("H·dn", heads * nope), p.dim("H·dr", heads * rope)))
    compressed = project(p, x, to_latent, "(kl+dr)", "latent of keys and values")
    latent, k_turn = ops.cut(tape, compressed, (p.dim("kl", mixer.latent), p.dim("dr", rope)))
    latent = norm(p, mixer.norms[-1], latent, "kl")
    q_turn, k_turn = turned(p, mixer, q_turn, k_turn)
    query = joined(p, q_pass, q_turn, q.dim)
    key, values = expanded(p, mixer, k_turn, project(p, latent, from_latent, "H·(dn+dv)", "keys and values"))
    chosen = mask = None
    if mixer.indexed:
        assert latent_query is not None
        chosen = chosen_tokens(p, mixer.indexer, x, latent_query) if mixer.indexer else None
        mask = index_mask(p, mixer.topk)
    out_dim = p.dim("H·dv", heads * value)
    if p.mode.operators.attention == "eager":
        out, weights = eager(p, mixer, query, key, values, out_dim)
    else:
        out, weights = fused(p, mixer, query, key, values, out_dim), None
    result = scattered(p, project(p, out, out_proj, "h", "attention projection"))
    del chosen, mask  # locals of the attention's forward, to its end
    return result, weights


def turned(p: Pass, mixer: LatentAttention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The rotated parts of queries and of the one key that all heads share."""
    if mixer.rotary == "complex":
        return as_complex(p, q, k)
    if mixer.rotary == "interleaved":
        return interleaved(p, q), interleaved(p, k)
    return rotary.turned(p.tape, q, p.mode.residual_itemsize), rotary.turned(p.tape, k, p.mode.residual_itemsize)


def interleaved(p: Pass, x: Tensor) -> Tensor:
    """Even and odd elements: ``cat(even * cos - odd * sin, odd * cos + even * sin)``."""
    tape, itemsize = p.tape, p.mode.residual_itemsize
    half = Dim(x.dim.symbol, x.dim.elements // 2)
    even, odd = ops.view(tape, x, half, whole=False), ops.view(tape, x, half, whole=False)
    first = subtract(
        tape,
        ops.with_constant(tape, even, itemsize, "rotary"),
        ops.with_constant(tape, odd, itemsize, "rotary"),
        "rotary",
    )
    second = ops.add(
        tape,
        ops.with_constant(tape, odd, itemsize, "rotary"),
        ops.with_constant(tape, even, itemsize, "rotary"),
        "rotary",
    )
    return ops.concatenate(tape, (first, second), x.dim, "queries and keys after rotary")


def as_complex(p: Pass, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of fp32 as complex numbers, multiplied, and cast back (DeepSeek-V2)."""
    tape = p.tape
    wide = [ops.cast(tape, x, ops.FP32, "queries and keys in fp32") for x in (q, k)]
    out = [
        ops.cast(tape, ops.with_constant(tape, one, ops.FP32, "rotary"), x.itemsize, "queries and keys after rotary")
        for one, x in zip(wide, (q, k), strict=True)
    ]
    return out[0], out[1]


def joined(p: Pass, passes: Tensor, turns: Tensor, dim: Dim) -> Tensor:
    """``cat`` of both parts of the queries: autocast widens the narrower first."""
    tape, itemsize = p.tape, max(passes.itemsize, turns.itemsize)
    if tape.autocast:
        passes, turns = (ops.cast(tape, x, itemsize, "queries") for x in (passes, turns))
    return ops.concatenate(tape, (passes, turns), dim, "queries")


def expanded(p: Pass, mixer: LatentAttention, k_turn: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """``expand_kv``: keys of all heads, copied in two parts into one tensor; values are a view of the projection."""
    tape, heads = p.tape, mixer.num_heads
    k_pass, values = ops.cut(tape, both, (p.dim("H·dn", heads * mixer.nope), p.dim("H·dv", heads * mixer.value)))
    all_turned = ops.expand(tape, k_turn, p.dim("H·dr", heads * mixer.rope))
    return filled(tape, p.dim("H·(dn+dr)", heads * (mixer.nope + mixer.rope)), k_pass, all_turned), values


def filled(tape: Tape, dim: Dim, first: Tensor, second: Tensor) -> Tensor:
    """``new_empty``, with ``copy_`` into two slices.

    On the way back each slice copies the whole gradient before it takes its part (autograd's ``CopySlices``)."""
    itemsize, sides = first.itemsize, [(x.dim, x.itemsize) for x in (first, second)]
    storage = tape.new(dim, itemsize, "keys").storage

    def part(t: Tape, side: tuple[Dim, int]) -> Tensor:
        grad = t.gradient((side[0], itemsize))
        return grad if side[1] == itemsize else t.gradient(side)

    def backward_first(t: Tape, grads: Grads) -> Grads:
        whole = t.gradient((dim, itemsize))
        grad = part(t, sides[0])
        del whole  # the clone of the whole gradient ends when its slice is read (CopySlices::apply)
        return (grad,)

    def backward_second(t: Tape, grads: Grads) -> Grads:
        whole = t.gradient((dim, itemsize))
        grad = part(t, sides[1])
        t.gradient((sides[1][0], itemsize))
        return (whole, grad)

    base = Tensor(dim, itemsize, storage, tape.node((first,), (), backward_first))
    return Tensor(dim, itemsize, storage, tape.node((base, second), (), backward_second))


def kernel(p: Pass, mixer: LatentAttention, itemsize: int) -> str:
    """Flash where queries and values are equally wide and no mask is there; else memory-efficient."""
    if p.mode.operators.attention != "sdpa":
        return p.mode.operators.attention
    equal = mixer.nope + mixer.rope == mixer.value <= FLASH_HEAD_DIM
    return "flash" if equal and itemsize == 2 and not (p.mode.padded or mixer.indexed) else "efficient"


def fused(p: Pass, mixer: LatentAttention, q: Tensor, k: Tensor, v: Tensor, out_dim: Dim) -> Tensor:
    """``scaled_dot_product_attention``; a mask becomes a bias, and flash's output is copied into another layout. The
    kernel itself is given values as wide as queries, and what it gives is cut (transformers 5.24
    ``integrations/flash_attention.py``)."""
    tape = p.tape
    if p.mode.context > 1:
        return ring_attention(p, q, k, v, p.dim("H", mixer.num_heads), out_dim)
    chosen, bias = kernel(p, mixer, tape.autocast or q.itemsize), None
    if chosen == "efficient" and (p.mode.padded or mixer.indexed):
        bias = tape.new(Dim("T·s", p.tokens * p.length), tape.autocast or q.itemsize, "attention bias")
    q, k, v = (ops.autocast_input(tape, x) for x in (q, k, v))
    given = out_dim
    if chosen == "flash" and q.dim.elements != out_dim.elements:
        given = q.dim
        v = tape.new(given, v.itemsize, "values as wide as queries", tape.node((v,), (), ops.own(v)))
    out = fused_attention(tape, q, k, v, p.dim("H", mixer.num_heads), given, bias, unpads=p.mode.unpads)
    del q, k, v  # casts and what was filled up are locals of flash_attention_forward
    out = ops.view(tape, out, out_dim, whole=given is out_dim)
    return ops.copy(tape, out, "attention output") if chosen == "flash" else out


def eager(p: Pass, mixer: LatentAttention, q: Tensor, k: Tensor, v: Tensor, out_dim: Dim) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``: the product copies values of several rows into another layout."""
    tape = p.tape
    scores = Dim("T·H·s", p.tokens * p.length * mixer.num_heads)
    weights = ops.scale(tape, ops.matmul(tape, q, k, scores, "attention scores"), "attention scores")
    weights = masked(p, weights)
    wide = ops.softmax(tape, weights, "attention probabilities", half_to_float=p.mode.numerics.half_to_float)
    weights = ops.cast(tape, wide, q.itemsize, "attention probabilities")  # the masked scores are a local until then
    del wide  # ``softmax(…, dtype=torch.float32).to(query.dtype)``: fp32 ones live on if saved
    if mixer.dropout:
        weights = ops.dropout(tape, weights, "attention probabilities")
    values = ops.copy(tape, v, "values") if p.rows > 1 else v
    out = ops.matmul(tape, weights, values, out_dim, "attention output")
    del values  # the copy that ``matmul`` makes of a strided operand, not a local
    return ops.copy(tape, out, "attention output"), weights
