"""Heads that take hidden states: tiles, chunks and kernels in torch, by what they allocate.

Triton kernels are left out, since they allocate nothing; each names its source."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


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
                tile = buffer[: chunk.shape[0], : min(Tiles.COLUMNS, vocabulary - column)]
                torch.mm(chunk, weight[column : column + Tiles.COLUMNS].to(dtype).t(), out=tile)
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


class MadeInForward(torch.autograd.Function):
    """Of hidden states and a head, whose gradients forward saves."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """What forward made."""
        grad_input, grad_weight = ctx.saved_tensors
        return grad_input, grad_weight, None


class LigerCrossEntropy(MadeInForward):
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


class TiledLogits(MadeInForward):
    """DeepSpeed's TiledFusedLogitsLoss around head and loss (deepspeed 0.19 ulysses_sp.py): each tile runs back at
    once; the head's gradient is held here, not in its ``grad``."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        count = -(-hidden.shape[0] * weight.shape[0] * 4 // 2**30)
        grad_input, total = torch.zeros_like(hidden), None
        losses, at = [], 0
        for part, labels in zip(torch.chunk(hidden.detach(), count), torch.chunk(target, count), strict=True):
            part.requires_grad_(True)
            part.grad = grad_input[at : at + part.shape[0]]
            leaf = weight.detach().requires_grad_(weight.requires_grad)
            leaf.grad = total
            with torch.enable_grad():
                output = _tile_loss(part, leaf, labels)
                losses.append(output.detach())
            torch.autograd.backward(output)
            total, at = leaf.grad, at + part.shape[0]
        ctx.save_for_backward(grad_input, total)
        return torch.stack(losses).sum()


def _tile_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = functional.linear(hidden, weight)
    return _causal_loss(logits, labels)


def _causal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """transformers 5.23 loss/loss_utils.py: ForCausalLMLoss, which rebinds the logits."""
    logits = logits.float()
    return functional.cross_entropy(logits, labels)


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
    elif program == "tiled":
        found = -TiledLogits.apply(flat, weight, labels)
    elif program == "liger":
        found = -LigerCrossEntropy.apply(flat, weight, labels)
    assert found is not None, program
    return found
