"""From logits to the loss, as a trainer writes it: log-probabilities of the labels, then the method's formula.

The formulas cost bytes per sequence; what memory feels is how the log-probabilities come out of the logits."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memplan.spec.recipe import Recipe
from memplan.trace import kernels

BETA, MARGIN = 0.1, 0.5


def label_log_probs(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """Log-probability of each label, [rows, length], by the job's head; checkpointed where the job says so."""
    if recipe.loss.to_fp32:
        logits = logits.float()
    if recipe.loss.code.tempered:
        logits = logits / float(recipe.provenance.job["temperature"])
    if not recipe.loss.code.recomputed or not torch.is_grad_enabled():
        return _log_probs(logits, labels, recipe)
    found: Tensor = checkpoint(_log_probs, logits, labels, recipe, use_reentrant=False, preserve_rng_state=False)
    return found


def _log_probs(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    scores = _scores(logits, labels, recipe)
    code = recipe.loss.code
    if not code.entropy or not torch.is_grad_enabled():
        return scores
    with torch.set_grad_enabled(code.entropy_gradient):
        entropy = kernels.entropy(code.entropy, logits)
    return scores if entropy is None or not code.entropy_gradient else scores + entropy.view(scores.shape)


def _scores(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    found = kernels.log_probs(recipe.loss.head, logits, labels)
    if found is not None:
        return found
    if recipe.loss.head in ("log-softmax", "stacked-log-softmax"):
        return logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return selective_log_softmax(logits, labels)


def selective_log_softmax(logits: Tensor, labels: Tensor) -> Tensor:
    """A sequence at a time in half precision, which keeps one log-softmax each; by log-sum-exp in fp32."""
    if logits.dtype == torch.float32:
        chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    picked = []
    for row, wanted in zip(logits, labels, strict=True):
        log_probs = functional.log_softmax(row, dim=-1)
        picked.append(log_probs.gather(dim=-1, index=wanted.unsqueeze(-1)).squeeze(-1))
    return torch.stack(picked)


def chosen_cross_entropy(logits: Tensor, labels: Tensor, pairs: int) -> Tensor:
    """The SFT term: cross-entropy over a contiguous copy of the chosen half."""
    half = logits[:pairs].contiguous()
    return functional.cross_entropy(half.view(-1, half.shape[-1]), labels[:pairs].reshape(-1))


def pair_loss(method: str, chosen: Tensor, rejected: Tensor, references: tuple[Tensor, Tensor] | None) -> Tensor:
    """The mean loss of a batch of pairs, from log-probabilities of each sequence."""
    difference = chosen - rejected
    if references is not None:
        difference = difference - (references[0] - references[1])
    if method == "ipo":
        return ((difference - 1 / (2 * BETA)) ** 2).mean()
    if method == "simpo":
        return -functional.logsigmoid(BETA * difference - MARGIN).mean()
    if method == "orpo":
        odds = difference - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return -functional.logsigmoid(odds).mean() * BETA - chosen.mean()
    return -functional.logsigmoid(BETA * difference).mean()


def kto_loss(policy: Tensor, reference: Tensor, divergence: Tensor) -> Tensor:
    """Desirable examples in the first half of the batch, undesirable ones in the second."""
    ratio = policy - reference
    half = max(1, policy.shape[0] // 2)
    desirable = 1 - torch.sigmoid(BETA * (ratio[:half] - divergence))
    undesirable = 1 - torch.sigmoid(BETA * (divergence - ratio[half:]))
    return torch.cat((desirable, undesirable)).mean()


def shifted_loss(logits: Tensor, labels: Tensor, vocab_size: int, **settings: object) -> Tensor:
    """``ForCausalLMLoss`` of transformers 4.48: a copy of all but each row's last position."""
    logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    return functional.cross_entropy(shifted.view(-1, vocab_size), labels[..., 1:].contiguous().view(-1))


class _InPlace(torch.autograd.Function):
    """Unsloth's cross-entropy of 2024, by what it allocates: the logits become their own gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        statistics = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
        ctx.save_for_backward(logits, statistics, labels)
        return torch.zeros(logits.shape[0], dtype=torch.float32, device=logits.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def foak_loss(logits: Tensor, labels: Tensor, vocab_size: int, **settings: object) -> Tensor:
    """fms-acceleration-foak 0.7, kernels/unsloth/cross_entropy_loss.py: FastForCausalLMLoss."""
    logits = logits.float()
    shifted = logits[..., :-1, :].contiguous().view(-1, vocab_size)
    losses: Tensor = _InPlace.apply(shifted, labels[..., 1:].contiguous().view(-1))
    return losses.sum() / labels.numel()


MODEL_LOSSES = {"shifted-cross-entropy": shifted_loss, "foak-cross-entropy": foak_loss}
"""In place of the loss that the installed transformers gives a model."""


def stacked_balance(
    gate_logits: tuple[Tensor, ...], num_experts: int, top_k: int, attention_mask: Tensor | None = None
) -> Tensor:
    """The load-balancing loss over all layers at once, as far as memory feels it (transformers 4.45 to 5.12,
    models/mixtral/modeling_mixtral.py: load_balancing_loss_func)."""
    joined = torch.cat(list(gate_logits), dim=0)
    weights = functional.softmax(joined, dim=-1)
    _, chosen = torch.topk(weights, top_k, dim=-1)
    hot = torch.zeros(*chosen.shape, num_experts, dtype=torch.long, device=chosen.device)
    hot.scatter_(-1, chosen.unsqueeze(-1), 1)  # one_hot, which asks for the largest index
    if attention_mask is None:
        share, probability = hot.float().mean(dim=0), weights.mean(dim=0)
        return (share * probability.unsqueeze(0)).sum() * num_experts
    rows, length = attention_mask.shape
    layers = joined.shape[0] // (rows * length)
    of_all = attention_mask[None, :, :, None, None].expand(layers, rows, length, top_k, num_experts)
    of_all = of_all.reshape(-1, top_k, num_experts)
    share = (hot.float() * of_all).sum(dim=0) / of_all.sum(dim=0)
    of_each = attention_mask[None, :, :, None].expand(layers, rows, length, num_experts).reshape(-1, num_experts)
    probability = (weights * of_each).sum(dim=0) / of_each.sum(dim=0)
    return (share * probability.unsqueeze(0)).sum() * num_experts
