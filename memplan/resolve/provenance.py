"""What the report says of a job that is resolved: every value, and where each came from."""

from typing import Any

from memplan.resolve.freezing import RESTING, TOWER
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import Base
from memplan.resolve.router_loss import balance_shown
from memplan.spec.groups import Provenance
from memplan.spec.job import Job
from memplan.spec.recipe import Recipe
from memplan.tables.trainers import SHOWN_HEADS
from memplan.units import DTYPE_BYTES

NOTHING_YET = Provenance({}, {})


def provenance(job: Job, recipe: Recipe, entropy: str, base: Base, notes: Notes) -> Provenance:
    """Of a recipe that is whole but for this."""
    return Provenance(
        job=_given(job, recipe) | _head(job, recipe) | _resolved(job, recipe, entropy) | base.as_job,
        sources=notes.sources,
        origins=notes.told(),
        assumptions=tuple(notes.assumptions),
        warnings=tuple(notes.warnings),
        unclear=notes.unclear,
        bounded=notes.bounded,
    )


def _given(job: Job, recipe: Recipe) -> dict[str, Any]:
    """The job's own values. What is not given of a framework's settings stays so: some defaults refuse others."""
    parts = ("megatron", "fsdp", "ddp", "deepspeed")
    values = job.model_dump(mode="json", exclude_none=True, exclude={"zero_stage", *parts})
    for key in parts:
        part = getattr(job, key)
        given = part.model_dump(mode="json", exclude_unset=True, exclude_none=True) if part.model_fields_set else {}
        if given:
            values[key] = given
    if recipe.loss.head == "score":
        return {key: value for key, value in values.items() if key not in ("loss_head", "logits_dtype")}
    return values


def _head(job: Job, recipe: Recipe) -> dict[str, Any]:
    """What the loss makes of logits; nothing where a scalar head has none."""
    loss, half = recipe.loss, recipe.storage.precision.dtype
    if loss.head == "score":
        return {}
    wide = "fp32" if loss.to_fp32 or half == "fp32" else "auto" if half == "fp16" else "bf16"
    shown = SHOWN_HEADS.get(loss.head, loss.head)
    return {"loss_head": _said(job.loss_head, shown), "logits_dtype": _said(job.logits_dtype, wide)}


def _resolved(job: Job, recipe: Recipe, entropy: str) -> dict[str, Any]:
    """Every auto by what it came to: a job that gives the same report again."""
    storage, half = recipe.storage, recipe.storage.precision.dtype
    return {
        "dtype": half,
        "precision": storage.precision.name,
        "autocast": recipe.numerics.autocast > 0,
        "grad_dtype": _said(job.grad_dtype, _dtype(storage.gradient_itemsize, half)),
        "reduce_dtype": job.deepspeed.communication_data_type
        or _said(job.reduce_dtype, _dtype(storage.reduce_itemsize, half)),
        "sft_term": recipe.loss.sft_term,
        "entropy": entropy,
        "completion_length": job.completion_length or job.sequence_length
        if recipe.batch.longest
        else recipe.batch.completion_length,
        **balance_shown(recipe.model, recipe.loss.router),
        "freeze": list(job.freeze or (RESTING if job.lora is None and TOWER in recipe.model.frozen else ())),
        "sharding": recipe.sharding.name,
        "attention": recipe.operators.attention,
        "mixer_kernels": "cuda" if recipe.operators.mixer_kernels else "torch",
        "optimizer_impl": recipe.optimizer.implementation,
        "reference": job.reference if job.reference == "second-adapter" else recipe.others.reference,
        "expert_tensor_parallel": recipe.parallel.expert_tensor,
        "gradient_checkpointing": recipe.checkpointing.form,
        "gradient_checkpointing_reentrant": recipe.checkpointing.reentrant,
        "gradient_accumulation_steps": recipe.batch.accumulation,
    }


def _said(value: str, found: str) -> str:
    """What was said stays as it was said; what was auto is shown as it was found."""
    return found if value == "auto" else value


def _dtype(itemsize: int, half: str) -> str:
    """The dtype of so many bytes beside matmuls in ``half``."""
    return "fp32" if itemsize == DTYPE_BYTES["fp32"] else "bf16" if half == "fp32" else half
