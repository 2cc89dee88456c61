"""Forward and backward of one micro-step of pairs, under one of four schedules.

``concatenated``  one forward of both halves, one backward
``two_forward``   a forward of each half, one backward: both graphs live until it, so nothing is freed
``split``         rejected without a graph; chosen forward and backward; rejected forward and backward
``gradcache``     both without a graph; then forward and backward of each (arXiv:2101.06983)

In the last two, the loss is computed on the scores as leaves, and its gradient with respect to them is the exact
coefficient from which each half is run backward alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memplan.errors import UsageError, did_you_mean
from memplan.torch.losses import PairLoss
from memplan.torch.scores import IGNORE, Scores, sequence_scores

Half = dict[str, Tensor]
Context = Callable[[], AbstractContextManager[Any]]
Forward = Callable[[Any, Half], Tensor]
NOT_FOR_THE_MODEL = ("labels", "reference_logps")


@dataclass(frozen=True)
class PairOutput:
    """What a micro-step leaves beside the gradients: everything detached."""

    loss: Tensor
    """The loss as the loss function gave it, without ``scale``."""
    chosen: Scores
    rejected: Scores
    replay_difference: Tensor | None = None
    """Largest difference between a log-probability and its repetition: rounding, or a model that is not repeatable."""


def causal_lm_logits(model: Any, inputs: Half) -> Tensor:
    """Logits as a Hugging Face causal model gives them."""
    logits: Tensor = model(**inputs, use_cache=False).logits
    return logits


def pair_step(
    model: Any,
    batch: Mapping[str, Any],
    loss: PairLoss,
    schedule: str = "concatenated",
    *,
    scale: float = 1.0,
    sync: bool = True,
    no_sync: Context | None = None,
    forward: Forward = causal_lm_logits,
    forward_context: Context = nullcontext,
    backward: Callable[[Tensor], Any] = torch.Tensor.backward,
) -> PairOutput:
    """Add the gradients of one micro-step of pairs to the model's, and return its loss.

    batch            tensors named ``chosen_…`` and ``rejected_…``: input_ids, labels, perhaps attention_mask and
                     whatever else the model takes; ``…_reference_logps`` [B] for DPO. Other entries are ignored.
    scale            factor on the gradients: 1 / gradient_accumulation_steps for a mean over micro-steps.
    sync             False for every micro-step but the last, when gradients are reduced once per optimizer step.
    no_sync          the context in which a backward does not reduce gradients; found for DDP, FSDP and FSDP2.
    forward_context  entered for each forward: ``lambda: torch.autocast("cuda", torch.bfloat16)``.
    backward         what runs a backward: ``accelerator.backward``, or one with a gradient scaler.

    Raises UsageError for an unknown schedule, a batch without pairs, or a model that cannot run the schedule."""
    if schedule not in SCHEDULES:
        raise UsageError(f"schedule: unknown value {schedule!r}", did_you_mean(schedule, SCHEDULES))
    if no_sync is None:
        no_sync = _find_no_sync(model, schedule, sync)
    step = _Step(model, loss, scale, sync, no_sync, forward, forward_context, backward)
    return SCHEDULES[schedule](step, _half(batch, "chosen"), _half(batch, "rejected"))


@contextmanager
def fsdp2_no_sync(model: Any) -> Iterator[None]:
    """``no_sync`` for a module of ``fully_shard``: gradients stay whole and unreduced until a backward outside."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@dataclass(frozen=True)
class _Step:
    """One micro-step: how the model is run forward and backward."""

    model: Any
    loss: PairLoss
    scale: float
    sync: bool
    no_sync: Context
    forward: Forward
    forward_context: Context
    run_backward: Callable[[Tensor], Any]

    def reduction(self, last: bool) -> AbstractContextManager[Any]:
        """Around a forward and its backward: gradients are reduced by the last backward of the step, if at all."""
        return nullcontext() if last and self.sync else self.no_sync()

    def scores(self, half: Half) -> Scores:
        """A forward with a graph. The logits die on return, but for what the graph keeps."""
        inputs = {key: value for key, value in half.items() if key not in NOT_FOR_THE_MODEL}
        with self.forward_context():
            return sequence_scores(self.forward(self.model, inputs), half)

    def scores_without_graph(self, half: Half) -> Scores:
        """A forward without a graph.

        Autocast caches its casts of the weights, and those made here have no graph: a later forward that found them
        would train nothing. So the cache is emptied."""
        with torch.no_grad():
            scores = self.scores(half)
        torch.clear_autocast_cache()
        return scores

    def backward(self, value: Tensor) -> None:
        """Backward of a value that is already scaled."""
        self.run_backward(value)

    def coefficients(self, chosen: Scores, rejected: Scores) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and its scaled gradients with respect to the sums of each half, shape [2, B]."""
        leaves = [scores.sums.detach().requires_grad_(True) for scores in (chosen, rejected)]
        with torch.enable_grad():
            value = self.loss(chosen.with_sums(leaves[0]), rejected.with_sums(leaves[1]))
            of_chosen, of_rejected = torch.autograd.grad(value * self.scale, leaves, materialize_grads=True)
        return value.detach(), of_chosen, of_rejected


def _concatenated(step: _Step, chosen: Half, rejected: Half) -> PairOutput:
    with step.reduction(last=True):
        halves = step.scores(_join(chosen, rejected)).split(len(chosen["input_ids"]))
        value = step.loss(*halves)
        step.backward(value * step.scale)
    return PairOutput(value.detach(), halves[0].detach(), halves[1].detach())


def _two_forward(step: _Step, chosen: Half, rejected: Half) -> PairOutput:
    with step.reduction(last=True):
        halves = step.scores(chosen), step.scores(rejected)
        value = step.loss(*halves)
        step.backward(value * step.scale)
    return PairOutput(value.detach(), halves[0].detach(), halves[1].detach())


def _split(step: _Step, chosen: Half, rejected: Half) -> PairOutput:
    """One repetition instead of gradcache's two: once the rejected scores are known, the chosen half's only forward
    already gives its coefficient."""
    random = _RandomState(chosen)
    known = step.scores_without_graph(rejected)
    with step.reduction(last=False):
        scores = step.scores(chosen)
        value, of_chosen, of_rejected = step.coefficients(scores, known)
        step.backward((scores.sums * of_chosen).sum())
    scores = scores.detach()
    with step.reduction(last=True), random.replay():
        repeated = step.scores(rejected)
        step.backward((repeated.sums * of_rejected).sum())
    return PairOutput(value, scores, known, _difference([known], [repeated]))


def _gradcache(step: _Step, chosen: Half, rejected: Half) -> PairOutput:
    halves = (chosen, rejected)
    states, known = [], []
    for half in halves:
        states.append(_RandomState(half))
        known.append(step.scores_without_graph(half))
    value, *coefficients = step.coefficients(*known)
    repeated = []
    for half, state, coefficient in zip(halves, states, coefficients, strict=True):
        with step.reduction(last=half is rejected), state.replay():
            scores = step.scores(half)
            step.backward((scores.sums * coefficient).sum())
        repeated.append(scores.detach())
        del scores
    return PairOutput(value, known[0], known[1], _difference(known, repeated))


SCHEDULES: dict[str, Callable[[_Step, Half, Half], PairOutput]] = {
    "concatenated": _concatenated,
    "two_forward": _two_forward,
    "split": _split,
    "gradcache": _gradcache,
}


class _RandomState:
    """The generators before a forward, so that its repetition draws the same dropout."""

    def __init__(self, half: Half) -> None:
        device = half["input_ids"].device
        self.devices = list(range(torch.cuda.device_count())) if device.type == "cuda" else []
        self.host = torch.get_rng_state()
        self.cuda = [torch.cuda.get_rng_state(index) for index in self.devices]

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Draw again what was drawn then; afterwards the generators go on from where they are now."""
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.host)
            for index, state in zip(self.devices, self.cuda, strict=True):
                torch.cuda.set_rng_state(state, index)
            yield


def _half(batch: Mapping[str, Any], name: str) -> Half:
    """The tensors of one half, without its prefix. Raises UsageError when it is not there."""
    prefix = f"{name}_"
    half = {key.removeprefix(prefix): batch[key] for key in batch if key.startswith(prefix)}
    half = {key: value for key, value in half.items() if isinstance(value, Tensor)}
    for key in ("input_ids", "labels"):
        if key not in half:
            raise UsageError(f"the batch has no {prefix}{key}", f"its entries: {', '.join(sorted(map(str, batch)))}")
    return half


def _join(chosen: Half, rejected: Half) -> Half:
    """Both halves as one batch, padded on the right to the longer."""
    if chosen.keys() != rejected.keys():
        odd = ", ".join(sorted(chosen.keys() ^ rejected.keys()))
        raise UsageError(f"only one half of the batch has: {odd}", "give both halves the same entries")
    halves = [chosen, rejected]
    length = max(half["input_ids"].shape[1] for half in halves)
    if "attention_mask" not in chosen and any(half["input_ids"].shape[1] < length for half in halves):
        halves = [{**half, "attention_mask": torch.ones_like(half["input_ids"])} for half in halves]
    return {
        key: torch.cat([_pad(key, half[key], half["input_ids"].shape, length) for half in halves]) for key in halves[0]
    }


def _pad(key: str, value: Tensor, shape: torch.Size, length: int) -> Tensor:
    """A tensor of one entry per token, padded on the right; any other as it is."""
    if value.shape != shape:
        return value
    fill = IGNORE if key == "labels" else 0
    return torch.nn.functional.pad(value, (0, length - value.shape[1]), value=fill)


def _find_no_sync(model: Any, schedule: str, sync: bool) -> Context:
    """How this model leaves gradients unreduced. Raises UsageError for DeepSpeed where that is needed."""
    if type(model).__name__ == "DeepSpeedEngine" and schedule in ("split", "gradcache"):
        raise UsageError(
            f"schedule: {schedule} runs two backwards, and DeepSpeed reduces gradients in each",
            "use concatenated, or FSDP; pass no_sync if your ZeRO stage allows it",
        )
    if hasattr(model, "set_requires_gradient_sync"):
        return lambda: fsdp2_no_sync(model)
    return getattr(model, "no_sync", nullcontext)


def _difference(known: list[Scores], repeated: list[Scores]) -> Tensor:
    """Largest absolute difference between sums and their repetition."""
    pairs = zip(known, repeated, strict=True)
    return torch.stack([(a.sums - b.sums).detach().abs().max() for a, b in pairs]).max()
