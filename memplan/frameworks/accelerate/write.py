"""accelerate's config and DeepSpeed's JSON, of a job: how a training is spread over GPUs."""

import shlex
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.base import File, Writing
from memplan.frameworks.files import quoting
from memplan.spec.allocator import conf_text
from memplan.spec.job import Job
from memplan.units import ceil_div, words_of

CONFIG, ZERO_FILE, SCRIPT = "accelerate.yaml", "deepspeed.json", "run.sh"
LAUNCHING = words_of(
    "num_gpus sharding zero_stage deepspeed fsdp offload reshard_after_forward tensor_parallel context_parallel"
)
"""Keys that accelerate's files say; the rest is the script's."""


def stage_of(job: Job) -> int | None:
    """The ZeRO stage; None without DeepSpeed."""
    if job.zero_stage is not None:
        return job.zero_stage
    sharding = job.sharding or ""
    return int(sharding[4]) if sharding.startswith("zero") else None


def half_of(job: Job) -> str:
    """What accelerate's autocast, or DeepSpeed, runs in: no, bf16 or fp16."""
    kind, _, how = job.precision.partition("-")
    if kind == "fp32":
        return "no"
    return kind if how or job.autocast or stage_of(job) is not None else "no"


def files_of(job: Job, writing: Writing) -> list[File]:
    """accelerate.yaml, and deepspeed.json where ZeRO is on."""
    machines, _ = machines_of(job)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "mixed_precision": half_of(job),
        "num_machines": machines,
        "num_processes": job.num_gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
    }
    files = []
    if stage_of(job) is not None:
        config["distributed_type"] = "DEEPSPEED"
        config["deepspeed_config"] = {"deepspeed_config_file": ZERO_FILE, "zero3_init_flag": stage_of(job) == 3}
        config.pop("mixed_precision")
        files.append(File(ZERO_FILE, zero_config(job, "auto")))
    elif job.sharding in ("fsdp", "fsdp2"):
        config["distributed_type"] = "FSDP"
        config["fsdp_config"] = fsdp_config(job)
    elif job.num_gpus > 1:
        config["distributed_type"] = "MULTI_GPU"
    config |= _parallelism(job) | _float8(job)
    comment = ("accelerate's config, as memplan planned it.", *writing.expects)
    if machines > 1:
        comment += ("On each machine set machine_rank, main_process_ip and main_process_port (FILL IN).",)
    return [File(CONFIG, config, comment=comment), *files]


def _float8(job: Job) -> dict[str, Any]:
    """torchao's or TransformerEngine's recipe: accelerate's config has one of each. InvalidJob for another."""
    if job.float8 == "none":
        return {}
    if job.float8 == "te":
        return {"mixed_precision": "fp8", "fp8_config": {"backend": "TE"}}
    if job.float8 != "tensorwise" or job.sharding == "fsdp":
        raise InvalidJob(f"float8: {job.float8} cannot be said to accelerate's config", "use float8 tensorwise")
    gathers = job.fsdp.float8_all_gather
    return {"mixed_precision": "fp8", "fp8_config": {"backend": "AO", "enable_fsdp_float8_all_gather": gathers}}


def fsdp_config(job: Job) -> dict[str, Any]:
    """``fsdp_config``: accelerate's names of the job's FSDP settings."""
    one = job.sharding == "fsdp"
    given = job.fsdp.model_dump(exclude_unset=True)
    config: dict[str, Any] = {
        "fsdp_version": 1 if one else 2,
        "fsdp_auto_wrap_policy": given.get("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
        "fsdp_offload_params": bool(given.get("cpu_offload")) or "parameters" in job.offload,
        "fsdp_state_dict_type": given.get("state_dict_type") or "FULL_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": bool(given.get("cpu_ram_efficient_loading")),
    }
    if not one:
        return config | {"fsdp_reshard_after_forward": job.reshard_after_forward is not False}
    return config | {
        "fsdp_sharding_strategy": given.get("sharding_strategy") or "FULL_SHARD",
        "fsdp_backward_prefetch": given.get("backward_prefetch") or "NO_PREFETCH",
        "fsdp_forward_prefetch": bool(given.get("forward_prefetch", False)),
        "fsdp_use_orig_params": given.get("use_orig_params") is not False,
    }


def _parallelism(job: Job) -> dict[str, Any]:
    """``parallelism_config``: under FSDP2 sizes that multiply to the processes, under DeepSpeed Ulysses' ranks; nothing
    where a sequence is one rank's and states are divided over all."""
    if job.tensor_parallel > 1:
        raise InvalidJob("tensor_parallel: no file of accelerate's divides a model", "load it with a DistributedConfig")
    context, copies = job.context_parallel, job.fsdp.replicate or 1
    if context * copies == 1 or job.sharding == "fsdp":
        return {}
    sizes = {"dp_replicate": copies, "dp_shard": job.num_gpus // (copies * context), "tp": 1, "cp": context}
    zero = stage_of(job) is not None
    sizes = {"sp": context} if zero else sizes
    found: dict[str, Any] = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    return {"parallelism_config": found | ({"parallelism_config_sp_backend": "deepspeed"} if zero else {})}


def zero_config(job: Job, batch: Any) -> dict[str, Any]:
    """DeepSpeed's config; ``batch`` auto leaves batch and dtype to the Trainer, else they are written out."""
    stage, given = stage_of(job) or 0, job.deepspeed.model_dump(exclude_unset=True, exclude_none=True)
    half = half_of(job)
    auto = batch == "auto"
    fallback = "auto" if not given.get("own_defaults") else None
    zero: dict[str, Any] = {"stage": stage}
    sizes = ["reduce_bucket_size"]
    sizes += ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"] if stage == 3 else []
    if fallback:
        zero |= dict.fromkeys(sizes, fallback)
    outside = ("communication_data_type", "zero_force_ds_cpu_optimizer", "zero_allow_untested_optimizer")
    inner = {k: v for k, v in given.items() if k not in (*outside, *NOT_OF_ZERO)}
    zero |= inner
    for what, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        if what in job.offload:
            zero.setdefault(key, {"device": "cpu", "pin_memory": True})
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto" if auto else job.batch_size,
        "gradient_accumulation_steps": "auto" if auto else job.gradient_accumulation_steps,
        "gradient_clipping": "auto" if auto else 1.0,
        "bf16": {"enabled": "auto" if auto else half == "bf16"},
        "fp16": {"enabled": "auto" if auto else half == "fp16"},
        "zero_optimization": zero,
    }
    if given.get("immediate_grad_update") is not None:
        config["bf16"]["immediate_grad_update"] = given["immediate_grad_update"]
    if given.get("grad_accum_dtype") or (job.grad_dtype == "fp32" and stage and half != "no"):
        config["data_types"] = {"grad_accum_dtype": given.get("grad_accum_dtype") or "fp32"}
    return config | {key: given[key] for key in outside if key in given}


NOT_OF_ZERO = ("stage", "own_defaults", "ds_optimizer", "grad_accum_dtype", "immediate_grad_update", "zero_init")


def machines_of(job: Job) -> tuple[int, int]:
    """Machines, and the GPUs of each."""
    machines = ceil_div(job.num_gpus, job.gpus_per_node)
    return machines, job.num_gpus // machines


def torchrun(job: Job) -> str:
    """torchrun with as many processes as the job has GPUs; on several machines each says which it is."""
    machines, each = machines_of(job)
    which = ' --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port 29500' if machines > 1 else ""
    return f"torchrun --nnodes {machines} --nproc_per_node {each}{which}"


def run_script(command: str, job: Job, comment: tuple[str, ...]) -> File:
    """run.sh: the environment that the plan assumes, and the command."""
    if "NODE_RANK" in command:
        comment += ("FILL IN on each machine: export NODE_RANK=0 (1, 2, …) MASTER_ADDR=HOST before it runs.",)
    lines = ["#!/usr/bin/env bash", *quoting.comment(comment), "set -euo pipefail", 'cd "$(dirname "$0")"']
    if conf := conf_text(job.allocator):
        lines.append(f"export PYTORCH_CUDA_ALLOC_CONF={shlex.quote(conf)}")
    return File(SCRIPT, text="\n".join([*lines, "", command, ""]))


def write_deepspeed(job: Job, writing: Writing) -> list[File]:
    """DeepSpeed's JSON alone, every number written out: ``auto`` is for Hugging Face's Trainer."""
    if stage_of(job) is None:
        raise InvalidJob(f"sharding: {job.sharding} is not what DeepSpeed runs", "add --zero-stage 1, 2 or 3")
    config = zero_config(job, None)
    zero = config["zero_optimization"]
    for key, value in writing.recipe.sharding.deepspeed.as_config().items():
        if key not in zero or zero[key] == "auto":
            zero[key] = value
    return [File("deepspeed.json", config)]
