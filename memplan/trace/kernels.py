"""Functions that trainers write themselves, by what they allocate: forward, what is saved, backward.

Values are not those of the real kernels where only sizes matter; each names its source."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class SavingLogits(torch.autograd.Function):
    """flash-attention's cross-entropy and TRL's Triton kernel: saved logits; a new gradient or theirs (``inplace``)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace: bool) -> Tensor:
        """Log-probabilities in fp32."""
        statistics = torch.empty(labels.shape, dtype=torch.float32, device=logits.device)
        ctx.save_for_backward(logits, statistics)
        ctx.inplace = inplace
        return torch.empty_like(statistics)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """One tensor, or none."""
        logits, _ = ctx.saved_tensors
        return logits if ctx.inplace else torch.empty_like(logits), None, None


class OneHot(torch.autograd.Function):
    """NeMo-Aligner's ``DistributedLogprob`` with higher_stability (utils/distributed.py)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities of the targets."""
        log_softmax = _log_softmax(logits)
        log_probs = log_softmax.clone()
        softmax = log_softmax.exp_()
        log_probs = torch.gather(log_probs, -1, target.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(softmax, target)
        return log_probs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """One-hot labels in int64, twice."""
        softmax, target = ctx.saved_tensors
        kept = torch.ones_like(target, dtype=torch.bool)
        hot = softmax.new_empty(softmax.shape, dtype=torch.long)
        chosen = kept.unsqueeze(-1) * hot
        del hot
        return chosen.float().sub_(softmax).mul_(grads[0].unsqueeze(-1)), None


def _log_softmax(logits: Tensor) -> Tensor:
    shifted = logits - torch.amax(logits, dim=-1, keepdim=True)
    total = shifted.exp().sum(-1, keepdim=True)
    return shifted - total.log_()


class MegatronCrossEntropy(torch.autograd.Function):
    """Megatron's cross-entropy, which works in its fp32 input; ``fused``: its gradient passes through bf16
    (megatron-core 0.16, tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, fused: bool) -> Tensor:
        """The loss of each token."""
        wide = logits.float()
        wide -= wide.max(dim=-1, keepdim=True)[0]
        picked = torch.gather(wide, -1, target.unsqueeze(-1)).squeeze(-1)
        wide.exp_()
        total = wide.sum(dim=-1)
        wide.div_(total.unsqueeze(-1))
        ctx.save_for_backward(wide)
        ctx.fused = fused
        return total.log() - picked

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The softmax becomes the gradient."""
        (softmax,) = ctx.saved_tensors
        softmax.mul_(grads[0].unsqueeze(-1))
        return softmax.to(torch.bfloat16) if ctx.fused else softmax, None, None


def megatron_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The loss of each token inside Megatron's model."""
    found: Tensor = MegatronCrossEntropy.apply(logits, target, False)
    return found


class SharedSoftmax(torch.autograd.Function):
    """slime's ``_VocabParallelLogProbEntropy`` (utils/ppo_utils.py at 624b824)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities of the targets."""
        softmax = (logits - logits.max(dim=-1, keepdim=True).values).exp_()
        total = softmax.sum(dim=-1, keepdim=True)
        softmax.div_(total)
        ctx.save_for_backward(softmax)
        return torch.gather(softmax, -1, target.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The softmax, negated in place."""
        (softmax,) = ctx.saved_tensors
        return softmax.neg_().mul_(grads[0].unsqueeze(-1)), None


class EntropyOfSoftmax(torch.autograd.Function):
    """slime's ``_VocabParallelEntropy`` (utils/ppo_utils.py before its 0.3.1)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        """The entropy of each token."""
        softmax = (logits - logits.max(dim=-1, keepdim=True).values).exp_()
        softmax.div_(softmax.sum(dim=-1, keepdim=True))
        ctx.save_for_backward(logits, softmax)
        return torch.logsumexp(logits, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The softmax becomes the gradient."""
        _, softmax = ctx.saved_tensors
        return softmax.mul_(grads[0].unsqueeze(-1))


def entropy_by_rows(logits: Tensor, size: int = 128) -> Tensor:
    """``entropy_from_logits`` (trl 1.9, trainer/utils.py)."""
    entropies = []
    for chunk in logits.reshape(-1, logits.shape[-1]).split(size, dim=0):
        logps = functional.log_softmax(chunk, dim=-1)
        entropies.append(-(torch.exp(logps) * logps).sum(-1))
    return torch.cat(entropies, dim=0)


def entropy(style: str, logits: Tensor) -> Tensor | None:
    """Entropies as a trainer makes them; None where the kernel of the log-probabilities does."""
    if style == "rows":
        return entropy_by_rows(logits)
    if style in ("clone", "copied"):
        copied = style == "copied" or torch.is_grad_enabled()
        return EntropyOfSoftmax.apply(logits.clone() if copied else logits)
    if style == "softmax":
        probabilities = torch.softmax(logits, dim=-1)
        return torch.logsumexp(logits, dim=-1) - torch.sum(probabilities * logits, dim=-1)
    return None


def log_probs(program: str, logits: Tensor, labels: Tensor) -> Tensor | None:
    """Log-probabilities by a head's own function; None for heads made of torch's operations."""
    found: Any = None
    if program in ("selective-kernel", "flash-cross-entropy"):
        found = SavingLogits.apply(logits, labels, False)
    elif program == "flash-cross-entropy-in-place":
        found = SavingLogits.apply(logits, labels, True)
    elif program == "one-hot":
        found = OneHot.apply(logits, labels)
    elif program == "megatron-fused":
        found = -MegatronCrossEntropy.apply(logits.clone(), labels, True)
    elif program == "shared-softmax":
        found = SharedSoftmax.apply(logits, labels)
    return found
