"""Liger's fused heads: gradients of hidden states and head are made in forward, a chunk at a time, and kept."""

from functools import partial

from memplan.engine.layers.modules import Pass
from memplan.engine.losses.scored import Scored, made_in_forward, sizes
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tape.turns import turns
from memplan.units import ceil_div


def liger_chunk(tokens: int, width: int, vocabulary: int) -> int:
    """Tokens of a chunk: logits of a chunk about as large as the hidden states."""
    rounds = ceil_div(vocabulary, width)
    return min(tokens, 1 << (ceil_div(tokens, rounds) - 1).bit_length())


def liger(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Liger's fused linear cross-entropy: gradients of hidden states and head are made in forward and kept.

    A chunk's buffer of logits becomes its gradient (liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py)."""
    tape, itemsize = p.tape, p.tape.autocast or hidden.itemsize
    width, vocabulary = sizes(p, hidden, weight)
    chunk = liger_chunk(p.tokens, width, vocabulary)
    part, hidden_dim, weight_dim = Dim("V chunk", chunk * vocabulary), hidden.dim, weight.dim
    grads_on = tape.grad_enabled and (hidden.needs_grad or weight.needs_grad)
    grad_input = tape.new(hidden_dim, hidden.itemsize, "hidden gradient made in forward")
    grad_weight = None
    if grads_on and weight.needs_grad:
        grad_weight = tape.new(weight_dim, weight.itemsize, "head gradient made in forward", category="gradients")
    losses = tape.new(p.dim("1", 1), ops.FP32, "loss of each token")
    logits = tape.new(part, itemsize, "logits of a chunk")
    if weight.itemsize != itemsize:  # autocast keeps the copy of a trained leaf, not that of its transpose
        copies = 2 if weight.needs_grad else 1
        casts = [tape.new(weight_dim, itemsize, "head in the compute dtype") for _ in range(copies)]
        del casts
    del logits, losses

    return made_in_forward(tape, (hidden, weight), (grad_input, grad_weight))


def foak_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """foak's copy of Liger's function of 2024: hidden states without each row's last position, logits of a chunk cast
    to fp32 and back, and a scaled gradient beside them. ``logits_chunk`` and ``grad_logits_chunk`` are named until
    the next chunk's are there (fms-acceleration-foak 0.7, fused_ops/liger_ce/fused_linear_cross_entropy_loss.py)."""
    tape, itemsize = p.tape, p.tape.autocast or hidden.itemsize
    width, vocabulary = sizes(p, hidden, weight)
    tokens = p.tokens - scored.rows
    source = ops.view(tape, hidden, Dim("N·h", tokens * width), whole=False)
    source = ops.copy(tape, source, "hidden states, shifted") if scored.rows > 1 else source
    grad_weight = None
    if weight.needs_grad:
        grad_weight = tape.new(weight.dim, weight.itemsize, "head gradient made in forward", category="gradients")
    grad_input = tape.new(source.dim, source.itemsize, "hidden gradient made in forward")
    losses = tape.new(Dim("N", tokens), ops.FP32, "loss of each token")
    chunk = liger_chunk(tokens, width, vocabulary)
    logits = scaled = None
    for turn in turns(tape, ceil_div(tokens, chunk)):
        rows = min(chunk, tokens - turn * chunk)
        part = Dim("V chunk", rows * vocabulary)
        logits = _product_of_chunk(tape, part, weight, itemsize)
        logits = ops.cast(tape, logits, ops.FP32, "logits of a chunk in fp32")
        logits = ops.cast(tape, logits, itemsize, "logits of a chunk")
        scaled = tape.new(part, itemsize, "scaled gradient of a chunk", category="logits")
        tape.new(Dim("chunk·h", rows * width), itemsize, "hidden gradient of a chunk")
    del losses, logits, scaled  # locals of ``fused_linear_cross_entropy_forward``
    return made_in_forward(tape, (source, weight), (grad_input, grad_weight))


def _product_of_chunk(tape: Tape, part: Dim, weight: Param, itemsize: int) -> Tensor:
    """``_input_chunk @ weight.t()``; autocast keeps no copy of what is transposed."""
    if weight.itemsize == itemsize:
        return tape.new(part, itemsize, "logits of a chunk")
    copy = tape.new(weight.dim, itemsize, "head in the compute dtype")
    logits = tape.new(part, itemsize, "logits of a chunk")
    del copy
    return logits


def liger_preference(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Liger's fused preference losses: a pair at a time (KTO's: a row), with gradients made in forward.

    Within a pair, eager: logits, their fp32 copy and log-softmax, and back: gather's scatter, log-softmax's gradient,
    its cast, the head's gradient. torch.compile, on by default, fuses some of it: an upper figure (liger-kernel
    0.8.5, chunked_loss/fused_linear_preference.py)."""
    tape, itemsize = p.tape, p.tape.autocast or hidden.itemsize
    width, vocabulary = sizes(p, hidden, weight)
    count = 2 if scored.pairs else 1
    pair = count * p.tokens // scored.rows
    part, part_hidden = Dim("V pair", pair * vocabulary), Dim("pair·h", pair * width)
    weight_dim, hidden_size = weight.dim, hidden.itemsize
    grads_on = tape.grad_enabled and (hidden.needs_grad or weight.needs_grad)
    wants_weight = grads_on and weight.needs_grad
    shifted = [tape.new(hidden.dim, hidden_size, "hidden states, shifted")]
    if scored.reference_itemsize:
        shifted.append(tape.new(hidden.dim, scored.reference_itemsize, "reference hidden states"))
    total = None
    if wants_weight:
        total = tape.new(weight_dim, weight.itemsize, "head gradient made in forward", category="gradients")
    pairs = turns(tape, scored.rows // count)
    pieces = [tape.new(part_hidden, hidden_size, "hidden gradient of a pair") for _ in pairs]
    inputs = tape.new(part_hidden, hidden_size, "hidden states of a pair")
    logits = tape.new(part, itemsize, "logits of a pair")
    wide = tape.new(part, ops.FP32, "logits of a pair in fp32")
    kept = tape.new(part, ops.FP32, "log-softmax of a pair")
    del wide
    theirs = []
    if scored.reference_itemsize:
        theirs.append(tape.new(part, scored.reference_itemsize, "reference logits of a pair"))
        wide = tape.new(part, ops.FP32, "reference logits of a pair in fp32")
        scores = tape.new(part, ops.FP32, "reference log-softmax of a pair")
        del wide, scores
    if grads_on:
        scatter = tape.gradient((part, ops.FP32))
        wide = tape.gradient((part, ops.FP32))
        del scatter, kept
        low = tape.gradient((part, itemsize))
        del wide
        if wants_weight:
            piece = tape.new(weight_dim, weight.itemsize, "head gradient of a pair", category="gradients")
            del piece
        del low
    theirs.clear()
    del logits, inputs
    result = tape.new(hidden.dim, hidden_size, "hidden gradient made in forward") if grads_on else None
    pieces.clear()
    shifted.clear()
    if result is None:
        return tape.new(Dim("1", 1), ops.FP32, "loss")
    return made_in_forward(tape, (hidden, weight), (result, total))


ROWS, COLUMNS = 2048, 4096
"""Positions and vocabulary of a block (liger-kernel 0.8.5, chunked_loss/fused_linear_ppo.py)."""


def liger_policy(p: Pass, hidden: Tensor, weight: Param, scored: Scored, before_blocks: bool) -> Tensor:
    """``LigerFusedLinearPPOBase.forward``. h hidden, V vocabulary, T completion tokens of one sequence, N of the pass.

    Kept until backward: gradients of the completions' hidden states [N, h] and of the head [V, h], in their own dtypes.
    Beside them, for a sequence: from liger-kernel 0.8 blocks of fp32 logits and fp32 gradients [T, h] and [V, h], then
    their casts; before it logits [T, V], their fp32 copy and log-softmax, and the way back, as eager torch.
    ``before_blocks``: the trainer runs with either version, so the one that takes more counts. The head's gradient is
    made for a frozen head too (0.8.0 to 0.8.2; 0.8.5 leaves it out). Ignored: terms of a token (log-probabilities)."""
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
