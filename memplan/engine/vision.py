"""Blocks of a vision tower as programs on the tape, and the patch embedding in front of them.

Variables live as in transformers 5.23 (``modeling_clip.py``, ``modeling_siglip.py``, ``modeling_internvl.py``,
``modeling_qwen2_vl.py`` and its kin). A pass has a row for each tile, or one row of all patches where they are packed.
"""

from __future__ import annotations

from memplan.engine import ops
from memplan.engine.feed_forward import feed_forward
from memplan.engine.graph import Node, Tensor
from memplan.engine.kernels import fused_attention
from memplan.engine.modules import Pass, norm, project
from memplan.engine.tags import Dim
from memplan.spec.parts import Bare
from memplan.spec.vision import Block, Tower, VisionAttention


def vit_block(p: Pass, block: Block, x: Tensor) -> Tensor:
    """Norm, attention, residual; norm, feed-forward, residual; each branch scaled where the tower does so."""
    tape = p.tape
    with tape.at("attention"):
        hidden = norm(p, block.norms[0], x, "h")
        hidden, weights = vision_attention(p, block.attention, hidden)
        hidden = _scaled(p, block.scales[:1], hidden)
        residual = ops.add(tape, x, hidden, "residual stream")
    with tape.at("feed-forward"):
        hidden = norm(p, block.norms[1], residual, "h")
        hidden = feed_forward(p, block.feed_forward, hidden)
        hidden = _scaled(p, block.scales[1:], hidden)
        out = ops.add(tape, residual, hidden, "residual stream")
    del weights
    return out


def _scaled(p: Pass, scales: tuple[Bare, ...], x: Tensor) -> Tensor:
    """InternVL's layer scale: a factor for each element."""
    for bare in scales:
        return ops.mul(p.tape, x, p.param(bare.name, bare.parameters), "scaled branch")
    return x


def vision_attention(p: Pass, mixer: VisionAttention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Attention of all patches of an image to each other. Also returns eager's probabilities."""
    tape, label = p.tape, "queries, keys, values"
    dim = p.dim("h", mixer.num_heads * mixer.head_dim)
    if len(mixer.linears) == 2:
        q, k, v = ops.split(tape, project(p, x, mixer.linears[0], "3h", label), 3, dim)
    else:
        q, k, v = (project(p, x, linear, "h", label) for linear in mixer.linears[:3])
    if mixer.norms:
        q, k = norm(p, mixer.norms[0], q, "h"), norm(p, mixer.norms[1], k, "h")
    if mixer.rotary != "none":
        q, k = _rotate(p, mixer, q, k)
    weights = None
    if mixer.packed:
        q, k, v = (ops.split(tape, each, 1, dim)[0] for each in (q, k, v))
    if p.mode.attention == "eager":
        out, weights = _eager(p, mixer, q, k, v)
    else:
        q, k, v = (ops.autocast_input(tape, each) for each in (q, k, v))
        out = fused_attention(tape, q, k, v, p.dim("H", mixer.num_heads), dim)
    if mixer.packed:
        out = ops.concatenate(tape, (out,), dim, "attention output")
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def _rotate(p: Pass, mixer: VisionAttention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb_vision``: in fp32, and back."""
    tape, before = p.tape, q.itemsize
    wide_q, wide_k = (ops.cast(tape, each, ops.FP32, "rotary in fp32") for each in (q, k))
    turned_q, turned_k = _turn(p, wide_q), _turn(p, wide_k)
    return ops.cast(tape, turned_q, before, "rotated"), ops.cast(tape, turned_k, before, "rotated")


def _turn(p: Pass, x: Tensor) -> Tensor:
    tape, half = p.tape, Dim(x.dim.symbol, x.dim.elements // 2)
    straight = ops.with_constant(tape, x, x.itemsize, "rotary")
    first, second = ops.view(tape, x, half, whole=False), ops.view(tape, x, half, whole=False)
    turned = ops.concatenate(tape, (ops.scale(tape, second, "rotary"), first), x.dim, "rotary")
    del first, second
    crossed = ops.with_constant(tape, turned, x.itemsize, "rotary")
    del turned
    return ops.add(tape, straight, crossed, "queries and keys after rotary")


def _eager(p: Pass, mixer: VisionAttention, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scores, scaling, fp32 softmax, probabilities in the low precision; no mask."""
    tape, dim = p.tape, q.dim
    length = min(mixer.window_patches or p.length, p.length)
    scores = Dim("T·H·s", p.tokens * length * mixer.num_heads)
    weights = ops.scale(tape, ops.matmul(tape, q, k, scores, "attention scores"), "attention scores")
    weights = ops.softmax(tape, weights, "attention probabilities", half_to_float=p.mode.half_to_float)
    weights = ops.cast(tape, weights, q.itemsize, "attention probabilities")
    out = ops.matmul(tape, weights, v, dim, "attention output")
    return ops.copy(tape, out, "attention output"), weights


HOOKED = ("clip", "siglip", "internvit", "qwen2_vl", "qwen2_5_vl")
"""Towers whose patch embedding ``enable_input_require_grads`` finds."""


def embed_patches(p: Pass, tower: Tower, pixels: Tensor, patches: int, leaf: bool = False) -> Tensor:
    """Pixels in the weights' dtype, the convolution over patches, class token, positions, a norm before the blocks.

    ``leaf``: the convolution's output is made to need a gradient, and is kept until that has come.
    """
    tape, part = p.tape, tower.embedding
    bare = {each.name: each for each in part.tensors}
    kernel = next(each for each in part.tensors if len(each.shape) > 2 and each.shape[0] == tower.width)
    cast = ops.cast(tape, pixels, p.mode.weight_itemsize, "pixels")
    out = Dim("patches·h", p.rows * patches * tower.width)
    x = ops.linear(tape, cast, p.param(kernel.name, kernel.parameters), out, "patch embeddings")
    if leaf and x.node is None and tower.kind in HOOKED and tape.grad_enabled:
        kept = () if tower.kind == "qwen2_vl" else (x.storage,)
        x = Tensor(x.dim, x.itemsize, x.storage, Node(tape, [], kept, lambda t, grads: ()))
    whole = p.dim("h", tower.width)
    if tower.kind == "qwen2_5_vl":
        x = ops.copy(tape, x, "patches by window")
    token = next((bare[name] for name in ("class_embedding", "cls_token") if name in bare), None)
    if token:
        rows = ops.expand(tape, p.param(token.name, token.parameters), Dim("rows·h", p.rows * tower.width))
        x = ops.concatenate(tape, (x, rows), whole, "patch embeddings")
    x = Tensor(whole, x.itemsize, x.storage, x.node, x.slot)
    table = next((bare[name] for name in ("position_embedding", "position_embeddings") if name in bare), None)
    if table:
        weight = p.param(table.name, table.parameters)
        looked_up = table.name == "position_embedding"
        found = ops.embedding(tape, weight, weight.dim, weight.itemsize) if looked_up else weight
        x = ops.add(tape, x, ops.expand(tape, found, whole), "patch embeddings")
    if "pos_embed" in bare:
        weight = p.param("pos_embed", bare["pos_embed"].parameters)
        found = ops.cast(tape, ops.embedding(tape, weight, whole, weight.itemsize), x.itemsize, "patch embeddings")
        x = ops.add(tape, x, found, "patch embeddings")
    for each in part.norms:
        x = norm(p, each, x, "h")
    return x
