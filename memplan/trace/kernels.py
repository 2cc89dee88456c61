"""Functions that trainers write themselves, by what they allocate: forward, what is saved, backward.

Values are not those of the real kernels where only sizes matter; each names its source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class SavingLogits(torch.autograd.Function):
    """flash-attention's cross-entropy and TRL's Triton kernel: the logits are saved, their gradient is new, or they
    become it (``inplace``)."""

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


class Tiles(torch.autograd.Function):
    """TRL's fused head from 1.15 (trl 1.16, kernels/chunked_logprob.py), its Triton kernels left out."""

    ROWS, COLUMNS = 4096, 32768

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities of the targets, a tile of tokens × vocabulary at a time."""
        count, vocabulary, device = hidden.shape[0], weight.shape[0], hidden.device
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else hidden.dtype
        statistics = [torch.zeros((count,), device=device, dtype=torch.float32) for _ in range(7)]
        buffer = torch.empty((min(count, Tiles.ROWS), Tiles.COLUMNS), device=device, dtype=dtype)
        for start in range(0, count, Tiles.ROWS):
            chunk = hidden[start : start + Tiles.ROWS].to(dtype)
            for column in range(0, vocabulary, Tiles.COLUMNS):
                part = weight[column : column + Tiles.COLUMNS].to(dtype)
                torch.mm(chunk, part.t(), out=buffer[: chunk.shape[0], : part.shape[0]])
        found = statistics[6] - (statistics[0] + torch.log(statistics[1]))
        ctx.save_for_backward(hidden, weight, targets, found)
        ctx.dtype = dtype
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients summed in fp32, then cast."""
        hidden, weight, _, _ = ctx.saved_tensors
        count, vocabulary, dtype = hidden.shape[0], weight.shape[0], ctx.dtype
        wants_hidden, wants_weight, _ = ctx.needs_input_grad
        of_hidden = torch.zeros(hidden.shape, device=hidden.device, dtype=torch.float32) if wants_hidden else None
        of_weight = torch.zeros(weight.shape, device=weight.device, dtype=torch.float32) if wants_weight else None
        buffer = torch.empty((min(count, Tiles.ROWS), Tiles.COLUMNS), device=hidden.device, dtype=dtype)
        for start in range(0, count, Tiles.ROWS):
            chunk = hidden[start : start + Tiles.ROWS].to(dtype)
            for column in range(0, vocabulary, Tiles.COLUMNS):
                part = weight[column : column + Tiles.COLUMNS].to(dtype)
                torch.mm(chunk, part.t(), out=buffer[: chunk.shape[0], : part.shape[0]])
        return (
            of_hidden.to(hidden.dtype) if of_hidden is not None else None,
            of_weight.to(weight.dtype) if of_weight is not None else None,
            None,
        )


class LinearInChunks(torch.autograd.Function):
    """verl's ``FusedLinearForPPOFunction`` (verl 0.9, utils/experimental/torch_functional.py)."""

    SIZE = 512

    @staticmethod
    def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
        logits = (hidden @ weight.t()) / temperature
        return logits.to(torch.float32)

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float) -> Tensor:
        """Log-probabilities and (not returned here) entropies, 512 tokens at a time."""
        found = torch.zeros(hidden.shape[0], device=hidden.device, dtype=torch.float32)
        for start in range(0, hidden.shape[0], LinearInChunks.SIZE):
            logits = LinearInChunks._logits(hidden[start : start + LinearInChunks.SIZE], weight, temperature)
            probs = logits.softmax(dim=-1)
            found[start : start + LinearInChunks.SIZE] = torch.sum(probs * logits, dim=-1)
            del logits, probs
        ctx.save_for_backward(hidden, weight, ids)
        ctx.temperature = temperature
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The logits of each chunk again."""
        hidden, weight, ids = ctx.saved_tensors
        of_hidden = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], LinearInChunks.SIZE):
            rows = slice(start, start + LinearInChunks.SIZE)
            h, v = LinearInChunks._gradients(grads[0][rows], hidden[rows], weight, ids[rows], ctx.temperature)
            of_hidden[rows] += h
            if of_weight is not None:
                of_weight += v
            del h, v
        return of_hidden, of_weight, None, None

    @staticmethod
    def _gradients(
        grad: Tensor, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        dtype = (hidden[:1] @ weight[:1].t()).dtype
        logits = LinearInChunks._logits(hidden, weight, temperature)
        probs = logits.softmax(dim=-1)
        one_hot = torch.zeros_like(logits).scatter_(-1, ids.unsqueeze(-1), 1)
        dlogits: Any = 0
        dlogits += grad.unsqueeze(-1) * (one_hot - probs)
        dlogits = dlogits.to(dtype) / temperature
        return dlogits @ weight, dlogits.t() @ hidden


class LigerCrossEntropy(torch.autograd.Function):
    """Liger's fused linear cross-entropy: gradients are made in forward (liger-kernel 0.8.5,
    ops/fused_linear_cross_entropy.py), its Triton kernel left out."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        count, width = hidden.shape
        rounds = -(-weight.shape[0] // width)
        size = min(count, 1 << (-(-count // rounds) - 1).bit_length())
        grad_input = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        loss = torch.zeros(count, dtype=torch.float32, device=hidden.device)
        for start in range(0, count, size):
            chunk = hidden[start : start + size]
            logits = chunk @ weight.t()
            grad_input[start : start + size] = logits @ weight
            del logits, chunk
        ctx.save_for_backward(grad_input, grad_weight)
        return loss.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """What forward made."""
        grad_input, grad_weight = ctx.saved_tensors
        return grad_input, grad_weight, None


def _nll_chunk(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """trl 1.9, trainer/sft_trainer.py: _chunk."""
    logits = hidden.float() @ weight.float().t()
    log_p = functional.log_softmax(logits, dim=-1)
    loss = functional.nll_loss(log_p, labels, ignore_index=-100, reduction="sum")
    logits.argmax(dim=-1)
    (-(log_p.exp() * log_p).sum(dim=-1)).sum()
    return loss


def nll_in_chunks(hidden: Tensor, weight: Tensor, labels: Tensor, size: int = 256) -> Tensor:
    """trl 1.9, trainer/sft_trainer.py: _chunked_cross_entropy_loss."""
    hidden, labels = hidden[:, :-1].reshape(-1, hidden.shape[-1]), labels[:, 1:].reshape(-1)
    order = torch.arange(hidden.shape[0], device=hidden.device)
    hidden, labels = hidden[order], labels[order]
    loss = hidden.new_zeros((), dtype=torch.float32)
    for start in range(0, hidden.shape[0], size):
        rows = slice(start, start + size)
        part = checkpoint(_nll_chunk, hidden[rows], weight, labels[rows], use_reentrant=False, preserve_rng_state=False)
        loss = loss + part
    return loss / hidden.shape[0]


def fused(program: str, hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of each row, or a loss, of hidden states [rows, length, h] and head; not TRL's tiles."""
    if program == "chunked-nll":
        return -nll_in_chunks(hidden, weight, ids)
    flat, labels = hidden.view(-1, hidden.shape[-1]), torch.roll(ids, -1, 1).view(-1)
    found: Any = None
    if program == "chunked-log-probs":
        found = LinearInChunks.apply(flat, weight, labels, 1.0).view(ids.shape).sum(-1)
    elif program == "liger":
        found = -LigerCrossEntropy.apply(flat, weight, labels)
    assert found is not None, program
    return found


FUSED = ("fused", "chunked-log-probs", "chunked-nll", "liger")
"""Heads that take hidden states."""


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
    if style == "clone":
        return EntropyOfSoftmax.apply(logits.clone() if torch.is_grad_enabled() else logits)
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
