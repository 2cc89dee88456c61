"""Liger's fused GRPO loss: a sequence at a time, gradients of hidden states and head made in forward and kept."""

from functools import partial

from memplan.engine.layers.modules import Pass
from memplan.engine.losses.scored import Scored, sizes
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tape.turns import turns

ROWS, COLUMNS = 2048, 4096
"""Positions and vocabulary of a block (liger-kernel 0.8.5, chunked_loss/fused_linear_ppo.py)."""


def liger_policy(p: Pass, hidden: Tensor, weight: Param, scored: Scored, before_blocks: bool) -> Tensor:
    """``LigerFusedLinearPPOBase.forward``. h hidden, V vocabulary, T completion tokens of one sequence, N of the pass.

    Kept until backward: gradients of the completions' hidden states [N, h] and of the head [V, h], in their own dtypes.
    Beside them, for a sequence: from liger-kernel 0.8 blocks of fp32 logits and fp32 gradients [T, h] and [V, h], then
    their casts; before it logits [T, V], their fp32 copy and log-softmax, and the way back, as eager torch.
    ``before_blocks``: the trainer runs with either version, so the one that takes more counts. The head's gradient is
    made for a frozen head too (0.8.0 to 0.8.2; 0.8.5 leaves it out). Ignored: terms of a token (log-probabilities).
    """
    tape = p.tape
    width, vocabulary = sizes(p, hidden, weight)
    length = scored.tokens // scored.rows
    mine = Dim("T·h", length * width)
    total = tape.new(weight.dim, weight.itemsize, "head gradient made in forward", category="gradients")
    pieces = [tape.new(mine, hidden.itemsize, "hidden gradient of a sequence") for _ in turns(tape, scored.rows)]
    _blocks(tape, weight, length, width, hidden.itemsize)
    if before_blocks:
        _whole(tape, weight, Dim("T·V", length * vocabulary), p.tape.autocast or hidden.itemsize)
    joined = tape.new(Dim("N·h", scored.tokens * width), hidden.itemsize, "hidden gradient made in forward")
    pieces.clear()
    whole, itemsize, wants = hidden.dim, hidden.itemsize, weight.needs_grad

    def backward(t: Tape, grads: list[Tensor | None]) -> list[Tensor | None]:
        padded = t.gradient((whole, itemsize), "gradient of all positions")  # of ``[:, :-1]``, of ``[:, -T:]``
        return [t.gradient((whole, itemsize)) if padded is not None else None, total if wants else None]

    node = tape.node((hidden, weight), (joined, total), backward)
    return tape.new(Dim("1", 1), ops.FP32, "loss", node)


def _blocks(tape: Tape, weight: Param, length: int, width: int, itemsize: int) -> None:
    """``_selective_logprob_backward``: a block's logits, probabilities and gradient, products of fp32 copies."""
    wide = tape.new(Dim("T·h", length * width), ops.FP32, "hidden gradient of a sequence in fp32")
    wide_weight = tape.new(weight.dim, ops.FP32, "head gradient in fp32", category="logits")
    block = Dim("block", min(length, ROWS) * COLUMNS)
    held = [tape.new(block, ops.FP32, "logits of a block in fp32") for _ in range(3)]  # probabilities, gradient
    last = [tape.new(block, ops.FP32, "logits of a block in fp32") for _ in range(2)]  # shifted; the last block's
    last.clear()
    part = Dim("block·h", COLUMNS * width)
    held += [tape.new(part, ops.FP32, "head of a block in fp32") for _ in ("copy", "product")]
    held.clear()
    narrow = tape.new(Dim("T·h", length * width), itemsize, "hidden gradient of a sequence")
    piece = tape.new(weight.dim, weight.itemsize, "head gradient of a sequence", category="gradients")
    del wide, wide_weight, narrow, piece


def _whole(tape: Tape, weight: Param, part: Dim, itemsize: int) -> None:
    """``_compute_chunk_loss`` (liger-kernel 0.5.8 to 0.7): ``grad_and_value`` over logits of a whole sequence."""
    logits = tape.new(part, itemsize, "logits of a sequence")
    wide = tape.new(part, ops.FP32, "logits of a sequence in fp32")
    kept = tape.new(part, ops.FP32, "log-softmax of a sequence")
    del wide
    scatter = tape.gradient((part, ops.FP32))
    wide = tape.gradient((part, ops.FP32))
    del scatter, kept
    low = tape.gradient((part, itemsize))
    del wide
    piece = tape.new(weight.dim, weight.itemsize, "head gradient of a sequence", category="gradients")
    del low, piece, logits


by_version = partial(liger_policy, before_blocks=True)
in_blocks = partial(liger_policy, before_blocks=False)
