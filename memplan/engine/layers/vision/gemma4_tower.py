"""Gemma 4's vision tower as programs on the tape (transformers 5.23, ``modeling_gemma4.py``: Gemma4VisionModel).

An image is a row of as many patches as there may be, with their positions; those that it has not are masked. Blocks
have a norm before and after each branch; patches are averaged by position into tokens."""

from memplan.engine.layers import rotary
from memplan.engine.layers.activations import activate
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.vision.projector import Joint, listed
from memplan.engine.layers.vision.vit_block import QKV, attend
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.routing_ops import into_zeros, masked_fill, reduce
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Linear, Norm
from memplan.spec.vision import Block, Tower

BARE, INT64, FP32 = "rms-power-bare", 8, ops.FP32


def embed_by_position(p: Pass, tower: Tower, pixels: Tensor, out: Dim) -> Tensor:
    """``2 * (pixels - 0.5)``, one linear module, and rows of two tables, one for each axis."""
    tape, bare, linear = p.tape, tower.embedding.tensors[0], tower.embedding.linears[0]
    centred = tape.new(pixels.dim, pixels.itemsize, "pixels")
    scaled = tape.new(pixels.dim, pixels.itemsize, "pixels")
    del centred
    x = project(p, ops.cast(tape, scaled, p.mode.numerics.itemsize, "pixels"), linear, "h", "patch embeddings")
    del scaled
    table = p.param(bare.name, bare.parameters)
    index = tape.new(p.dim("2", 2), INT64, "positions of patches")
    rows = [looked_up(tape, table, out, index) for _ in range(2)]
    found = ops.add(tape, rows[0], rows[1], "positions")
    found = masked_fill(tape, found, tape.new(p.dim("1", 1), 1, "masks of patches"), "positions")
    return ops.add(tape, x, found, "patch embeddings")


def embed_merged(p: Pass, tower: Tower, pixels: Tensor, out: Dim) -> Tensor:
    """A norm, one linear module, a norm; the sum of two rows of a table, masked where no patch is; a norm
    (transformers 5.24 modeling_gemma4_unified.py: Gemma4UnifiedVisionEmbedder)."""
    tape, part = p.tape, tower.embedding
    table, (first, second, last) = part.tensors[0], part.norms
    x = norm(p, first, ops.cast(tape, pixels, p.mode.numerics.itemsize, "pixels"), "h")
    x = norm(p, second, project(p, x, part.linears[0], "h", "patch embeddings"), "h")
    weight, both = p.param(table.name, table.parameters), Dim("2·" + out.symbol, 2 * out.elements)
    index, valid = p.tape.new(p.dim("2", 2), INT64, "positions of patches"), p.dim("2", 2)
    rows = ops.embedding(tape, weight, both, weight.itemsize, index)
    there = tape.new(valid, weight.itemsize, "masks of patches")
    rows = ops.with_constant(tape, rows, weight.itemsize, "positions", there)
    del there, index
    found = reduce(tape, rows, out, "positions")
    del rows
    return norm(p, last, ops.add(tape, x, found, "patch embeddings"), "h")


def looked_up(tape: Tape, table: Param, out: Dim, index: Tensor) -> Tensor:
    """``F.embedding(positions, table[i])``: its gradient is put into zeros of both axes' size."""
    whole, itemsize = table.dim, table.itemsize
    half = Dim(whole.symbol, whole.elements // 2)

    def backward(t: Tape, grads: Grads) -> Grads:
        one = t.gradient((half, itemsize), "position gradients")
        both = t.new(whole, itemsize, "position gradients", category="gradients")
        del one
        return (both,)

    return tape.new(out, itemsize, "positions", tape.node((table,), (index,), backward))


def position_block(p: Pass, block: Block, x: Tensor) -> Tensor:
    """A norm before and after attention, residual; a norm before and after the feed-forward, residual."""
    tape, outer = p.tape, block.feed_forward.norms
    with tape.at("attention"):
        hidden = norm(p, block.norms[0], x, "h")
        hidden, weights = attention(p, block, hidden)
        hidden = norm(p, block.norms[1], hidden, "h")
        residual = ops.add(tape, x, hidden, "residual stream")
        del weights
    with tape.at("feed-forward"):
        hidden = norm(p, outer[0], residual, "h")
        hidden = feed_forward(p, block, hidden)
        hidden = norm(p, outer[1], hidden, "h")
        return ops.add(tape, residual, hidden, "residual stream")


def clipped(p: Pass, block: Block, x: Tensor, linear: Linear, symbol: str, label: str) -> Tensor:
    """``Gemma4ClippableLinear``: what goes in and what comes out is clamped, where its weights are clipped."""
    if not block.clipped:
        return project(p, x, linear, symbol, label)
    x = clamp(p.tape, x, label)
    return clamp(p.tape, project(p, x, linear, symbol, label), label)


def clamp(tape: Tape, x: Tensor, label: str) -> Tensor:
    """``torch.clamp`` between two buffers: keeps its input; its backward compares that with both."""
    dim, itemsize = x.dim, x.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        compared = [t.gradient((dim, 1), "clamped or not") for _ in range(2 if t.in_place else 3)]
        result = t.gradient((dim, itemsize))
        del compared
        return (result,)

    return tape.new(dim, itemsize, label, tape.node((x,), (x,), backward))


def feed_forward(p: Pass, block: Block, x: Tensor) -> Tensor:
    """``down(act(gate(x)) * up(x))``."""
    spec = block.feed_forward
    gate, up, down = spec.linears
    product = ops.mul(
        p.tape,
        activate(p.tape, spec.activation, clipped(p, block, x, gate, "F", "gate")),
        clipped(p, block, x, up, "F", "up"),
        "feed-forward product",
    )
    return clipped(p, block, product, down, "h", "feed-forward output")


def attention(p: Pass, block: Block, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A norm of each head's queries, keys and values; queries and keys turned by both axes."""
    mixer = block.attention
    heads, width = mixer.num_heads, mixer.head_dim
    q = norm(p, mixer.norms[0], clipped(p, block, x, mixer.linears[0], "h", QKV), "h", "H", heads)
    q = turned(p, q)
    k = norm(p, mixer.norms[1], clipped(p, block, x, mixer.linears[1], "h", QKV), "h", "H", heads)
    k = turned(p, k)
    v = clipped(p, block, x, mixer.linears[2], "h", QKV)
    v = norm(p, Norm(name="v_norm", width=width, kind=BARE), v, "h", "H", heads)
    out, weights = attend(p, mixer, q, k, v)
    return clipped(p, block, out, mixer.linears[3], "h", "attention projection"), weights


def turned(p: Pass, x: Tensor) -> Tensor:
    """``apply_multidimensional_rope``: half of each head by one axis, half by the other."""
    tape, dim = p.tape, x.dim
    parts = ops.split(tape, x, 2, Dim(dim.symbol, dim.elements // 2))
    found = [rotary.turned(tape, part, p.mode.residual_itemsize) for part in parts]
    return ops.concatenate(tape, found, dim, "queries and keys after rotary")


def averaged_by_position(j: Joint, x: Tensor) -> Tensor:
    """Patches averaged into tokens, scaled in fp32, those that are there picked out; a norm, a linear module."""
    tape, part = j.tape, j.tower.projector
    pooled = picked(j, x)
    if j.tower.standardized:
        less = ops.scale(tape, pooled, "pooled states", shares_gradient=True)
        pooled = ops.with_constant(tape, less, FP32, "pooled states")
        del less
    pooled = ops.cast(tape, pooled, j.states.mode.residual_itemsize, "pooled states")
    del x
    j.model_locals.append(pooled)
    normed = norm(j.features, Norm(name="pre_projection_norm", width=j.tower.width, kind=BARE), pooled, "h")
    return listed(j, project(j.features, normed, part.linears[0], "h", "image tokens"))


def picked(j: Joint, x: Tensor) -> Tensor:
    """``Gemma4VisionPooler``, and ``hidden_states[pooler_mask]``."""
    tape, states = j.tape, j.states
    slots = j.images * (states.length // j.tower.rule.merge**2)
    small, kept = Dim("tokens·h", slots * j.tower.width), j.features.dim("h", j.tower.width)
    hidden = masked_fill(tape, x, tape.new(states.dim("1", 1), 1, "masks of patches"), "masked states")
    hidden = ops.scale(tape, ops.cast(tape, average(j, hidden, small), FP32, "pooled states"), "pooled states")
    index = tape.new(Dim("tokens", j.features.tokens), INT64, "tokens that are there")
    return tape.new(kept, FP32, "pooled states", tape.node((hidden,), (index, index), into_zeros(hidden)))


def average(j: Joint, x: Tensor, out: Dim) -> Tensor:
    """``_avg_pool_by_positions``: a product with a matrix that says which token each patch belongs to."""
    tape, states = j.tape, j.states
    matrix = Dim("patches·tokens", states.tokens * (states.length // j.tower.rule.merge**2))
    chosen = tape.new(matrix, INT64, "tokens of patches")
    wide = tape.new(matrix, FP32, "tokens of patches")
    del chosen
    weights = tape.new(matrix, FP32, "tokens of patches")
    del wide
    pooled = ops.matmul(tape, weights, ops.cast(tape, x, FP32, "masked states"), out, "pooled states")
    empty = tape.new(matrix, 1, "tokens without a patch")
    del empty
    return ops.cast(tape, pooled, x.itemsize, "pooled states")


def picked_by_position(j: Joint, x: Tensor) -> Tensor:
    """The states stay with the tower's outputs; a norm, a linear module, and the tokens that are there picked out."""
    tape, width = j.tape, j.tower.projector.linears[0].outputs
    j.model_locals.append(x)
    normed = norm(j.states, Norm(name="pre_projection_norm", width=j.tower.width, kind=BARE), x, "h")
    tokens = project(j.states, normed, j.tower.projector.linears[0], "h", "image tokens")
    del normed, x
    index = tape.new(Dim("tokens", j.features.tokens), INT64, "tokens that are there")
    kept = j.features.dim("h", width)
    node = tape.node((tokens,), (index, index), into_zeros(tokens))
    return listed(j, tape.new(kept, tokens.itemsize, "image tokens", node))
