"""From logits to what a preference loss needs: log-probabilities summed over each sequence.

A pair loss couples two sequences through these few numbers alone. That is why its gradient can be cut there: the
gradient with respect to the sums is exact, tiny, and known before either half is run backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

IGNORE = -100
"""Label of a token that no loss scores, as everywhere in PyTorch."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of B sequences under the policy, with the token counts that normalise them."""

    sums: Tensor
    """[2, B], fp32 or fp64: sums over the completion (labels that are not -100), and over every real token."""
    tokens: Tensor
    """[2, B]: how many tokens each sum runs over; at least 1, so that an empty completion divides by 1."""
    reference: Tensor | None = None
    """[B]: completion log-probabilities under a reference model, summed, where the batch carries them."""

    @property
    def completion(self) -> Tensor:
        """[B]: log-probability of each completion."""
        return self.sums[0]

    @property
    def mean(self) -> Tensor:
        """[B]: log-probability per completion token."""
        return self.sums[0] / self.tokens[0]

    def nll(self, over: str) -> Tensor:
        """Scalar: cross-entropy per token of the whole half, over ``completion`` or ``sequence`` (prompt included)."""
        which = ("completion", "sequence").index(over)
        return -self.sums[which].sum() / self.tokens[which].sum()

    def with_sums(self, sums: Tensor) -> Scores:
        """The same sequences with other sums: a leaf in place of a graph, or the other way round."""
        return replace(self, sums=sums)

    def detach(self) -> Scores:
        """The same figures without a graph."""
        return self.with_sums(self.sums.detach())

    def split(self, first: int) -> tuple[Scores, Scores]:
        """The first sequences, and the rest."""
        cut = slice(None, first), slice(first, None)
        chosen, rejected = (
            Scores(self.sums[:, part], self.tokens[:, part], None if self.reference is None else self.reference[part])
            for part in cut
        )
        return chosen, rejected


def sequence_scores(logits: Tensor, half: Mapping[str, Tensor]) -> Scores:
    """Scores of sequences from their logits [B, s, V]; ``half`` has input_ids, labels and perhaps attention_mask.

    Position t predicts token t + 1. Tokens that the attention mask hides count nowhere."""
    inputs, labels = half["input_ids"][:, 1:], half["labels"][:, 1:]
    mask = half.get("attention_mask")
    scored = labels != IGNORE
    real = torch.ones_like(scored) if mask is None else mask[:, 1:].bool()
    log_probabilities = _token_log_probabilities(logits[:, :-1], torch.where(scored, labels, inputs))
    masks = torch.stack([scored & real, real])
    sums = torch.where(masks, log_probabilities, 0).sum(-1)
    return Scores(sums, masks.sum(-1).clamp(min=1), half.get("reference_logps"))


def _token_log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """[B, s]: log-probability of each target, in fp32 at least.

    Row by row, so that what a row needs for a moment is there once and not B times; by log-sum-exp in fp32 and above,
    which keeps no second tensor of the logits' size, and by log-softmax in half precision."""
    if logits.dtype in (torch.float32, torch.float64):
        sums = torch.stack([row.logsumexp(-1) for row in logits])
        return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - sums
    rows = [
        row.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        for row, target in zip(logits, targets, strict=True)
    ]
    return torch.stack(rows).float()
