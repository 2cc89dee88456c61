"""DeepSeek sparse attention as a program on the tape: an indexer scores pairs of tokens, and the best become a mask.

Nothing of it has a gradient (``DeepseekV32Indexer.forward`` runs under ``no_grad``), so that all is gone when the layer
is; but its scores, s × s for every head in fp32, can be the layer's peak."""

from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.attention_kinds import Indexer

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
