"""TRL's loss code, era by era, as far as memory feels it: its locals, its copies, its order."""

from typing import Any

import torch
from torch import Tensor

from memplan.trace import kernels, losses
from memplan.trace.runs import Run, picked


def trl_dpo_before_029(run: Run) -> Tensor:
    """trl 0.14 and 0.24, trainer/dpo_trainer.py: concatenated_forward, get_batch_loss_metrics."""
    hidden = {"output_hidden_states": True} if run.recipe.loss.code.hidden_states else {}
    late = run.recipe.loss.code.late_sft_term

    def concatenated_forward(model: Any) -> dict[str, Tensor]:
        outputs = run.call(model, **hidden)
        logits = outputs["logits"]
        labels = torch.roll(run.ids, shifts=-1, dims=1)
        per_token = losses.label_log_probs(logits, labels, run.recipe)
        output = {"logps": per_token[:, 1:].sum(-1)}
        if run.recipe.loss.sft_term:
            half = logits[: run.pairs] if late == "viewed" else logits[: run.pairs, :-1]
            output["nll_loss"] = torch.nn.functional.cross_entropy(
                torch.flatten(half, end_dim=1), labels[: run.pairs, : half.shape[1]].flatten(), ignore_index=0
            )
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            output["chosen"] = picked(run, logits[: run.pairs]).mean()
            output["rejected"] = picked(run, logits[run.pairs :]).mean()
        return output

    policy = concatenated_forward(run.policy)
    reference = run.score_reference(lambda model: concatenated_forward(model)["logps"])
    loss = run.loss(policy["logps"], reference)
    return loss + policy["nll_loss"] if run.recipe.loss.sft_term else loss


def trl_dpo(run: Run) -> Tensor:
    """trl 1.0 to 1.14, trainer/dpo_trainer.py: _compute_loss."""
    outputs = run.call(run.policy)
    shift_logits, shift_labels = outputs["logits"][..., :-1, :], run.ids[..., 1:]
    logps = losses.label_log_probs(shift_logits, shift_labels, run.recipe).sum(dim=1)
    held = []

    def score(model: Any) -> Tensor:
        held.append(run.call(model))
        return losses.label_log_probs(held[0]["logits"][..., :-1, :], shift_labels, run.recipe).sum(dim=1)

    loss = run.loss(logps, run.score_reference(score))
    if run.recipe.loss.code.metrics == "pairs":
        kernels.entropy_by_rows(shift_logits.detach())
    chosen, rejected = shift_logits.detach().chunk(2, dim=0)
    picked(run, chosen).mean(-1).sum()
    picked(run, rejected).mean(-1).sum()
    return loss


def trl_cpo(run: Run) -> Tensor:
    """trl 0.9 to 1.16, experimental/cpo/cpo_trainer.py and orpo_trainer.py: concatenated_forward."""

    def concatenated_forward() -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        outputs = run.call(run.policy)
        all_logits = outputs["logits"]
        term = None
        if run.recipe.loss.sft_term:
            term = losses.chosen_cross_entropy(all_logits[:, :-1], run.ids[:, 1:], run.pairs)
        logps = losses.label_log_probs(all_logits[:, :-1], run.ids[:, 1:], run.recipe).sum(-1)
        return logps, all_logits[: run.pairs], all_logits[run.pairs :], term

    logps, chosen_logits, rejected_logits, term = concatenated_forward()
    loss = run.loss(logps, None)
    chosen_logits.detach().mean()
    rejected_logits.detach().mean()
    return loss if term is None else loss + term


def trl_kto_before_029(run: Run) -> Tensor:
    """trl 0.14 and 0.24, trainer/kto_trainer.py: forward, get_batch_loss_metrics."""
    chosen, rejected = torch.arange(run.ids.shape[0], device=run.ids.device).tensor_split(2)

    def forward(model: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            kl_logits = run.logits(model)
            losses.label_log_probs(kl_logits[:, :-1], run.ids[:, 1:], run.recipe)
            del kl_logits
        outputs = run.call(model)
        logits = outputs["logits"]
        logps = losses.label_log_probs(logits[:, :-1], run.ids[:, 1:], run.recipe).sum(-1)
        return logps, logits[chosen], logits[rejected]

    logps, _chosen, _rejected = forward(run.policy)
    reference = run.score_reference(lambda model: forward(model)[0])
    return run.loss(logps, reference)


def trl_kto(run: Run) -> Tensor:
    """trl 1.0 to 1.14, trainer/kto_trainer.py: _compute_kl_logps, _compute_loss."""
    chosen, rejected = torch.arange(run.ids.shape[0], device=run.ids.device).tensor_split(2)

    def kl(model: Any) -> Tensor:
        with torch.no_grad():
            logits = run.logits(model)
            return losses.label_log_probs(logits[:, :-1], run.ids[:, 1:], run.recipe).sum(-1)

    kl(run.policy)
    outputs = run.call(run.policy)
    shift_logits = outputs["logits"][:, :-1, :]
    logps = losses.label_log_probs(shift_logits, run.ids[:, 1:], run.recipe).sum(-1)
    held = []

    def score(model: Any) -> Tensor:
        kl(model)
        held.append(run.call(model))
        return losses.label_log_probs(held[0]["logits"][:, :-1, :], run.ids[:, 1:], run.recipe).sum(-1)

    loss = run.loss(logps, run.score_reference(score))
    if run.recipe.loss.code.metrics == "chosen-and-rejected":
        kernels.entropy_by_rows(shift_logits.detach())
    elif not run.recipe.loss.code.metrics:  # from 1.15 on
        return loss
    chosen_logits = shift_logits.detach().index_select(0, chosen)
    rejected_logits = shift_logits.detach().index_select(0, rejected)
    picked(run, chosen_logits).mean(-1).sum()
    picked(run, rejected_logits).mean(-1).sum()
    return loss


def trl_sft(run: Run) -> Tensor:
    """trl 0.16 to 1.6, trainer/sft_trainer.py: compute_loss, whose outputs are gone when it returns."""
    outputs = run.call(run.policy, labels=run.ids)
    if run.recipe.loss.code.metrics == "shifted":
        with torch.no_grad():
            kernels.entropy_by_rows(outputs["logits"])
            shift_logits = outputs["logits"][..., :-1, :].contiguous()
            shift_logits.argmax(dim=-1)
    loss: Tensor = outputs["loss"]
    return loss
