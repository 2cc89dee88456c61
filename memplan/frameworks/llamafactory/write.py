"""LLaMA-Factory's YAML of a job, the DeepSpeed JSON that it names, and the command."""

from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import ZERO_FILE, half_of, machines_of, run_script, stage_of, zero_config
from memplan.frameworks.base import File, Writing
from memplan.frameworks.hugging_face.write import ROUTER_COEFFICIENT, arguments
from memplan.spec.job import Job

CONFIG = "llamafactory.yaml"
STAGES = {"sft": "sft", "reward": "rm", "kto": "kto"}
LOSSES = {"dpo": "sigmoid", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}
ATTENTION = {"sdpa": "sdpa", "eager": "disabled"}
OPTIMIZERS = {"galore": "use_galore", "apollo": "use_apollo", "adam-mini": "use_adam_mini", "muon": "use_muon"}


def write(job: Job, writing: Writing) -> list[File]:
    """llamafactory.yaml, deepspeed.json where ZeRO is on, run.sh."""
    values: dict[str, Any] = {"model_name_or_path": writing.model, "do_train": True, **_settings(job)}
    own = {"dataset": "DATASET", "template": "TEMPLATE", "output_dir": "OUTPUT"}
    command = f"llamafactory-cli train {CONFIG}"
    head = (f"LLaMA-Factory, as memplan planned it: {command}", *writing.expects)
    files = [File(CONFIG, values, comment=head, placeholders=own)]
    if stage_of(job) is not None:
        files.append(File(ZERO_FILE, zero_config(job, "auto")))
    several = job.num_gpus > 1 or job.sharding not in (None, "none")
    machines, each = machines_of(job)
    launcher = f"{'FORCE_TORCHRUN=1 ' if several else ''}NPROC_PER_NODE={each} "  # else on every GPU that it sees
    if machines > 1:
        launcher += f'NNODES={machines} NODE_RANK="$NODE_RANK" MASTER_ADDR="$MASTER_ADDR" '
    return [*files, run_script(launcher + command, job,
                               ("FILL IN dataset, template and output_dir first.", *writing.expects))]  # fmt: skip


def _settings(job: Job) -> dict[str, Any]:
    if job.method in LOSSES:
        values: dict[str, Any] = {"stage": "dpo", "pref_loss": LOSSES[job.method]}
    elif job.method in STAGES:
        values = {"stage": STAGES[job.method]}
    else:
        raise InvalidJob(f"method: {job.method} is not what LLaMA-Factory trains", f"it trains {', '.join(LOSSES)}, "
                         f"{', '.join(STAGES)}")  # fmt: skip
    values |= {"finetuning_type": "lora" if job.lora else "full", "cutoff_len": job.sequence_length}
    shared = arguments(job)
    for key in ("gradient_checkpointing", "gradient_checkpointing_kwargs", "use_liger_kernel", "optim_args",
                "optim_target_modules"):  # fmt: skip
        shared.pop(key, None)
    values |= shared | _precision(job)
    if "checkpoints" in job.offload:
        values["use_unsloth_gc"] = True
    if job.gradient_checkpointing == "none":
        values["disable_gradient_checkpointing"] = True
    values["use_reentrant_gc"] = job.gradient_checkpointing_reentrant
    values["flash_attn"] = ATTENTION.get(job.attention, f"fa{min(job.flash_version, 3)}")
    if job.kernels == "liger":
        values["enable_liger_kernel"] = True
    if job.sft_term and job.method in ("dpo", "ipo"):
        values["pref_ftx"] = 1.0
    if job.optimizer in OPTIMIZERS:
        values[OPTIMIZERS[job.optimizer]] = True
        values.pop("optim", None)
        own = job.optimizer_args
        if job.optimizer in ("galore", "apollo"):
            targets = own.targets or "all-linear"
            values[f"{job.optimizer}_rank"] = own.rank or 128
            values[f"{job.optimizer}_update_interval"] = own.update_proj_gap or 200
            values[f"{job.optimizer}_target"] = "all" if targets == "all-linear" else ",".join(targets)
    if stage_of(job) is not None:
        values["deepspeed"] = ZERO_FILE
    elif job.sharding in ("fsdp", "fsdp2"):
        values |= _fsdp(job)
    if job.router_aux_loss:
        values["moe_aux_loss_coef"] = ROUTER_COEFFICIENT
    return values | _lora(job)


def _fsdp(job: Job) -> dict[str, Any]:
    """TrainingArguments' own: version and strategy."""
    given = job.fsdp.model_dump(exclude_unset=True)
    offload = bool(given.get("cpu_offload")) or "parameters" in job.offload
    config: dict[str, Any] = {"version": 1 if job.sharding == "fsdp" else 2}
    if job.sharding == "fsdp2":
        config["reshard_after_forward"] = job.reshard_after_forward is not False
    else:
        config |= {key: given[key] for key in ("backward_prefetch", "forward_prefetch", "use_orig_params")
                   if given.get(key) is not None}  # fmt: skip
    strategy = (given.get("sharding_strategy") or "FULL_SHARD").lower()
    return {"fsdp": f"{strategy} auto_wrap{' offload' if offload else ''}", "fsdp_config": config}


def _precision(job: Job) -> dict[str, Any]:
    """bf16 or fp16 with trained weights in fp32; ``pure_bf16`` for all in bf16."""
    half = half_of(job)
    if job.precision == "bf16" and job.autocast is False:
        return {"pure_bf16": True, "bf16": False, "fp16": False}
    return {"bf16": half == "bf16", "fp16": half == "fp16"}


def _lora(job: Job) -> dict[str, Any]:
    if job.lora is None:
        return {}
    lora = job.lora
    values: dict[str, Any] = {
        "lora_rank": lora.r,
        "lora_alpha": int(lora.alpha) if lora.alpha is not None else 2 * lora.r,
        "lora_dropout": lora.dropout,
        "lora_target": "all" if isinstance(lora.targets, str) else ",".join(lora.targets),
    }
    if lora.modules_to_save:
        values["additional_target"] = ",".join(lora.modules_to_save)
    values |= {key: True for key, on in (("use_dora", lora.dora), ("use_rslora", lora.rslora)) if on}
    if job.quantization == "int8":
        values["quantization_bit"] = 8
    elif job.quantization.startswith(("nf4", "fp4")):
        kind, _, twice = job.quantization.partition("-")
        values |= {"quantization_bit": 4, "quantization_type": kind, "double_quantization": bool(twice)}
    elif job.quantization == "hqq-4bit":
        values |= {"quantization_bit": 4, "quantization_method": "hqq"}
    return values
