"""DeepSeek-V4's attention as a program on the tape: one head of keys that are values too, over a window and over
entries compressed from further back, in eager form alone.

Follows ``modeling_deepseek_v4.py`` (transformers 5.23). Symbols, per token: H heads of d, ql the queries' latent, W
entries in all, of which an indexer of Hi heads of di chooses k for each token.

What compresses keys and values of many tokens into one entry, and what chooses among entries, as programs on the
tape: ``DeepseekV4HCACompressor``, ``DeepseekV4CSACompressor`` and ``DeepseekV4Indexer`` (transformers 5.23).

Blocks of ``rate`` tokens; a sparse layer's entries overlap, each made of two blocks."""

from memplan.engine.layers.attention.eager import masked
from memplan.engine.layers.attention.newer_classes import less_the_largest
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import add_bias, rms_bare, rms_wide
from memplan.engine.layers.rotary import rotated_half
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.chunked_ops import seen
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.attention_kinds import CompressedAttention, Compressor
from memplan.spec.parts import Linear

PRODUCTS, BLOCKS, ENTRIES, SCORES = "compressor's products", "compressor's blocks", "compressed entries", "index scores"
INT64 = 8


def compressed(p: Pass, mixer: CompressedAttention, x: Tensor, latent: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The entries of a layer; their mask, and the layer's mask that it is joined to."""
    tape, spec = p.tape, mixer.compressor
    assert spec is not None
    held: list[Tensor] = []
    entries = compress(p, mixer, spec, x, held)
    if not entries.dim.elements:
        return entries, held
    pairs = Dim("T·W", p.tokens * mixer.entries(p.length))
    if mixer.indexer:
        bias = chosen_bias(p, mixer, x, latent, entries.itemsize)
    else:
        blank = tape.new(pairs, entries.itemsize, "masks of entries")
        future = tape.new(pairs, 1, "masks of entries")
        bias = tape.new(pairs, entries.itemsize, "masks of entries")
        del blank, future
    held.clear()
    narrow = ops.cast(tape, bias, p.mode.residual_itemsize, "masks of entries")
    whole = Dim("T·(s+W)", p.tokens * (p.length + mixer.entries(p.length)))
    mask = tape.new(whole, p.mode.residual_itemsize, "masks of the layer")
    del narrow
    return entries, [bias, mask]


def compress(p: Pass, mixer: CompressedAttention, spec: Compressor, x: Tensor, held: list[Tensor]) -> Tensor:
    """Entries: sums over each block, weighed by a softmax over its gates, normalised and turned. ``held``: locals."""
    tape, count = p.tape, p.rows * mixer.entries(p.length)
    width, overlaps = spec.norms[0].width, mixer.indexer is not None
    usable = Dim("T·2d" if overlaps else "T·d", count * mixer.rate * spec.linears[0].outputs)
    products = [project(p, x, linear, "2d" if overlaps else "d", PRODUCTS) for linear in spec.linears[:2]]
    held += products
    if not count:  # shorter than a block: nothing of it is read
        return tape.new(Dim("W·d", 0), products[0].itemsize, ENTRIES)
    whole = products[0].dim.elements == usable.elements
    kv, gate = (ops.view(tape, each, usable, whole=whole) for each in products)
    bias = spec.tensors[0]
    gate = add_bias(tape, gate, p.param(bias.name, bias.parameters, bias.itemsize), BLOCKS)
    held.append(gate)
    if overlaps:
        kv, gate = overlapping(p, kv, gate, count, mixer.rate * width)
        held += [kv, gate]
    shares = ops.softmax(tape, gate, BLOCKS)
    weighed = ops.mul(tape, kv, ops.cast(tape, shares, kv.itemsize, BLOCKS), BLOCKS)
    del shares, kv, gate
    entries = routing_ops.reduce(tape, weighed, Dim("W·d", count * width), ENTRIES)
    del weighed
    entries = rms_wide(p, spec.norms[0], entries, Dim("W", count))
    held.append(entries)
    return turned(p, mixer, entries, width, ENTRIES, (count, entries.itemsize))


def overlapping(p: Pass, kv: Tensor, gate: Tensor, count: int, half: int) -> tuple[Tensor, Tensor]:
    """The second half of each block's products behind the first half of the block before."""
    tape, rows = p.tape, p.rows
    now, before = Dim("W·r·d", count * half), Dim("(W-1)·r·d", (count - rows) * half)
    earlier = Dim("(W-1)·r·2d", 2 * before.elements)
    made = [tape.new(each.dim, each.itemsize, BLOCKS) for each in (kv, gate)]
    for i, each in enumerate((kv, gate)):
        made[i] = put(tape, made[i], ops.view(tape, each, now, whole=False))
    if before.elements:
        for i, each in enumerate((kv, gate)):
            cut = ops.view(tape, ops.view(tape, each, earlier, whole=False), before, whole=False)
            made[i] = put(tape, made[i], cut)
            del cut
    return made[0], made[1]


def put(tape: Tape, base: Tensor, source: Tensor) -> Tensor:
    """``base[slice] = source`` (autograd's ``CopySlices``): each copies the whole gradient, then takes its part."""
    whole, part, onward = (base.dim, base.itemsize), (source.dim, source.itemsize), base.needs_grad

    def backward(t: Tape, grads: Grads) -> Grads:
        everything = t.gradient(whole)
        own = t.gradient(part)
        if not onward:
            del everything
            return (None, own)
        t.gradient(part)
        return (everything, own)

    return Tensor(base.dim, base.itemsize, base.storage, tape.node((base, source), (), backward))


def chosen_bias(p: Pass, mixer: CompressedAttention, x: Tensor, latent: Tensor, itemsize: int) -> Tensor:
    """Minus infinity for every pair, zero where the indexer has chosen it."""
    tape, kept = p.tape, p.dim("k", min(mixer.topk, mixer.entries(p.length)))
    chosen = indexed(p, mixer, x, latent)
    valid = tape.new(kept, 1, "chosen entries")
    filled = tape.new(kept, INT64, "chosen entries")
    safe = tape.new(kept, INT64, "chosen entries")
    del filled
    bias = tape.new(Dim("T·(W+1)", p.tokens * (mixer.entries(p.length) + 1)), itemsize, "masks of entries")
    del chosen, valid, safe
    return bias


def indexed(p: Pass, mixer: CompressedAttention, x: Tensor, latent: Tensor) -> Tensor:
    """The entries that each token attends to: indices, through which no gradient goes; the graph dies with them."""
    tape, spec, held = p.tape, mixer.indexer, []  # type: ignore[var-annotated]
    assert spec is not None
    width = spec.norms[0].width
    entries = compress(p, mixer, spec, x, held)
    tables = [
        tape.new(Dim("s·dr", p.length * mixer.rope // 2), p.mode.residual_itemsize, "rotary tables") for _ in "cs"
    ]
    q = project(p, latent, spec.linears[2], "Hi·di", "index queries")
    q = turned(p, mixer, q, width, "index queries")
    pairs = p.tokens * mixer.entries(p.length)
    scores = index_scores(p, mixer, x, q, entries, Dim("T·W", pairs))
    threshold = tape.new(Dim("s", p.length), INT64, "chosen entries")
    future = tape.new(Dim("s·W", p.length * mixer.entries(p.length)), 1, "chosen entries")
    scores = routing_ops.masked_fill(tape, scores, future, SCORES)
    kept = p.dim("k", min(mixer.topk, mixer.entries(p.length)))
    values, index = routing_ops.top_k(tape, scores, kept)
    del values  # ``topk(…).indices``: the values go
    invalid = tape.new(kept, 1, "chosen entries")
    filled = tape.new(kept, INT64, "chosen entries")
    result = tape.new(kept, INT64, "chosen entries")
    del tables, threshold, future, invalid, filled, index, scores, q
    return result


def index_scores(p: Pass, mixer: CompressedAttention, x: Tensor, q: Tensor, entries: Tensor, out: Dim) -> Tensor:
    """``DeepseekV4IndexerScorer``: ``relu(q · k) * scale``, weighed for each head, summed over them."""
    tape, spec, heads = p.tape, mixer.indexer, mixer.index_heads
    assert spec is not None
    all_scores = Dim("T·Hi·W", out.elements * heads)
    wide = ops.cast(tape, q, ops.FP32, "index queries")
    keys = ops.cast(tape, entries, ops.FP32, "index keys")
    keys = ops.expand(tape, keys, Dim("s·W·di", keys.dim.elements * p.length))
    if p.rows > 1 and tape.autocast in (0, keys.itemsize):
        keys = ops.copy(tape, keys, "repeated index keys")
    scores = ops.matmul(tape, wide, keys, all_scores, SCORES)
    del wide, keys
    scores = ops.scale(tape, ops.unary(tape, scores, SCORES, saves="result"), SCORES)
    weights = ops.cast(tape, project(p, x, spec.linears[3], "Hi", "index weights"), ops.FP32, "index weights")
    weights = ops.scale(tape, weights, "index weights")
    product = ops.mul(tape, scores, weights, SCORES)
    return routing_ops.reduce(tape, product, out, SCORES)


def turned(
    p: Pass, mixer: CompressedAttention, x: Tensor, width: int, label: str, table: tuple[int, int] | None = None
) -> Tensor:
    """``apply_rotary_pos_emb``: ``cat(rest, rotated)`` in fp32, of heads of ``width``; calls keep repeated cos, sin.

    ``table``: their elements before they are repeated, and their element size; None: those of all positions."""
    tape = p.tape
    rows, itemsize = table or (p.length, p.mode.residual_itemsize)
    cos, sin = (tape.new(Dim("s·dr", rows * mixer.rope), itemsize, "rotary tables of the layer") for _ in range(2))
    turning = Dim(x.dim.symbol, x.dim.elements // width * mixer.rope)
    rest = ops.view(tape, x, Dim(x.dim.symbol, x.dim.elements - turning.elements), whole=False)
    rope = ops.view(tape, x, turning, whole=False)
    straight = ops.with_constant(tape, ops.cast(tape, rope, ops.FP32, "rotary"), itemsize, "rotary", cos)
    swapped = ops.cast(tape, rotated_half(tape, rope), ops.FP32, "rotary")  # odd elements, negated, and even ones
    crossed = ops.with_constant(tape, swapped, itemsize, "rotary", sin)
    del swapped  # ``rotate_half(x).float() * sin``: a temporary
    rotated = ops.add(tape, straight, crossed, "rotary")
    del straight, crossed
    return ops.concatenate(tape, (rest, ops.cast(tape, rotated, x.itemsize, "rotary")), x.dim, label)


QUERIES, KEYS, OUT = "queries", "keys and values", "attention output"


def compressed_attention(p: Pass, mixer: CompressedAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """``DeepseekV4Attention.forward``; its locals live until it returns."""
    tape, heads = p.tape, p.dim("H", mixer.num_heads)
    to_latent, to_queries, to_keys, first_out, last_out = mixer.linears
    latent = norm(p, mixer.norms[0], project(p, x, to_latent, "ql", "latent of queries"), "ql")
    q = project(p, latent, to_queries, "H·d", QUERIES)
    q = rms_bare(p, q, heads)
    q = turned(p, mixer, q, mixer.head_dim, QUERIES)
    kv = turned(p, mixer, norm(p, mixer.norms[1], project(p, x, to_keys, "d", KEYS), "d"), mixer.head_dim, KEYS)
    entries, masks = None, []  # type: ignore[var-annotated]
    if mixer.compress != "none":
        entries, masks = compressed(p, mixer, x, latent)
        kv = _joined(p, kv, entries)
    out, weights = _eager(p, mixer, q, kv, mixer.entries(p.length))
    out = turned(p, mixer, out, mixer.head_dim, OUT)
    groups = seen(tape, ops.copy(tape, out, OUT))
    groups = ops.copy(tape, grouped_linear(p, groups, first_out), "projected groups")
    result = project(p, groups, last_out, "h", "attention projection")
    del entries, masks, q, kv, latent  # locals of DeepseekV4Attention.forward
    return result, weights


def _joined(p: Pass, kv: Tensor, entries: Tensor) -> Tensor:
    """Keys of every token, then the compressed ones: autocast widens the narrower."""
    tape, itemsize = p.tape, max(kv.itemsize, entries.itemsize)
    parts = [ops.cast(tape, part, itemsize, KEYS) for part in (kv, entries)]
    return ops.concatenate(tape, parts, Dim("(s+W)·d", kv.dim.elements + entries.dim.elements), KEYS)


def _eager(p: Pass, mixer: CompressedAttention, q: Tensor, kv: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``: the one head is repeated by a view, which the products copy."""
    tape, heads = p.tape, mixer.num_heads
    pairs = p.tokens * (p.length + entries) * heads
    scores_dim, wide = Dim("T·H·(s+W)", pairs), Dim("T·H·(s+W+1)", pairs + p.tokens * heads)
    all_dim = Dim("H·(s+W)·d", kv.dim.elements * heads)
    keys, values = ops.expand(tape, kv, all_dim), ops.expand(tape, kv, all_dim)
    weights = ops.matmul(tape, q, repeated(p, keys), scores_dim, "attention scores")
    weights = ops.scale(tape, weights, "attention scores")
    weights = masked(p, weights)
    bare = mixer.tensors[0]
    sinks = ops.expand(tape, p.param(bare.name, heads, bare.itemsize), p.dim("H", heads))
    logits = less_the_largest(p, with_sinks(tape, weights, sinks, wide), p.dim("H", heads))
    probabilities = ops.softmax(tape, logits, "attention probabilities", to_fp32=False)
    scores = ops.view(tape, probabilities, scores_dim, whole=False)
    kept = ops.dropout(tape, scores, "attention probabilities") if mixer.dropout else scores
    weights = ops.cast(tape, kept, values.itemsize, "attention probabilities")
    del kept  # ``dropout(scores, …).to(value_states.dtype)``: what is cast is a temporary
    out = ops.matmul(tape, weights, repeated(p, values), q.dim, OUT)
    # ``combined_logits``, ``probs`` and ``scores`` are locals of eager_attention_forward
    del logits, probabilities, scores
    return ops.copy(tape, out, OUT), weights


def repeated(p: Pass, x: Tensor) -> Tensor:
    """An expanded view as a product of several rows, or autocast, needs it: as a copy."""
    narrow = p.tape.autocast and p.tape.autocast != x.itemsize
    return ops.copy(p.tape, x, "repeated keys and values") if p.rows > 1 and not narrow else x


def with_sinks(tape: Tape, weights: Tensor, sinks: Tensor, dim: Dim) -> Tensor:
    """``torch.cat`` of scores and fp32 sinks, as wide as the wider; a narrower part's gradient is narrowed."""
    itemsize = max(weights.itemsize, sinks.itemsize)
    if tape.autocast:
        weights, sinks = (ops.cast(tape, part, itemsize, "attention scores") for part in (weights, sinks))
    sizes = [(part.dim, part.itemsize) for part in (weights, sinks)]
    node = tape.node(
        (weights, sinks), (), lambda t, g: [g[0] if size[1] == itemsize else t.gradient(size) for size in sizes]
    )
    return tape.new(dim, itemsize, "scores with sinks", node)


def grouped_linear(p: Pass, x: Tensor, linear: Linear) -> Tensor:
    """``DeepseekV4GroupedLinear``: one matmul for each group of heads. Autocast casts a view of the weight, whose copy
    it does not keep; the gradient of that view is copied into the weight's own layout."""
    tape, weight = p.tape, p.param(linear.name, linear.parameters)
    dim, itemsize = weight.dim, weight.itemsize
    viewed = Tensor(dim, itemsize, weight.storage, weight.node)
    if weight.needs_grad:
        gradient = "weight gradients"
        node = tape.node((weight,), (), lambda t, g: (t.new(dim, itemsize, gradient, category="gradients"),))
        viewed = Tensor(dim, itemsize, weight.storage, node)
    return ops.matmul(tape, x, viewed, p.dim("G·o", linear.outputs), "projected groups")
