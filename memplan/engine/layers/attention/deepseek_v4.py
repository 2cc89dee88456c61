"""DeepSeek-V4's attention as a program on the tape: one head of keys that are values too, over a window and over
entries compressed from further back, in eager form alone.

Follows ``modeling_deepseek_v4.py`` (transformers 5.23). Symbols, per token: H heads of d, ql the queries' latent, W
entries in all, of which an indexer of Hi heads of di chooses k for each token."""

from memplan.engine.layers.attention.deepseek_v4_compressor import compressed, turned
from memplan.engine.layers.attention.eager import masked
from memplan.engine.layers.attention.newer_classes import less_the_largest
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norms import rms_bare
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import seen
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.attention_kinds import CompressedAttention
from memplan.spec.parts import Linear

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
    groups = ops.copy(tape, grouped_linear(p, groups, first_out, mixer.groups), "projected groups")
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


def grouped_linear(p: Pass, x: Tensor, linear: Linear, groups: int) -> Tensor:
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
