"""Updates of online methods and of distillation, as a plain loop and as TRL write them: line by line as far as memory
feels it. What a rollout gave (log-probabilities, advantages, values) is there already."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memplan.spec.recipe import Recipe
from memplan.trace import losses
from memplan.trace.fused import Tiles
from memplan.trace.loops import within_forward
from memplan.trace.runs import Run, to_fp32

CLIP, KL = 0.2, 0.04


def _length(recipe: Recipe) -> int:
    """Positions of each row that are scored."""
    return min(recipe.batch.completion_length, recipe.batch.sequence_length - 1)


def rollout(recipe: Recipe, device: str) -> dict[str, Tensor]:
    """What the loss reads of each completion, [rows, length] in fp32."""
    if not recipe.method.optional_reference:
        return {}
    names = ("old", "advantages", *(("values", "returns") if recipe.others.critic else ()))
    return {name: torch.zeros((recipe.rows, recipe.batch.completion_length), device=device) for name in names}


def clipped_loss(logps: Tensor, old: Tensor, advantages: Tensor, reference: Tensor | None) -> Tensor:
    """The clipped ratio, with the KL term of a reference."""
    ratio = torch.exp(logps - old)
    per_token = -torch.min(ratio * advantages, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages)
    if reference is not None:
        per_token = per_token + KL * (torch.exp(reference - logps) - (reference - logps) - 1)
    return per_token.mean()


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor) -> Tensor:
    """PPO's value loss."""
    clipped = torch.clamp(values, old - CLIP, old + CLIP)
    return 0.5 * torch.max(torch.square(values - returns), torch.square(clipped - returns)).mean()


def _scored(run: Run, name: str) -> Tensor:
    return run.rollout[name][:, -_length(run.recipe) :]


# -- a plain loop -----------------------------------------------------------------------------------------------------


def plain_policy_gradient(run: Run) -> Tensor:
    """The head projects completions alone; the reference runs first."""
    recipe, length = run.recipe, _length(run.recipe)

    def log_probs(model: Any) -> Tensor:
        with run.autocast():
            outputs = run.forward(model, logits_to_keep=length + 1)
            logits = outputs.logits.float() if recipe.loss.to_fp32 else outputs.logits
            return losses.label_log_probs(logits[:, :-1], run.ids[:, -length:], recipe)

    reference = run.score_reference(log_probs) if recipe.others.reference in ("resident", "adapter") else None
    return clipped_loss(log_probs(run.policy), _scored(run, "old"), _scored(run, "advantages"), reference)


def plain_value_loss(run: Run) -> Tensor:
    """A value for each token of the critic, and its loss over completions."""
    critic, length = run.beside["critic"], _length(run.recipe)
    with run.autocast():
        hidden = getattr(critic, critic.base_model_prefix)(
            input_ids=run.ids, attention_mask=run.mask, **run.images
        ).last_hidden_state
        values = critic.score(hidden)
        del hidden
    return clipped_value_loss(values[:, -length - 1 : -1, 0], _scored(run, "values"), _scored(run, "returns"))


def plain_distillation(run: Run) -> Tensor:
    """Forward KL of the whole distribution; the teacher runs first."""
    wide = run.recipe.loss.to_fp32
    with torch.no_grad(), run.autocast():
        teacher_logits = run.beside["teacher"](input_ids=run.ids, attention_mask=run.mask, **run.images).logits
        teacher_logits = teacher_logits.float() if wide else teacher_logits
    with run.autocast():
        outputs = run.forward(run.policy)
        logits = outputs.logits
        scores = logits.float() if wide else logits
        student, teacher = functional.log_softmax(scores, dim=-1), functional.log_softmax(teacher_logits, dim=-1)
        return functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


# -- TRL --------------------------------------------------------------------------------------------------------------


def trl_grpo(run: Run) -> Tensor:
    """trl 0.17 to 1.14, trainer/grpo_trainer.py and rloo_trainer.py: _get_per_token_logps_and_entropies."""
    recipe, length = run.recipe, _length(run.recipe)
    held = recipe.loss.code.holds_logits

    def log_probs(model: Any) -> Tensor:
        outputs = run.call(model, logits_to_keep=length + 1)
        logits = outputs["logits"]
        if not held:
            del outputs
        logits = logits[:, :-1, :]
        if recipe.loss.code.rescales:
            logits = logits / 1.0
        return losses.label_log_probs(logits, run.ids[:, -length:], recipe)

    reference = run.score_reference(log_probs) if recipe.others.reference in ("resident", "adapter") else None
    return clipped_loss(log_probs(run.policy), _scored(run, "old"), _scored(run, "advantages"), reference)


def trl_fused_grpo(run: Run) -> Tensor:
    """trl 1.16: the fused head over completions; log-probabilities of whole rows, -100 elsewhere."""
    recipe, length = run.recipe, _length(run.recipe)
    rows = torch.arange(run.ids.shape[0], device=run.ids.device).repeat_interleave(length)
    columns = torch.arange(length, device=run.ids.device).repeat(run.ids.shape[0]) + run.ids.shape[1] - 1 - length

    def scores(hidden_states: Tensor, weight: Tensor) -> Tensor:
        labels = run.ids[:, 1:][rows, columns]
        found: Any = Tiles.apply(hidden_states[:, :-1][rows, columns], weight, labels)
        return found.view(-1, length)

    def log_probs(model: Any) -> Tensor:
        found: Tensor = within_forward(run, model, scores)
        return found

    reference = run.score_reference(log_probs) if recipe.others.reference in ("resident", "adapter") else None
    return clipped_loss(log_probs(run.policy), _scored(run, "old"), _scored(run, "advantages"), reference)


def trl_online_dpo(run: Run) -> Tensor:
    """trl 1.16, experimental/online_dpo/online_dpo_trainer.py: _forward, training_step."""
    length = _length(run.recipe)

    def forward(model: Any) -> Tensor:
        output = run.call(model)
        logits = output["logits"][:, -length - 1 : -1]
        labels = run.ids[:, -length:].unsqueeze(-1)
        return torch.take_along_dim(logits.log_softmax(dim=-1), labels, dim=2).squeeze(-1)

    logprobs = forward(run.policy)
    return run.loss(logprobs.sum(1), run.score_reference(forward).sum(1))


def trl_gkd(run: Run) -> Tensor:
    """trl 1.16, experimental/gkd/gkd_trainer.py: compute_loss, generalized_jsd_loss."""
    student_outputs = run.call(run.policy)
    with torch.no_grad():
        teacher_outputs = run.call(run.beside["teacher"])
    student, teacher = student_outputs["logits"][:, :-1, :], teacher_outputs["logits"][:, :-1, :]
    return _jensen_shannon(run, student, teacher)


def _jensen_shannon(run: Run, student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    student_logits = student_logits / 1.0
    teacher_logits = teacher_logits / 1.0
    student_log_probs = functional.log_softmax(student_logits, dim=-1)
    teacher_log_probs = functional.log_softmax(teacher_logits, dim=-1)
    mixture = torch.logsumexp(torch.stack([student_log_probs - 0.7, teacher_log_probs - 0.7]), dim=0)
    kl_teacher = functional.kl_div(mixture, teacher_log_probs, reduction="none", log_target=True)
    kl_student = functional.kl_div(mixture, student_log_probs, reduction="none", log_target=True)
    jsd = 0.5 * kl_teacher + 0.5 * kl_student
    length = _length(run.recipe)
    jsd = jsd[run.scored // length, run.scored % length]
    return jsd.sum() / 2


def trl_ppo(run: Run) -> Tensor:
    """trl 1.12, experimental/ppo/ppo_trainer.py: PolicyAndValueWrapper.forward, train. The training loop's names for
    the outputs and for the distribution that is logged live on until the next micro-step's."""
    critic, names, length = run.beside["critic"], run.beside["names"], _length(run.recipe)

    def wrapper() -> tuple[Any, Tensor]:
        keys = {"input_ids": run.ids, "attention_mask": run.mask, "output_hidden_states": True}
        with run.autocast():
            output = getattr(critic, critic.base_model_prefix)(**keys)
            values = critic.score(output.hidden_states[-1])
            outputs = run.policy(**keys)
            del output
        wide = run.recipe.loss.code.leaves_autocast
        return ({name: to_fp32(each) for name, each in outputs.items()}, values.float()) if wide else (outputs, values)

    def log_probs(logits: Tensor) -> Tensor:
        logits /= 1.0
        return losses.label_log_probs(logits, run.ids[:, -length:], run.recipe)

    reference = run.score_reference(lambda model: log_probs(run.call(model)["logits"][:, -length - 1 : -1]))
    names["output"], values = wrapper()
    names["logits"] = names["output"]["logits"][:, -length - 1 : -1]
    del reference
    loss = clipped_loss(log_probs(names["logits"]), _scored(run, "old"), _scored(run, "advantages"), None)
    if "distribution" not in names:
        names["distribution"] = torch.empty_like(names["logits"])
    return loss + clipped_value_loss(values[:, -length - 1 : -1, 0], _scored(run, "values"), _scored(run, "returns"))


def find_online(recipe: Recipe) -> Callable[[Run], Any] | None:
    """The function that stands for a job's trainer and method, where the method is online or has a teacher."""
    method, plain = recipe.method, recipe.trainer.name == "pytorch"
    if method.teacher:
        return plain_distillation if plain else trl_gkd
    if method.name == "online-dpo" and not plain:
        return trl_online_dpo
    if not method.optional_reference:
        return None
    if plain:
        return plain_policy_gradient
    if recipe.others.critic is not None:
        return trl_ppo
    return trl_fused_grpo if recipe.loss.head == "fused" else trl_grpo
