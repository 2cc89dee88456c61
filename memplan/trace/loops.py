"""The loss code of trainers, line by line as far as memory feels it: their locals, their copies, their order.

Each function stands for one trainer's ``compute_loss``; the source is named at each. Data-dependent indexing, which
fake tensors forbid, is replaced by indexing of the same size."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional

from memplan.spec.recipe import Recipe
from memplan.tables.trainer import version_key
from memplan.trace import fused as fused_kernels
from memplan.trace import kernels, losses
from memplan.trace.loops_trl import trl_cpo, trl_dpo, trl_dpo_before_029, trl_kto, trl_kto_before_029, trl_sft
from memplan.trace.runs import Run, is_read, router_keys, to_fp32
from memplan.trace.support import WITHOUT_LOGITS

ROWS_AT_ONCE = 128


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


def llamafactory_v1(run: Run) -> Tensor:
    """LLaMA-Factory, August 2026 v1/core/base_trainer.py: compute_log_probs, v1/trainers/sft_trainer.py."""

    def compute_log_probs() -> Tensor:
        labels = run.ids
        outputs = run.call(run.policy, labels=labels)
        logits = outputs["logits"].float()
        shift_labels = labels[..., 1:].contiguous().view(-1)
        shift_logits = logits[..., :-1, :].contiguous().view(shift_labels.size(0), -1)
        scores = functional.cross_entropy(shift_logits, shift_labels, reduction="none")
        return -scores.view(labels.shape[0], -1)

    return (-compute_log_probs()).sum() / run.ids.numel()


def llamafactory_kto(run: Run) -> Tensor:
    """llamafactory 0.9.5, train/kto/trainer.py: forward, concatenated_forward, get_batch_loss_metrics."""
    chosen, rejected = torch.arange(run.ids.shape[0], device=run.ids.device).tensor_split(2)

    def forward(model: Any) -> tuple[Tensor, Tensor]:
        logits = run.logits(model, return_dict=True).to(torch.float32)
        return logits, losses.label_log_probs(logits[:, :-1, :], run.ids[:, 1:].clone(), run.recipe).sum(-1)

    def concatenated_forward(model: Any) -> tuple[Tensor, Tensor, Tensor]:
        target_logits, target_logps = forward(model)
        with torch.no_grad():
            _, _kl_logps = forward(model)
        del _
        return target_logps, target_logits[chosen], target_logits[rejected]

    logps, _chosen, _rejected = concatenated_forward(run.policy)
    reference = run.score_reference(lambda model: concatenated_forward(model)[0])
    return run.loss(logps, reference)


def simpo_repo(run: Run) -> Tensor:
    """princeton-nlp/SimPO, scripts/simpo_trainer.py: concatenated_forward; transformers 4.44 gives fp32 logits."""
    all_logits = run.logits(run.policy).float()
    term = (
        losses.chosen_cross_entropy(all_logits[:, :-1], run.ids[:, 1:], run.pairs) if run.recipe.loss.sft_term else None
    )
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
    with run.autocast():
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


def _language_model(model: Any) -> Any:
    """The language model in DDP's and PEFT's wrappers."""
    inner = model.module if hasattr(model, "module") else model
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def _backbone(model: Any) -> tuple[Any, Any]:
    """The decoder without its head, and the head."""
    inner = _language_model(model)
    base = inner.base_model if inner.base_model is not inner else inner.get_decoder()
    while hasattr(base, "lm_head"):  # a language model within a model that sees images
        base = base.model
    return base, inner.get_output_embeddings()


def within_forward(run: Run, model: Any, found: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """What ``found`` makes of hidden states and the head's weight, within the model's own forward: its wrappers' hooks
    are there (trl 1.16, trainer/utils.py: _fused_forward)."""
    inner, (backbone, lm_head) = _language_model(model), _backbone(model)

    def fused_forward(**inputs: Any) -> Tensor:
        told = router_keys(run.recipe, model is run.reference)
        with run.autocast():
            outputs = backbone(**inputs, **told)
            weight = lm_head.weight  # sharded still, where the head alone is a unit that is never called
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
            scores = found(outputs.last_hidden_state, whole)
            if told.get("output_router_logits"):
                balance = run.load_balancing_loss(inner, outputs.router_logits)
                run.balance += [balance] if is_read(run.recipe) else []
            return scores

    return _called(run, model, fused_forward)


def _called(run: Run, model: Any, forward: Callable[..., Any]) -> Any:
    """The model called with another forward of its language model's, so that its wrappers' hooks run."""
    inner = _language_model(model)
    inner.forward = forward
    try:
        return model(input_ids=run.ids, attention_mask=run.mask, **run.images)
    finally:
        del inner.forward


def fused(run: Run) -> Tensor:
    """Heads without logits: TRL's fused LM head (trl 1.16, trainer/utils.py: _fused_forward) and its like. They run
    inside the model's forward, so under autocast. A reference runs before or after the policy, as for other losses."""

    def score(model: Any) -> Any:
        return within_forward(run, model, found)

    def found(hidden_states: Tensor, weight: Tensor) -> Tensor:
        program, labels = run.recipe.loss.head, run.ids[:, 1:]
        if program != "fused":
            return fused_kernels.fused(program, hidden_states, weight, run.ids)
        rows, columns = run.scored // labels.shape[1], run.scored % labels.shape[1]
        scores: Any = fused_kernels.Tiles.apply(hidden_states[:, :-1][rows, columns], weight, labels[rows, columns])
        return labels.new_zeros(labels.shape, dtype=torch.float32).index_put((rows, columns), scores).sum(-1)

    method = run.recipe.method
    if method.kl_rows:
        with torch.no_grad():
            score(run.policy)
    first = method.reference and run.recipe.trainer.reference.first
    reference = run.score_reference(score) if first else None
    scores = score(run.policy)
    if method.name == "sft":
        return -scores.mean()
    if method.reference and not first:
        reference = run.score_reference(score)
    return run.loss(scores, reference)


def litgpt_lora(run: Run) -> tuple[Tensor, Any]:
    """litgpt 0.5, model.py: lm_head_chunk_size, finetune/lora.py: fit."""
    backbone, lm_head = _backbone(run.policy)

    def forward(**inputs: Any) -> list[Tensor]:
        return [lm_head(part) for part in backbone(**inputs).last_hidden_state.split(ROWS_AT_ONCE, dim=1)]

    with run.autocast():
        logits = _called(run, run.policy, forward)
    logits = to_fp32(tuple(logits)) if run.recipe.loss.fp32_outputs else logits
    targets = run.ids.split(ROWS_AT_ONCE, dim=1)
    pairs = zip(logits, targets, strict=True)
    chunks = [functional.cross_entropy(a.reshape(-1, a.size(-1)), b.reshape(-1), reduction="none") for a, b in pairs]
    return torch.cat(chunks).mean(), logits


def find_loop(recipe: Recipe) -> Callable[[Run], Any] | None:
    """The function that stands for a job's trainer and method; None for the bare loop and the Trainer."""
    method, trainer = recipe.method.name, recipe.trainer
    if method == "reward" or trainer.name in ("pytorch", "transformers"):
        return fused if recipe.loss.head in WITHOUT_LOGITS and method != "reward" else None
    if recipe.loss.head in WITHOUT_LOGITS:
        return fused
    if recipe.loss.head == "chunked-lm-head":
        return litgpt_lora
    if trainer.name == "trl":
        return _trl(method, trainer.since)
    if trainer.name == "llamafactory":
        return trl_sft if method == "sft" else llamafactory_kto if method == "kto" else llamafactory_pairs
    if trainer.name == "llamafactory-v1":
        return llamafactory_v1
    if recipe.loss.head == "megatron-cross-entropy":
        return vocabulary_parallel_sft
    if recipe.loss.code.stacked:
        return mindspeed_dpo
    others: dict[str, Callable[[Run], Any]] = {
        "simpo-repo": simpo_repo,
        "openrlhf": openrlhf,
        "verl": verl_sft,
        "litgpt": litgpt_sft,
    }
    found: Callable[[Run], Any] = others.get(trainer.name, megatron)
    return found


def _trl(method: str, since: str) -> Callable[[Run], Any]:
    old = version_key(since) < version_key("0.29")
    if method in ("dpo", "ipo"):
        return trl_dpo_before_029 if old else trl_dpo
    if method == "kto":
        return trl_kto_before_029 if old else trl_kto
    return trl_sft if method == "sft" else trl_cpo
