"""DeepSeek sparse attention as a program on the tape: an indexer scores every pair of tokens, and the best become a mask.

Nothing of it has a gradient (``DeepseekV32Indexer.forward`` runs under ``no_grad``), so that all is gone when the layer
is; but its scores, s × s for every head in fp32, can be the layer's peak.
"""

from __future__ import annotations

from memplan.engine import ops
from memplan.engine.modules import Pass, norm, project
from memplan.engine.tags import Dim
from memplan.engine.tape import Tensor
from memplan.spec.latent import Indexer

INT32, INT64 = 4, 8


def chosen_tokens(p: Pass, spec: Indexer, x: Tensor, latent: Tensor) -> Tensor:
    """Indices of the tokens that each query attends to, in int32."""
    tape = p.tape
    grad_enabled, tape.grad_enabled = tape.grad_enabled, False
    scores = index_scores(p, spec, x, latent)
    kept = p.dim("topk", min(spec.topk, p.length))
    values, index = tape.new(kept, scores.itemsize, "index scores"), tape.new(kept, INT64, "chosen tokens")
    chosen = ops.cast(tape, Tensor(kept, INT64, index.storage), INT32, "chosen tokens")
    tape.grad_enabled = grad_enabled
    del values
    return chosen


def index_scores(p: Pass, spec: Indexer, x: Tensor, latent: Tensor) -> Tensor:
    """``relu(q · k) · weights`` summed over the indexer's heads: a score for each pair of tokens."""
    tape, heads, width = p.tape, spec.heads, spec.width
    to_q, to_k, to_weights = spec.linears
    q = project(p, latent, to_q, "Hi·di", "index queries")
    k = norm(p, spec.norms[0], project(p, x, to_k, "di", "index keys"), "di")
    q_turned = tape.new(q.dim, max(q.itemsize, p.mode.residual_itemsize), "index queries")
    k_turned = tape.new(k.dim, max(k.itemsize, p.mode.residual_itemsize), "index keys")
    pairs, all_pairs = Dim("T·s", p.tokens * p.length), Dim("T·Hi·s", p.tokens * p.length * heads)
    scores = tape.new(all_pairs, ops.FP32, "index scores")
    scores = ops.scale(tape, scores, "index scores")
    scores = ops.unary(tape, scores, "index scores")
    weights = project(p, x, to_weights, "Hi", "index weights")
    total = tape.new(pairs, ops.FP32, "index scores")
    masked = ops.scale(tape, total, "index scores")
    del total, q_turned, k_turned, weights, width
    return masked


def index_mask(p: Pass) -> tuple[Tensor, Tensor]:
    """What is not chosen, and the mask that remains: one byte for each pair (eager: the mask's own dtype)."""
    tape, pairs = p.tape, Dim("T·s", p.tokens * p.length)
    unchosen = tape.new(pairs, 1, "index masks")
    return unchosen, tape.new(pairs, p.mode.weight_itemsize if p.mode.attention == "eager" else 1, "index masks")
