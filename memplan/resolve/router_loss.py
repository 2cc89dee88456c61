"""Whether the routers' load-balancing loss is made, and whether the trainer's loss reads it.

What the report says of a job that is resolved: every value, and where each came from."""

from typing import Any

from memplan.errors import InvalidJob
from memplan.resolve.freezing import RESTING, TOWER
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import Base
from memplan.spec.groups import Loss, Provenance
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.spec.routing import RouterLoss
from memplan.tables.families import WITHOUT_NUM_EXPERTS
from memplan.tables.methods import Method
from memplan.tables.styles import RouterUse
from memplan.tables.trainer import Trainer, by_method
from memplan.tables.trainers import SHOWN_HEADS
from memplan.units import DTYPE_BYTES

KEY = "router_aux_loss"
WITHOUT_WORD = ("score", "value-head", "own")
"""Heads that no job names."""
READING = ("model", "always", "recorded")
"""Ways of a trainer whose loss can have the term (``Loss.router_term`` of its row)."""
OWN_BALANCE = ("fused", "chunked-nll")
"""Heads of TRL that make it of ``text_config.num_experts`` (trl 1.16 trainer/utils.py, 1.9 trainer/sft_trainer.py)."""


def router_loss(
    loss: Loss,
    job: Job,
    trainer: Trainer,
    method: Method,
    spec: ModelSpec,
    in_megatron: bool,
    reference: str,
    notes: Notes,
) -> RouterLoss:
    """Where the routers' loss is made. Raises InvalidJob where that is asked for and cannot be."""
    apart = in_megatron or trainer.megatron or method.score_head
    way = "none" if apart else by_method(trainer.loss.router_term, method.name, "model")
    has, told = spec.router_loss != "none" and not spec.tower, spec.router_loss == "on"
    asked = job.router_aux_loss
    if asked and (why := _why_not(trainer, method, spec, way, has)):
        if KEY not in notes.origins:  # of a framework's file, which may say it of any model
            raise InvalidJob(f"{KEY}: {why}", f"leave {KEY} out")
        notes.remark(f"{KEY}: asked for and not counted: {why}")
        asked = None
    if not has or way == "none":
        return RouterLoss()
    read = asked if asked is not None else told if way == "model" else way == "always" and spec.router_loss != "zero"
    told = told and asked is not False
    made: RouterUse = "unread" if way == "recorded" or (told and way == "unread") else ""
    if asked is None and read:
        why = "the model's output_router_logits" if told else f"{trainer.title} asks for it wherever a class has one"
        notes.fill(KEY, True, "default" if told else "trainer", why)
    if read and loss.head in OWN_BALANCE and trainer.name == "trl" and spec.family in WITHOUT_NUM_EXPERTS:
        raise InvalidJob(
            f"{KEY}: {trainer.title} fails on {spec.family} with it: its loss reads num_experts, which the config of "
            "this type does not have",
            f"{KEY}: false, which is router_aux_loss_coef: 0 in TRL's own arguments",
        )
    stacked = trainer.models.transformers_4
    if read or made:
        hot = f"a one-hot mask of {_one_hot(job, spec):,} bytes for each sequence"
        own = f"transformers 4 makes it, over all layers at once, with {hot}"
        notes.assume(
            f"{KEY}: as {own if stacked else f'transformers 5.23 makes it, layer by layer; up to 5.12 it has {hot}'}"
        )
    everywhere: RouterUse = "unread" if told or way == "recorded" else ""
    # TRL asks by an argument of the one forward
    scores: RouterUse = "unread" if read and trainer.name != "trl" else everywhere
    return RouterLoss("read" if read else made, scores, scores if reference == "adapter" else everywhere, stacked)


def balance_shown(spec: ModelSpec, made: RouterLoss) -> dict[str, bool]:
    """The key as the report shows it; not at all where the class has no such loss."""
    return {} if spec.router_loss == "none" else {KEY: made.policy == "read"}


def _why_not(trainer: Trainer, method: Method, spec: ModelSpec, way: str, has: bool) -> str:
    """Why nothing makes the loss, or nothing reads it; empty where it can be."""
    if spec.tower and spec.router_loss != "none":
        return "not modelled beside a vision tower"
    if not has:
        return f"the class of {spec.family} has no load-balancing loss"
    if way not in READING:
        return f"{trainer.title} never adds it to the loss of {method.name}"
    if trainer.loss.balanced and spec.family not in trainer.loss.balanced and spec.router_loss != "on":
        return f"{trainer.title}'s switch does not reach {spec.family}"
    return ""


def _one_hot(job: Job, spec: ModelSpec) -> int:
    """int64 for each layer, token, choice and expert."""
    return sum(
        run.count * job.sequence_length * run.layer.experts.active * run.layer.experts.count * 8
        for run in spec.runs
        if run.layer.experts
    )


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
        trains_alone=notes.trains_alone,
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
    if recipe.loss.head in WITHOUT_WORD:
        return {key: value for key, value in values.items() if key not in ("loss_head", "logits_dtype")}
    return values


def _head(job: Job, recipe: Recipe) -> dict[str, Any]:
    """What the loss makes of logits; nothing where a scalar head has none."""
    loss, half = recipe.loss, recipe.storage.precision.dtype
    if loss.head in WITHOUT_WORD:
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
