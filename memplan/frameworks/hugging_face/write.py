"""TrainingArguments of a job, as transformers and TRL spell them."""

from typing import Any

from memplan.frameworks.accelerate.write import half_of, stage_of
from memplan.frameworks.hugging_face.arguments import OPTIMIZERS
from memplan.frameworks.hugging_face.precision import LOADS
from memplan.spec.job import Job
from memplan.spec.recompute import EVERY, every_nth

ROUTER_COEFFICIENT = 0.001
"""Of the routers' load-balancing loss where a switch turns it on by its coefficient: TRL's default, and Qwen3's."""


def attention(job: Job) -> str:
    """``attn_implementation``."""
    return f"flash_attention_{job.flash_version}" if job.attention == "flash" else job.attention


def arguments(job: Job) -> dict[str, Any]:
    """The shared ones, in the order that people write them."""
    half = half_of(job) if job.float8 == "none" or stage_of(job) is not None else "no"  # beside which no fp8 is made
    values: dict[str, Any] = {
        "per_device_train_batch_size": job.batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "gradient_checkpointing": job.gradient_checkpointing != "none",
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "optim": optim(job),
    }
    if job.gradient_checkpointing != "none" or job.gradient_checkpointing_reentrant:
        values["gradient_checkpointing_kwargs"] = {
            "use_reentrant": job.gradient_checkpointing_reentrant,
            **some_layers(job),
        }
    values |= optim_arguments(job)
    if job.empty_cache_steps:
        values["torch_empty_cache_steps"] = job.empty_cache_steps
    if job.compile:
        values["torch_compile"] = True
    if job.kernels == "liger":
        values["use_liger_kernel"] = True
    if job.eval_batch_size is not None:
        values |= {"eval_strategy": "steps", "per_device_eval_batch_size": job.eval_batch_size}
    if job.sync_each_batch and job.sharding in ("fsdp", "fsdp2", "ddp") and job.gradient_accumulation_steps > 1:
        values["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    if job.ddp.bucket_cap_mb is not None:
        values["ddp_bucket_cap_mb"] = job.ddp.bucket_cap_mb
    if job.ddp.find_unused_parameters is not None:
        values["ddp_find_unused_parameters"] = job.ddp.find_unused_parameters
    return values


def optim_arguments(job: Job) -> dict[str, Any]:
    """Those of an optimizer of low rank."""
    own = job.optimizer_args.model_dump(exclude_none=True)
    pairs = ", ".join(f"{key}={own[key]}" for key in ("rank", "update_proj_gap") if key in own)
    values: dict[str, Any] = {"optim_args": pairs} if pairs else {}
    if "targets" in own:
        values["optim_target_modules"] = own["targets"] if isinstance(own["targets"], str) else list(own["targets"])
    return values


def some_layers(job: Job) -> dict[str, Any]:
    """``gradient_checkpointing_kwargs`` beside ``use_reentrant``: transformers' every_n_layers, TRL's policy of SFT."""
    how = job.gradient_checkpointing
    if how.startswith(EVERY):
        return {"every_n_layers": every_nth(how)}
    return {"selective": True} if how == "selective" and (job.trainer, job.method) == ("trl", "sft") else {}


def optim(job: Job) -> str:
    """The name in OptimizerNames; the job's own where it has none, which the reader then refuses."""
    library = job.optimizer_args.library
    if job.optimizer == "adamw":
        return "adamw_torch_fused" if job.optimizer_impl == "fused" else "adamw_torch"
    for name, row in OPTIMIZERS.items():
        if row["optimizer"] == job.optimizer and library in (None, row.get("library", library)):
            return name
    return job.optimizer


def load_dtype(job: Job) -> str:
    """``dtype``: what the checkpoint is loaded in."""
    kind, _, how = job.precision.partition("-")
    if how == "amp":
        return "float32"
    return "bfloat16" if stage_of(job) is not None and kind == "fp32" else LOADS[kind]
