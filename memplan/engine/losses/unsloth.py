"""Unsloth's losses, in chunks: cross-entropy, whose gradients are made in forward (unsloth-zoo 2026.8
fused_losses/cross_entropy_loss.py: UnslothFusedLoss), and the log-probabilities of GRPO (rl_replacements.py). Read from
the source; what the compiled chunks keep is as torch 2.13 saves it on a CPU. Not measured on a card."""

from memplan.engine.layers.modules import Pass
from memplan.engine.losses.chunked_heads import chunk_logits
from memplan.engine.losses.scored import Scored, sizes
from memplan.engine.tape import loss_ops, ops, routing_ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.units import MiB, ceil_div

CHUNK_BYTES = 4096 * MiB
"""A chunk's logits in fp32 take at most this much, or half of what is free on the card (``_get_chunk_multiplier``)."""


def chunk_count(tokens: int, vocabulary: int, free: int = 0) -> int:
    """Chunks of the loss: one where fp32 logits fit its target, else the next multiple of 4 (``get_chunk_size``).
    ``free``: bytes of the card when the first loss of the process begins, which stays the measure (a cache)."""
    target = min(CHUNK_BYTES, free // 2 or 1) if free else CHUNK_BYTES
    size = tokens * vocabulary * ops.FP32
    return 1 if size <= target else 4 * ceil_div(size, 4 * target)


def _chunks(p: Pass, hidden: Tensor, weight: Param, free: int, compiled: bool) -> Tensor:
    """Gradients of hidden states (and a trained head) are made in forward, by chunk; backward scales copies.

    A chunk's logits and gradient in the compute dtype if compiled; eager: logits, fp32 copy, log-softmax, and back."""
    tape, itemsize, hidden_size, hidden_dim = p.tape, weight.itemsize, hidden.itemsize, hidden.dim
    _, vocabulary = sizes(p, hidden, weight)
    part = Dim("V chunk", ceil_div(p.tokens, chunk_count(p.tokens, vocabulary, free)) * vocabulary)
    wants_weight, weight_dim, weight_size = weight.needs_grad and tape.grad_enabled, weight.dim, weight.itemsize
    of_hidden = tape.new(hidden_dim, hidden_size, "hidden gradient made in forward")
    of_head = None
    if wants_weight:
        of_head = tape.new(weight_dim, weight_size, "head gradient made in forward", category="gradients")
    logits = tape.new(part, itemsize, "logits of a chunk")
    if compiled:
        gradient = tape.new(part, itemsize, "logits' gradient of a chunk")
    else:
        wide = tape.new(part, ops.FP32, "logits of a chunk in fp32")
        scores = tape.new(part, ops.FP32, "log-softmax of a chunk")
        del wide
        wide = tape.new(part, ops.FP32, "logits' gradient of a chunk in fp32")
        del scores
        gradient = tape.new(part, itemsize, "logits' gradient of a chunk")
        del wide
    if wants_weight:
        piece = tape.new(weight_dim, weight_size, "head gradient of a chunk", category="gradients")
        del piece
    del logits, gradient

    def backward(t: Tape, grads: Grads) -> Grads:
        scaled = t.gradient((hidden_dim, hidden_size))
        of_weight = None
        if wants_weight:
            of_weight = t.new(weight_dim, weight_size, "weight gradients", category="gradients")
        return (scaled, of_weight)

    node = tape.node((hidden, weight), (of_hidden, of_head), backward)
    return tape.new(Dim("1", 1), ops.FP32, "loss", node)


def chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """``unsloth_fused_ce_loss`` where torch.compile does not take it."""
    return _chunks(p, hidden, weight, scored.free, compiled=False)


def compiled_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """``unsloth_fused_ce_loss``, compiled, as it is by default."""
    return _chunks(p, hidden, weight, scored.free, compiled=True)


CHUNKS_OF_A_ROW, TOKENS_OF_A_CHUNK = 4, 4096
"""At least so many, and one for so many tokens of it (unsloth-zoo 2026.8 rl_replacements.py:
autotune_batch_and_chunks)."""


def _log_probs(p: Pass, hidden: Tensor, weight: Param, scored: Scored, compiled: bool) -> Tensor:
    """Log-probabilities of completions, chunk by chunk: the compiler keeps each chunk's logits for backward as the
    head made them, and makes their gradient in one kernel; eager code keeps an fp32 copy (rl_replacements.py:
    chunked_hidden_states_selective_log_softmax). Mini-batches of rows share one graph, and so change nothing."""
    tape, (width, _) = p.tape, sizes(p, hidden, weight)
    hidden = routing_ops.gather_rows(tape, hidden, Dim("N·h", scored.tokens * width), "scored hidden states")
    chunks = scored.rows * max(CHUNKS_OF_A_ROW, p.tokens // scored.rows // TOKENS_OF_A_CHUNK)
    tokens = Dim("N chunk", ceil_div(scored.tokens, chunks))
    found = []
    for piece in ops.split(tape, hidden, chunks, Dim("N·h chunk", tokens.elements * width)):
        logits = chunk_logits(p, piece, weight, scored, tokens.elements)
        wide = logits if compiled else ops.cast(tape, logits, ops.FP32, "logits of a chunk in fp32")
        found.append(loss_ops.nll(tape, wide, tokens) if compiled else loss_ops.logsumexp(tape, wide, tokens))
        del logits, wide
    return ops.concatenate(tape, found, Dim("N", scored.tokens), "log-probabilities")


def log_probs(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Where torch.compile does not take them."""
    return _log_probs(p, hidden, weight, scored, compiled=False)


def compiled_log_probs(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """As they are by default."""
    return _log_probs(p, hidden, weight, scored, compiled=True)
