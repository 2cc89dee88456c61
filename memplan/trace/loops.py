"""The loss code of trainers, line by line as far as memory feels it: their locals, their copies, their order.

Each function stands for one trainer's ``compute_loss``; the source is named at each. Data-dependent indexing, which
fake tensors forbid, is replaced by indexing of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memplan.spec.recipe import Recipe
from memplan.trace import kernels, losses

ROWS_AT_ONCE = 128


class Run:
    """A micro-step's models and data, and how this trainer calls a model."""

    def __init__(
        self,
        recipe: Recipe,
        policy: Any,
        reference: Any,
        ids: Tensor,
        mask: Tensor | None,
        beside: Mapping[str, Any] = MappingProxyType({}),
        rollout: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.recipe, self.policy, self.reference, self.ids, self.mask = recipe, policy, reference, ids, mask
        self.beside, self.rollout = beside, rollout
        self.pairs = ids.shape[0] // 2
        count = recipe.rows * min(recipe.completion_length, recipe.sequence_length - 1)
        self.scored = torch.arange(count, device=ids.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast, where the job runs under it."""
        if not self.recipe.autocast:
            return nullcontext()
        dtype = torch.float16 if self.recipe.half_to_float else torch.bfloat16
        context: AbstractContextManager[Any] = torch.autocast(self.ids.device.type, dtype=dtype)
        return context

    def call(self, model: Any, **keys: Any) -> Any:
        """The model's outputs; accelerate and Fabric make fp32 copies of all of them when autocast is left."""
        with self.autocast():
            outputs = model(input_ids=self.ids, attention_mask=self.mask, **keys)
        if not self.recipe.loss_code.leaves_autocast:
            return outputs
        return {key: _to_fp32(value) for key, value in outputs.items()}

    def logits(self, model: Any, **keys: Any) -> Tensor:
        """Logits alone, of outputs that nobody holds."""
        found: Tensor = self.call(model, **keys)["logits"]
        return found

    def score_reference(self, score: Callable[[Any], Any]) -> Any:
        """The reference through a trainer's own forward: a model of its own, or the base without adapters."""
        with torch.no_grad():
            if self.recipe.reference == "resident":
                return score(self.reference)
            if self.recipe.reference == "adapter":
                with self.policy.disable_adapter():
                    return score(self.policy)
            return torch.zeros(self.ids.shape[0], device=self.ids.device)

    def loss(self, scores: Tensor, reference: Tensor | None) -> Tensor:
        """The method's formula over scores of chosen and rejected rows."""
        method = self.recipe.method.name
        if method == "kto":
            assert reference is not None
            return losses.kto_loss(scores, reference, torch.zeros((), device=scores.device))
        references = None if reference is None else tuple(reference.chunk(2))
        return losses.pair_loss(method, *scores.chunk(2), references)  # type: ignore[arg-type]


def _to_fp32(value: Any) -> Any:
    """accelerate's ``convert_to_fp32``."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    return tuple(_to_fp32(each) for each in value) if isinstance(value, tuple) else value


def _picked(run: Run, logits: Tensor) -> Tensor:
    """The scored logits of half of the rows, as a mask picks them: without a copy of the slice."""
    tokens = run.scored[: run.scored.numel() // 2]
    length = min(run.recipe.completion_length, run.recipe.sequence_length - 1)
    return logits[tokens // length, tokens % length]


# -- TRL --------------------------------------------------------------------------------------------------------------


def trl_dpo_before_029(run: Run) -> Tensor:
    """trl 0.14 and 0.24, trainer/dpo_trainer.py: concatenated_forward, get_batch_loss_metrics."""
    hidden = {"output_hidden_states": True} if run.recipe.loss_code.hidden_states else {}

    def concatenated_forward(model: Any) -> dict[str, Tensor]:
        outputs = run.call(model, **hidden)
        logits = outputs["logits"]
        labels = torch.roll(run.ids, shifts=-1, dims=1)
        per_token = losses.label_log_probs(logits, labels, run.recipe)
        output = {"logps": per_token[:, 1:].sum(-1)}
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            output["chosen"] = _picked(run, logits[: run.pairs]).mean()
            output["rejected"] = _picked(run, logits[run.pairs :]).mean()
        return output

    policy = concatenated_forward(run.policy)
    reference = run.score_reference(lambda model: concatenated_forward(model)["logps"])
    return run.loss(policy["logps"], reference)


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
    if run.recipe.loss_code.metrics == "pairs":
        kernels.entropy_by_rows(shift_logits.detach())
    chosen, rejected = shift_logits.detach().chunk(2, dim=0)
    _picked(run, chosen).mean(-1).sum()
    _picked(run, rejected).mean(-1).sum()
    return loss


def trl_cpo(run: Run) -> Tensor:
    """trl 0.9 to 1.16, experimental/cpo/cpo_trainer.py and orpo_trainer.py: concatenated_forward."""

    def concatenated_forward() -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        all_logits = run.logits(run.policy)
        term = None
        if run.recipe.sft_term:
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
    half = torch.arange(max(1, run.ids.shape[0] // 2), device=run.ids.device)

    def forward(model: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            kl_logits = run.logits(model)
            losses.label_log_probs(kl_logits[:, :-1], run.ids[:, 1:], run.recipe)
            del kl_logits
        logits = run.logits(model)
        logps = losses.label_log_probs(logits[:, :-1], run.ids[:, 1:], run.recipe).sum(-1)
        return logps, logits[half], logits[half]

    logps, _chosen, _rejected = forward(run.policy)
    reference = run.score_reference(lambda model: forward(model)[0])
    return run.loss(logps, reference)


def trl_kto(run: Run) -> Tensor:
    """trl 1.0 to 1.14, trainer/kto_trainer.py: _compute_kl_logps, _compute_loss."""
    half = torch.arange(max(1, run.ids.shape[0] // 2), device=run.ids.device)

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
    if run.recipe.loss_code.metrics == "chosen-and-rejected":
        kernels.entropy_by_rows(shift_logits.detach())
    chosen_logits = shift_logits.detach().index_select(0, half)
    rejected_logits = shift_logits.detach().index_select(0, half)
    _picked(run, chosen_logits).mean(-1).sum()
    _picked(run, rejected_logits).mean(-1).sum()
    return loss


def trl_sft(run: Run) -> tuple[Tensor, Any]:
    """trl 0.16 to 1.6, trainer/sft_trainer.py: compute_loss."""
    outputs = run.call(run.policy, labels=run.ids)
    if run.recipe.loss_code.metrics == "shifted":
        with torch.no_grad():
            kernels.entropy_by_rows(outputs["logits"])
            shift_logits = outputs["logits"][..., :-1, :].contiguous()
            shift_logits.argmax(dim=-1)
    return outputs["loss"], outputs


# -- other trainers ---------------------------------------------------------------------------------------------------


def llamafactory_pairs(run: Run) -> Tensor:
    """llamafactory 0.9.5, train/dpo/trainer.py: concatenated_forward, get_batch_loss_metrics."""

    def concatenated_forward(model: Any) -> dict[str, Tensor]:
        all_logits = run.logits(model, return_dict=True).to(torch.float32)
        logps = losses.label_log_probs(all_logits[:, :-1, :], run.ids[:, 1:].clone(), run.recipe).sum(-1)
        return {"logps": logps, "chosen": all_logits[: run.pairs], "rejected": all_logits[run.pairs :]}

    model_output = concatenated_forward(run.policy)

    def score(model: Any) -> Tensor:
        ref_output = concatenated_forward(model)
        return ref_output["logps"]

    reference = run.score_reference(score) if run.recipe.method.reference else None
    loss = run.loss(model_output["logps"], reference)
    model_output["chosen"].mean()
    return loss


def llamafactory_kto(run: Run) -> Tensor:
    """llamafactory 0.9.5, train/kto/trainer.py: forward, concatenated_forward, get_batch_loss_metrics."""
    half = torch.arange(max(1, run.ids.shape[0] // 2), device=run.ids.device)

    def forward(model: Any) -> tuple[Tensor, Tensor]:
        logits = run.logits(model, return_dict=True).to(torch.float32)
        return logits, losses.label_log_probs(logits[:, :-1, :], run.ids[:, 1:].clone(), run.recipe).sum(-1)

    def concatenated_forward(model: Any) -> tuple[Tensor, Tensor, Tensor]:
        target_logits, target_logps = forward(model)
        with torch.no_grad():
            _, _kl_logps = forward(model)
        del _
        return target_logps, target_logits[half], target_logits[half]

    logps, _chosen, _rejected = concatenated_forward(run.policy)
    reference = run.score_reference(lambda model: concatenated_forward(model)[0])
    return run.loss(logps, reference)


def simpo_repo(run: Run) -> Tensor:
    """princeton-nlp/SimPO, scripts/simpo_trainer.py: concatenated_forward; transformers 4.44 gives fp32 logits."""
    all_logits = run.logits(run.policy).float()
    term = losses.chosen_cross_entropy(all_logits[:, :-1], run.ids[:, 1:], run.pairs) if run.recipe.sft_term else None
    loss = run.loss(losses.label_log_probs(all_logits[:, :-1, :], run.ids[:, 1:].clone(), run.recipe).sum(-1), None)
    return loss if term is None else loss + term


def openrlhf(run: Run) -> Tensor:
    """openrlhf 0.11, models/actor.py: forward, trainer/dpo_trainer.py: concatenated_forward."""

    def actor(model: Any) -> tuple[Tensor, Any]:
        output = run.call(model)
        output["logits"] = output["logits"].to(torch.float32)
        logps = losses.label_log_probs(output["logits"], torch.roll(run.ids, shifts=-1, dims=1), run.recipe)
        return logps[:, :-1], output

    log_probs, output = actor(run.policy)
    del output
    if run.recipe.method.name == "sft":
        return -log_probs.mean()
    reference = run.score_reference(lambda model: actor(model)[0].sum(-1)) if run.recipe.method.reference else None
    return run.loss(log_probs.sum(-1), reference)


def megatron(run: Run) -> Tensor:
    """NeMo-Aligner, slime and MindSpeed's SimPO: fp32 logits of Float16Module, held until the loss is there."""
    output_tensor = run.logits(run.policy).float()
    logps = losses.label_log_probs(output_tensor, torch.roll(run.ids, shifts=-1, dims=1), run.recipe)
    if run.recipe.method.name == "sft":
        return -logps.mean()
    reference = torch.zeros(run.ids.shape[0], device=run.ids.device) if run.recipe.method.reference else None
    return run.loss(logps.sum(-1), reference)


def mindspeed_dpo(run: Run) -> Tensor:
    """MindSpeed-LLM, tasks/posttrain/dpo/dpo_model.py: __call__, dpo_trainer.py: loss_func."""

    def hyper_model() -> Tensor:
        refer_output = run.score_reference(lambda model: run.logits(model).float())
        policy_output = run.logits(run.policy).float()
        return torch.cat((policy_output, refer_output), dim=0)

    output_tensor = hyper_model()
    policy_logits, reference_logits = torch.chunk(output_tensor, 2, dim=0)
    labels = run.ids[:, 1:].clone()
    scores = losses.label_log_probs(policy_logits[:, :-1, :], labels, run.recipe).sum(-1)
    reference = losses.label_log_probs(reference_logits.detach()[:, :-1, :], labels, run.recipe).sum(-1)
    return run.loss(scores, reference)


def vocabulary_parallel_sft(run: Run) -> Tensor:
    """Megatron's model with labels: its cross-entropy is inside (megatron-core 0.16, models/gpt/gpt_model.py)."""
    logits = run.logits(run.policy)
    return kernels.megatron_cross_entropy(logits, run.ids).mean()


def verl_sft(run: Run) -> Tensor:
    """verl 0.9, workers/engine/fsdp/transformer_impl.py: prepare_model_outputs."""
    logits = run.logits(run.policy)
    return -losses.label_log_probs(logits, torch.roll(run.ids, shifts=-1, dims=1), run.recipe).mean()


def litgpt_sft(run: Run) -> tuple[Tensor, Any]:
    """litgpt 0.5, finetune/full.py: fit; utils.py: chunked_cross_entropy."""
    logits = run.logits(run.policy)
    flat = logits[..., :-1, :].reshape(-1, logits.shape[-1])
    targets = run.ids[..., 1:].reshape(-1)
    pairs = zip(flat.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True)
    chunks = [functional.cross_entropy(chunk, target, reduction="none") for chunk, target in pairs]
    return torch.cat(chunks).mean(), logits


def _backbone(model: Any) -> tuple[Any, Any]:
    """The decoder without its head, and the head, under PEFT's wrapper or not."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model, inner.get_output_embeddings()


def fused(run: Run) -> Tensor:
    """Heads without logits: TRL's fused LM head (trl 1.16, trainer/utils.py: _fused_forward) and its like. They run
    inside the model's forward, so under autocast."""

    def score(model: Any) -> Tensor:
        backbone, lm_head = _backbone(model)
        with run.autocast():
            outputs = backbone(input_ids=run.ids, attention_mask=run.mask)
            return found(outputs.last_hidden_state, lm_head.weight)

    def found(hidden_states: Tensor, weight: Tensor) -> Tensor:
        program, labels = run.recipe.loss_head, run.ids[:, 1:]
        if program != "fused":
            return kernels.fused(program, hidden_states, weight, run.ids)
        rows, columns = run.scored // labels.shape[1], run.scored % labels.shape[1]
        scores: Any = kernels.Tiles.apply(hidden_states[:, :-1][rows, columns], weight, labels[rows, columns])
        return labels.new_zeros(labels.shape, dtype=torch.float32).index_put((rows, columns), scores).sum(-1)

    method = run.recipe.method
    if method.kl_rows:
        with torch.no_grad():
            score(run.policy)
    scores = score(run.policy)
    if method.name == "sft":
        return -scores.mean()
    return run.loss(scores, run.score_reference(score) if method.reference else None)


def litgpt_lora(run: Run) -> tuple[Tensor, Any]:
    """litgpt 0.5, model.py: lm_head_chunk_size, finetune/lora.py: fit."""
    backbone, lm_head = _backbone(run.policy)
    with run.autocast():
        x = backbone(input_ids=run.ids, attention_mask=run.mask).last_hidden_state
        logits = [lm_head(part) for part in x.split(ROWS_AT_ONCE, dim=1)]
        del x
    logits = _to_fp32(tuple(logits)) if run.recipe.fp32_outputs else logits
    targets = run.ids.split(ROWS_AT_ONCE, dim=1)
    pairs = zip(logits, targets, strict=True)
    chunks = [functional.cross_entropy(a.reshape(-1, a.size(-1)), b.reshape(-1), reduction="none") for a, b in pairs]
    return torch.cat(chunks).mean(), logits


def find_loop(recipe: Recipe) -> Callable[[Run], Any] | None:
    """The function that stands for a job's trainer and method; None for the bare loop and the Trainer."""
    method, trainer = recipe.method.name, recipe.trainer
    if method == "reward" or trainer.name in ("pytorch", "transformers"):
        return fused if recipe.loss_head in kernels.FUSED and method != "reward" else None
    if recipe.loss_head in kernels.FUSED:
        return fused
    if recipe.loss_head == "chunked-lm-head":
        return litgpt_lora
    if trainer.name == "trl":
        return _trl(method, trainer.since)
    if trainer.name == "llamafactory":
        return trl_sft if method == "sft" else llamafactory_kto if method == "kto" else llamafactory_pairs
    if recipe.loss_head == "megatron-cross-entropy":
        return vocabulary_parallel_sft
    if recipe.loss_code.stacked:
        return mindspeed_dpo
    others: dict[str, Callable[[Run], Any]] = {
        "simpo-repo": simpo_repo,
        "openrlhf": openrlhf,
        "verl": verl_sft,
        "litgpt": litgpt_sft,
    }
    return others.get(trainer.name, megatron)


def _trl(method: str, since: str) -> Callable[[Run], Any]:
    old = since in ("0.7", "0.16", "0.19")
    if method in ("dpo", "ipo"):
        return trl_dpo_before_029 if old else trl_dpo
    if method == "kto":
        return trl_kto_before_029 if old else trl_kto
    return trl_sft if method == "sft" else trl_cpo
