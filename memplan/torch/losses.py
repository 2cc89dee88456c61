"""Preference losses on the scores of the two halves of a batch of pairs.

Each is a frozen set of settings that is called with the chosen and the rejected scores and returns the mean loss of
the micro-batch. Any function of that shape will do in their place: the schedules know no formula.

Sources: SimPO arXiv:2405.14734 eq. 6; DPO arXiv:2305.18290 eq. 7, conservative form of its label smoothing; IPO
arXiv:2310.12036 eq. 17; hinge arXiv:2305.10425; ORPO arXiv:2403.07691 eq. 6; CPO arXiv:2401.08417 eq. 5."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from memplan.errors import UsageError, did_you_mean
from memplan.torch.scores import Scores

PairLoss = Callable[[Scores, Scores], Tensor]
"""(chosen, rejected) -> scalar."""

KINDS = ("sigmoid", "hinge", "ipo")
NLL_OVER = ("completion", "sequence")


@dataclass(frozen=True)
class _Preference:
    """What the losses of a margin share: its temperature, its shape, and a cross-entropy on the chosen half."""

    beta: float
    kind: str = "sigmoid"
    """sigmoid, hinge or ipo."""
    label_smoothing: float = 0.0
    """Share of pairs taken to be labelled the wrong way round; of the sigmoid loss."""
    sft_weight: float = 0.0
    """Weight of the chosen half's cross-entropy beside the preference loss."""
    sft_over: str = "completion"
    """Tokens of that cross-entropy: completion, or sequence with the prompt."""

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, KINDS)
        _one_of("sft_over", self.sft_over, NLL_OVER)
        if self.beta <= 0:
            raise UsageError(f"beta: {self.beta} is not positive", "2.0 to 2.5 for SimPO, 0.1 for DPO and CPO")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"label_smoothing: {self.label_smoothing} is out of range", "0 up to, not with, 1")
        if self.label_smoothing and self.kind != "sigmoid":
            raise UsageError(f"label_smoothing: the {self.kind} loss has none", "use kind='sigmoid', or leave it out")

    def margin(self, chosen: Scores, rejected: Scores) -> Tensor:
        """[B]: by how much each chosen sequence is ahead, before the temperature."""
        raise NotImplementedError

    def __call__(self, chosen: Scores, rejected: Scores) -> Tensor:
        """Mean loss of the micro-batch."""
        margin, beta = self.margin(chosen, rejected), self.beta
        if self.kind == "sigmoid":
            losses = -F.logsigmoid(beta * margin) * (1 - self.label_smoothing)
            losses = losses - F.logsigmoid(-beta * margin) * self.label_smoothing
        elif self.kind == "hinge":
            losses = torch.relu(1 - beta * margin)
        else:
            losses = (margin - 1 / (2 * beta)) ** 2
        if not self.sft_weight:
            return losses.mean()
        return losses.mean() + self.sft_weight * chosen.nll(self.sft_over)


@dataclass(frozen=True)
class SimPO(_Preference):
    """Length-normalised log-probabilities, a target margin, no reference."""

    beta: float = 2.0
    gamma_beta_ratio: float = 0.5
    """γ/β: the target margin, in log-probability per token."""

    def margin(self, chosen: Scores, rejected: Scores) -> Tensor:
        """Difference of means less γ/β."""
        return chosen.mean - rejected.mean - self.gamma_beta_ratio


@dataclass(frozen=True)
class DPO(_Preference):
    """Log-probabilities relative to a reference model, whose own are given with the batch; ipo takes them per token."""

    beta: float = 0.1

    def margin(self, chosen: Scores, rejected: Scores) -> Tensor:
        """Difference of log-ratios. Raises UsageError when the batch carries no reference log-probabilities."""
        return self._log_ratio(chosen) - self._log_ratio(rejected)

    def _log_ratio(self, scores: Scores) -> Tensor:
        if scores.reference is None:
            raise UsageError(
                "DPO: the batch has no reference log-probabilities",
                "add chosen_reference_logps and rejected_reference_logps, sums over each completion, shape [B]",
            )
        ratio = scores.completion - scores.reference
        return ratio / scores.tokens[0] if self.kind == "ipo" else ratio


@dataclass(frozen=True)
class CPO(_Preference):
    """DPO's loss with a uniform reference, beside a cross-entropy on the chosen half; ipo takes means per token."""

    beta: float = 0.1
    sft_weight: float = 1.0

    def margin(self, chosen: Scores, rejected: Scores) -> Tensor:
        """Difference of log-probabilities."""
        if self.kind == "ipo":
            return chosen.mean - rejected.mean
        return chosen.completion - rejected.completion


@dataclass(frozen=True)
class ORPO:
    """Cross-entropy on the chosen half and, by ``beta``, the log-sigmoid of the odds ratio."""

    beta: float = 0.1
    sft_over: str = "sequence"
    """Tokens of the cross-entropy: TRL counts the prompt too."""

    def __post_init__(self) -> None:
        _one_of("sft_over", self.sft_over, NLL_OVER)

    def __call__(self, chosen: Scores, rejected: Scores) -> Tensor:
        """Mean loss of the micro-batch."""
        ratio = _log_odds(chosen.mean) - _log_odds(rejected.mean)
        return chosen.nll(self.sft_over) - self.beta * F.logsigmoid(ratio).mean()


def _log_odds(mean: Tensor) -> Tensor:
    """log(p / (1 - p)) of a mean log-probability."""
    return mean - torch.log1p(-torch.exp(mean))


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name}: unknown value {value!r}", did_you_mean(value, known))
