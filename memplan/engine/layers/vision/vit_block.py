"""Blocks of a vision tower as programs on the tape, and what all of them share: tables of rotary positions, and masks.

Variables live as in transformers 5.23 (``modeling_clip.py``, ``modeling_siglip.py``, ``modeling_internvl.py``,
``modeling_qwen2_vl.py`` and its kin). A pass has a row a tile, or one of all patches if packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.layers.attention.eager import masked, weighted
from memplan.engine.layers.attention.fused_kernel import aligned_bias, fused_attention
from memplan.engine.layers.attention.sdpa import grouped_math
from memplan.engine.layers.feed_forward import feed_forward
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.rotary import turned
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.parts import Bare
from memplan.spec.vision import Block, VisionAttention

if TYPE_CHECKING:
    from memplan.engine.layers.vision.tower_ends import TowerPlan


QKV = "queries, keys, values"
TILES = "mask of tiles"
"""What all blocks are given beside the states, where tiles of an image stand in one sequence."""


def vit_block(p: Pass, block: Block, x: Tensor) -> Tensor:
    """Norm, attention, residual; norm, feed-forward, residual; each branch scaled where the tower does so."""
    tape = p.tape
    with tape.at("attention"):
        hidden = norm(p, block.norms[0], x, "h")
        hidden, weights = vision_attention(p, block.attention, hidden)
        hidden = _scaled(p, block.scales[:1], hidden)
        hidden = _gated(p, block.gates[:1], hidden)
        residual = ops.add(tape, x, hidden, "residual stream")
    with tape.at("feed-forward"):
        hidden = norm(p, block.norms[1], residual, "h")
        hidden = feed_forward(p, block.feed_forward, hidden)
        hidden = _scaled(p, block.scales[1:], hidden)
        hidden = _gated(p, block.gates[1:], hidden)
        out = ops.add(tape, residual, hidden, "residual stream")
    del weights  # ``_`` of ``hidden_states, _ = self.self_attn(…)`` (SiglipEncoderLayer.forward)
    return out


def _scaled(p: Pass, scales: tuple[Bare, ...], x: Tensor) -> Tensor:
    """InternVL's layer scale: a factor for each element."""
    for bare in scales:
        return ops.mul(p.tape, x, p.param(bare.name, bare.parameters), "scaled branch")
    return x


def _gated(p: Pass, gates: tuple[Bare, ...], x: Tensor) -> Tensor:
    """``gate.tanh() * x`` (Llama 3.2 Vision)."""
    for bare in gates:
        gate = ops.unary(p.tape, p.param(bare.name, bare.parameters), "gates", saves="result")
        return ops.mul(p.tape, x, gate, "gated branch")
    return x


def vision_attention(p: Pass, mixer: VisionAttention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Attention of all patches of an image to each other. Also returns eager's probabilities."""
    tape, label = p.tape, QKV
    dim = p.dim("h", mixer.num_heads * mixer.head_dim)
    if len(mixer.linears) == 2:
        q, k, v = ops.split(tape, project(p, x, mixer.linears[0], "3h", label), 3, dim)
    else:
        q, k, v = (project(p, x, linear, "h", label) for linear in mixer.linears[:3])
    if mixer.norms:
        q, k = norm(p, mixer.norms[0], q, "h"), norm(p, mixer.norms[1], k, "h")
    if mixer.rotary != "none":
        q, k = _rotate(p, mixer, q, k)
    joined = mixer.joined and p.mode.operators.attention != "flash"
    by_image = mixer.packed and not mixer.blocked and not joined
    if by_image:
        q, k, v = (ops.split(tape, each, 1, dim)[0] for each in (q, k, v))
    out, weights = attend(p, mixer, q, k, v)
    if by_image:
        out = ops.concatenate(tape, (out,), dim, "attention output")
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def attend(p: Pass, mixer: VisionAttention, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """Attention as one kernel or as eager operations, and eager's probabilities."""
    if p.mode.operators.attention == "eager":
        return _eager(p, mixer, q, k, v)
    q, k, v = (ops.autocast_input(p.tape, each) for each in (q, k, v))
    if mixer.joined and p.mode.operators.attention == "sdpa":
        return _joined(p, mixer, q, k, v), None
    bias = _bias(p, mixer, q.itemsize) if p.mode.operators.attention == "sdpa" else None
    return fused_attention(p.tape, q, k, v, p.dim("H", mixer.num_heads), q.dim, bias, unpads=p.mode.unpads), None


def _joined(p: Pass, mixer: VisionAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All patches at once, under a mask that each block makes anew (transformers 4.45 to 4.52 modeling_qwen2_vl.py:
    VisionSdpaAttention): the memory-efficient kernel, or PyTorch's own operations for queries without a row
    (aten/native/transformers/cuda/sdp_utils.cpp: check_tensor_shapes). Measured: 12,960 patches without a graph take
    20.6 GB more than flash attention, two tensors of fp32 pairs of 16 heads (huggingface/transformers#37363)."""
    mask = p.tape.new(Dim("T²", p.tokens * p.tokens), 1, "mask of images")
    if mixer.joined == "math":
        out = grouped_math(p, mixer, q, k, v, q.dim, p.tokens)
    else:
        bias = aligned_bias(p.tape, p.tokens, p.tokens, q.itemsize)
        out = fused_attention(p.tape, q, k, v, p.dim("H", mixer.num_heads), q.dim, bias)
    del mask  # a local of the attention's forward
    return out


def _bias(p: Pass, mixer: VisionAttention, itemsize: int) -> Tensor | None:
    """What the kernel adds to scores, where there is a mask."""
    if mixer.blocked:
        return _block_bias(p, itemsize)
    if TILES in p.shared:
        return p.shared[TILES]
    return aligned_bias(p.tape, p.tokens, p.length, itemsize) if p.mode.padded else None


def _block_bias(p: Pass, itemsize: int) -> Tensor | None:
    """The mask of blocks as the kernel takes it: shared by all, but for autocast's cast and for padded rows."""
    pairs = Dim("T²", p.tokens * p.tokens)
    made = p.tape.new(pairs, itemsize, "attention bias") if itemsize != p.mode.residual_itemsize else None
    if p.tokens % 8:
        made = p.tape.new(Dim("T²", p.tokens * -(-p.tokens // 16) * 16), itemsize, "attention bias")
    return made


def _rotate(p: Pass, mixer: VisionAttention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb_vision``: in fp32, and back; Pixtral's in its tables' dtype; Llama 4's complex."""
    tape, before = p.tape, q.itemsize
    if mixer.rotary == "narrow":
        turned_q = turned(tape, q, p.mode.residual_itemsize)
        return turned_q, turned(tape, k, p.mode.residual_itemsize)
    wide_q, wide_k = (ops.cast(tape, each, ops.FP32, "rotary in fp32") for each in (q, k))
    if mixer.rotary == "complex":
        turned_q, turned_k = (ops.with_constant(tape, each, ops.FP32, "rotary") for each in (wide_q, wide_k))
        del wide_q, wide_k  # ``q, k = q.float(), k.float()`` are rebound by what turns them
    else:
        turned_q, turned_k = turned(tape, wide_q, ops.FP32), turned(tape, wide_k, ops.FP32)
    return ops.cast(tape, turned_q, before, "rotated"), ops.cast(tape, turned_k, before, "rotated")


def _eager(p: Pass, mixer: VisionAttention, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scores, scaling, fp32 softmax, low-precision probabilities; a mask where images stand in one sequence."""
    tape, dim = p.tape, q.dim
    length = p.tokens if mixer.blocked or mixer.joined else min(mixer.window_patches or p.length, p.length)
    scores = Dim("T·H·s", p.tokens * length * mixer.num_heads)
    batched = p.rows > 1 and not mixer.packed  # then products see copies of what lies across heads
    queries, keys = (ops.copy(tape, each, "queries and keys") if batched else each for each in (q, k))
    weights = ops.scale(tape, ops.matmul(tape, queries, keys, scores, "attention scores"), "attention scores")
    del queries, keys  # copies that ``matmul`` makes of strided operands, not locals
    if mixer.blocked or mixer.joined or mixer.tiled or p.mode.padded:
        weights = masked(p, weights, weights.itemsize if mixer.tiled else p.mode.residual_itemsize)
    held = [weights]
    del weights  # rebound by softmax
    wide, copied = mixer.wide_softmax or tape.autocast > 0, "values" if batched else ""
    return weighted(p, held, v, dim, q.itemsize, copied=copied, wide=wide)


FP32 = 4


def rotary_tables(plan: TowerPlan) -> int:
    """cos and sin of every patch, which all blocks share."""
    attention = plan.tower.runs[0].block.attention if plan.tower.runs else None
    if attention is None or attention.rotary in ("none", "complex"):
        return 0
    itemsize = plan.vision_mode.residual_itemsize if attention.rotary == "narrow" else FP32
    return 2 * patches_of(plan) * attention.head_dim * itemsize


def patches_of(plan: TowerPlan) -> int:
    """Patches of all images."""
    return plan.rows * plan.images.per_example * plan.images.rows * plan.images.columns


def block_mask(plan: TowerPlan) -> int:
    """A mask of blocks, in the dtype of the residual stream, which all blocks share; or that of tiles that are filled
    up, which is of booleans but for eager attention."""
    if not plan.tower.runs:
        return 0
    if plan.images.masked and plan.mode.operators.attention != "flash":
        patches = plan.images.rows * plan.images.columns
        itemsize = plan.vision_mode.residual_itemsize if plan.mode.operators.attention == "eager" else 1
        return patches_of(plan) * plan.images.squares * patches * itemsize
    if not plan.tower.runs[0].block.attention.blocked or plan.mode.operators.attention == "flash":
        return 0
    return patches_of(plan) ** 2 * plan.vision_mode.residual_itemsize


def keeps_mask(plan: TowerPlan) -> bool:
    """Whether a backward needs that mask itself: checkpoints, and kernels that take it as it is."""
    if plan.style != "plain":
        return plan.style != "no-grad"
    if plan.images.masked:
        return False
    as_it_is = not plan.mode.numerics.autocast or plan.vision_mode.residual_itemsize == plan.mode.numerics.autocast
    return plan.mode.operators.attention == "sdpa" and as_it_is and not patches_of(plan) % 8
