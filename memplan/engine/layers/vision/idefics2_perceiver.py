"""The projector of Idefics 2: a gated projection of the patches, then a perceiver, whose latents attend to these and to
themselves (transformers 5.23, ``modeling_idefics2.py``: Idefics2Connector). Its layers are never checkpointed."""

from collections.abc import Sequence
from typing import NamedTuple

from memplan.engine.layers.activations import activate
from memplan.engine.layers.attention.eager import masked, weighted
from memplan.engine.layers.attention.fused_kernel import aligned_bias, fused_attention
from memplan.engine.layers.attention.sdpa import safe_softmax
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.vision.projector import Joint, listed
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Linear, Norm
from memplan.spec.vision import Resampler

QKV, PROBABILITIES, SCORES = "queries, keys, values", "attention probabilities", "attention scores"


class Reader(NamedTuple):
    """The passes of a perceiver: over latents, over patches, over both in one sequence."""

    spec: Resampler
    latents: Pass
    patches: Pass
    both: Pass

    @property
    def grouped(self) -> bool:
        """Several queries share a key."""
        return self.spec.num_heads != self.spec.num_kv_heads

    @property
    def pairs(self) -> int:
        """Scores of one head."""
        return self.latents.tokens * self.both.length

    @property
    def whole(self) -> Dim:
        """Keys, or values, for every head."""
        return self.both.dim("q", self.spec.num_heads * self.spec.head_dim)


def perceived(j: Joint, x: Tensor) -> Tensor:
    """Final norm, the gated projection of all patches, the perceiver's layers, its norm."""
    part, spec = j.tower.projector, j.tower.resampler
    assert spec is not None
    x = norm(j.states, j.tower.after.norms[0], x, "h")
    j.model_locals.append(x)
    rows = j.states.rows
    lengths = (spec.latents, j.states.length, spec.latents + j.states.length)
    reader = Reader(spec, *(j.features.part(rows, length) for length in lengths))
    context = gated(reader.patches, part.linears[:3], x, spec.activation_before)
    bare = part.tensors[0]
    h = bare.shape[1]
    latents = ops.expand(j.tape, reader.latents.param(bare.name, bare.parameters), reader.latents.dim("h", h))
    mask = shared_mask(reader, latents.itemsize)
    for i in range(spec.depth):
        latents = layer(reader, part.norms[3 * i : 3 * i + 3], part.linears[3 + 7 * i : 10 + 7 * i], latents, context)
    latents = norm(reader.latents, part.norms[-1], latents, "h")
    del context, mask
    return listed(j, latents)


def shared_mask(r: Reader, itemsize: int) -> Tensor | None:
    """The mask, made once: of booleans, but for eager attention."""
    mode = r.latents.mode
    if not mode.padded or mode.operators.attention == "flash":
        return None
    return r.latents.tape.new(
        Dim("T·s", r.pairs), itemsize if mode.operators.attention == "eager" else 1, "attention mask"
    )


def gated(p: Pass, linears: Sequence[Linear], x: Tensor, activation: str) -> Tensor:
    """``down(act(gate(x)) * up(x))``."""
    product = ops.mul(
        p.tape,
        activate(p.tape, activation, project(p, x, linears[0], "F", "gate")),
        project(p, x, linears[1], "F", "up"),
        "feed-forward product",
    )
    return project(p, product, linears[2], "h", "feed-forward output")


def layer(r: Reader, norms: Sequence[Norm], linears: Sequence[Linear], latents: Tensor, context: Tensor) -> Tensor:
    """Norms of latents and patches, attention, residual; norm, gated feed-forward, residual."""
    p = r.latents
    residual = latents
    latents = norm(p, norms[0], latents, "h")
    context = norm(r.patches, norms[1], context, "h")
    latents = attention(r, linears, latents, context)
    latents = ops.add(p.tape, residual, latents, "residual stream")
    residual = latents
    latents = norm(p, norms[2], latents, "h")
    latents = gated(p, linears[4:], latents, r.spec.activation)
    return ops.add(p.tape, residual, latents, "residual stream")


def attention(r: Reader, linears: Sequence[Linear], latents: Tensor, context: Tensor) -> Tensor:
    """Queries of the latents; keys and values of patches and latents, in one sequence."""
    p, tape = r.latents, r.latents.tape
    width = linears[0].inputs
    hidden = joined(tape, context, latents, r.both.dim("h", width))
    q = project(p, latents, linears[0], "q", QKV)
    k, v = (project(r.both, hidden, linear, "kv", QKV) for linear in linears[1:3])
    weights = None
    if p.mode.operators.attention == "eager":
        out, weights = eager(r, q, k, v)
    else:
        out = kernel(r, q, k, v)
    result = project(p, out, linears[3], "h", "attention projection")
    del weights
    return result


def joined(tape: Tape, context: Tensor, latents: Tensor, dim: Dim) -> Tensor:
    """``torch.concat``, whose gradient is handed back in views: what is added to one of them is as small as it."""
    itemsize = max(context.itemsize, latents.itemsize)
    dims = context.dim, latents.dim

    def backward(t: Tape, grads: Grads) -> Grads:
        grad = grads[0]
        return [Tensor(each, itemsize, grad.storage if grad else None) for each in dims]

    return tape.new(dim, itemsize, "patches and latents", tape.node((context, latents), (), backward))


def kernel(r: Reader, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Flash in half precision without a mask; memory-efficient under one, where keys and values are repeated to all
    heads; else in fp32 by products, which alone group heads."""
    p, tape, spec = r.latents, r.latents.tape, r.spec
    itemsize, bias = tape.autocast or q.itemsize, None
    masked = p.mode.padded and p.mode.operators.attention == "sdpa"
    if r.grouped and not masked and itemsize != 2 and p.mode.operators.attention == "sdpa":
        return grouped_products(r, q, k, v)
    if masked:
        k, v = repeated(r, k, "repeated keys"), repeated(r, v, "repeated values")
        bias = aligned_bias(tape, p.tokens, r.both.length, itemsize)
    q, k, v = (ops.autocast_input(tape, each) for each in (q, k, v))
    return fused_attention(tape, q, k, v, p.dim("H", spec.num_heads), q.dim, bias, unpads=p.mode.unpads)


def repeated(r: Reader, x: Tensor, label: str) -> Tensor:
    """``repeat_kv``."""
    return ops.copy(r.latents.tape, x, label, r.whole) if r.grouped else x


def scores_of(r: Reader) -> Dim:
    """A score for each head, latent, and what it attends to."""
    return Dim("T·H·s", r.pairs * r.spec.num_heads)


def grouped_products(r: Reader, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``_scaled_dot_product_attention_math`` of fp32: keys and values are repeated, queries and keys scaled."""
    tape = r.latents.tape
    scaled = ops.scale(tape, q, "scaled queries")
    all_k, all_v = repeated(r, k, "repeated keys"), repeated(r, v, "repeated values")
    queries = ops.copy(tape, scaled, "queries") if r.latents.rows > 1 else scaled
    scores = ops.matmul(tape, queries, ops.scale(tape, all_k, "scaled keys"), scores_of(r), SCORES)
    del queries  # a copy that ``at::matmul`` makes of the strided, scaled q
    weights = safe_softmax(tape, scores, PROBABILITIES)
    del scores  # ``attn = at::_safe_softmax(attn, -1)`` rebinds it (attention.cpp)
    out = ops.matmul(tape, weights, all_v, q.dim, "attention output")
    del weights, all_k, all_v  # locals of _scaled_dot_product_attention_math
    return ops.copy(tape, out, "attention output")


def eager(r: Reader, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scores, scaling, the mask, an fp32 softmax, probabilities in the dtype of queries."""
    p, tape = r.latents, r.latents.tape
    batched = p.rows > 1
    k, v = repeated(r, k, "repeated keys"), repeated(r, v, "repeated values")
    queries = ops.copy(tape, q, "queries") if batched else q
    keys = ops.copy(tape, k, "keys") if batched and not r.grouped else k
    weights = ops.scale(tape, ops.matmul(tape, queries, keys, scores_of(r), SCORES), SCORES)
    del queries, keys  # copies that ``matmul`` makes of strided operands, not locals
    held = [masked(p, weights) if p.mode.padded else weights]
    del weights  # rebound by softmax
    return weighted(p, held, v, q.dim, q.itemsize, copied="values" if batched and not r.grouped else "")
