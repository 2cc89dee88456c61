"""OpenRLHF's command of a job, in a script."""

from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import machines_of, run_script, stage_of, torchrun
from memplan.frameworks.base import File, Writing
from memplan.frameworks.files.quoting import shell_word
from memplan.frameworks.hugging_face.write import ROUTER_COEFFICIENT, attention
from memplan.spec.generation import Generator
from memplan.spec.job import Job
from memplan.units import pairs_of

PROGRAMS = pairs_of("sft dpo ipo=dpo reward=rm ppo=ppo_ray grpo=ppo_ray rloo=ppo_ray")
ESTIMATORS = {"ppo": "gae", "grpo": "group_norm", "rloo": "rloo"}
GROUP = 8
"""Completions of a prompt where the job names none: OpenRLHF starts no group of one."""


def write(job: Job, writing: Writing) -> list[File]:
    """run.sh."""
    if stage_of(job) is None:
        raise InvalidJob(f"sharding: {job.sharding} cannot be said to OpenRLHF", "add --zero-stage 0, 1, 2 or 3")
    if job.method not in PROGRAMS:
        raise InvalidJob(f"method: {job.method} is not what OpenRLHF trains", f"it trains {', '.join(PROGRAMS)}")
    program = PROGRAMS[job.method]
    values = _shared(job, writing, "actor." if program == "ppo_ray" else "model.")
    if program == "ppo_ray":
        values |= _online(job) | _engine(job, writing.recipe.generator)
        starts = f"python3 -m openrlhf.cli.train_{program}"
        data = {"data.prompt_dataset": "DATASET", "reward.remote_url": "REWARD"}
    else:
        starts = f"{torchrun(job)} -m openrlhf.cli.train_{program}"
        data = {"data.dataset": "DATASET"}
    lines = [f"{starts} \\", *(_option(key, value) for key, value in {**data, **values}.items() if value is not False)]
    command = "\n".join(lines).removesuffix(" \\")
    head = (f"OpenRLHF, as memplan planned it. FILL IN {' and '.join(data)} first.", *writing.expects)
    return [run_script(command, job, head)]


def _option(key: str, value: Any) -> str:
    if value is True:
        return f"   --{key} \\"
    items = value if isinstance(value, (list, tuple)) else [value]
    return f"   --{key} {' '.join(shell_word(item) for item in items)} \\"


def _shared(job: Job, writing: Writing, of: str) -> dict[str, Any]:
    kind = job.precision.partition("-")[0]
    values: dict[str, Any] = {
        f"{of}model_name_or_path": writing.model,
        "data.max_len": job.sequence_length,
        "train.micro_batch_size": job.batch_size,
        "train.batch_size": job.batch_size * job.gradient_accumulation_steps * job.num_gpus // job.context_parallel,
        f"{of}gradient_checkpointing_enable": job.gradient_checkpointing != "none",
        f"{of}gradient_checkpointing_reentrant": job.gradient_checkpointing_reentrant,
        "ds.zero_stage": stage_of(job),
        "ds.param_dtype": kind,
        "ds.attn_implementation": attention(job),
        "ds.adam_offload": "optimizer" in job.offload,
        "ds.use_liger_kernel": job.kernels == "liger",
        f"{of.replace('model.', '')}optim": {"adamw": "adam"}.get(job.optimizer, job.optimizer),
    }
    if job.context_parallel > 1:
        values |= {"ds.ring_attn_size": job.context_parallel, "ds.packing_samples": True}
    if job.lora:
        targets = job.lora.targets
        values |= {
            "ds.lora.rank": job.lora.r,
            "ds.lora.alpha": int(job.lora.alpha or 16),
            "ds.lora.dropout": job.lora.dropout,
            "ds.lora.target_modules": targets if isinstance(targets, str) else list(targets),
        }
    if job.quantization == "nf4-double":
        values["ds.load_in_4bit"] = True
    if job.router_aux_loss:
        values[f"{of}aux_loss_coef"] = ROUTER_COEFFICIENT
    if job.method in ("dpo", "ipo"):
        values |= {"model.ipo_enable": job.method == "ipo", "ref.offload": job.reference == "offloaded"}
        if job.sft_term:
            values["model.nll_loss_coef"] = 0.2
    return values


def _engine(job: Job, of: Generator | None) -> dict[str, Any]:
    """vLLM beside everything else on the same GPUs, or on its own; then only the reference shares the policy's."""
    if of is None or of.engine == "hf":
        return {"train.colocate_all": True, "vllm.num_engines": 0}
    if of.separate and job.method == "ppo":
        raise InvalidJob(
            "rollout.placement: separate: OpenRLHF's critic then stands on GPUs of its own, which is not modelled",
            "use rollout.placement colocate",
        )
    beside = not of.separate
    return {
        "train.colocate_all": beside,
        "train.colocate_actor_ref": not beside and job.reference != "none",
        "vllm.num_engines": of.gpus // of.tensor_parallel,
        "vllm.tensor_parallel_size": of.tensor_parallel,
        "vllm.gpu_memory_utilization": of.share,
        "vllm.enforce_eager": of.eager,
        "vllm.enable_sleep": beside and of.sleep > 0,
        "ds.enable_sleep": beside and of.away.optimizer,
    }


def _online(job: Job) -> dict[str, Any]:
    """Of every model its GPUs: without that OpenRLHF takes eight more for each."""
    nodes, each = machines_of(job)
    shared = [role for role in ("actor", "ref", "critic") if role != "critic" or job.method == "ppo"]
    group = job.rollout.group_size if job.rollout else None
    values: dict[str, Any] = {
        **{f"{role}.num_nodes": nodes for role in shared},
        **{f"{role}.num_gpus_per_node": each for role in shared},
        "algo.advantage.estimator": ESTIMATORS[job.method],
        "algo.kl.init_coef": 0.0 if job.reference == "none" else 0.01,
        "ref.offload": job.reference == "offloaded",
        "rollout.temperature": job.temperature or 1.0,
        "rollout.n_samples_per_prompt": group or (GROUP if job.method in ("grpo", "rloo") else 1),
    }
    if job.completion_length is not None:
        values["rollout.max_new_tokens"] = job.completion_length
    if job.entropy != "none":
        values["actor.entropy_coef"] = 0.01 if job.entropy == "loss" else 0.0
    for extra in job.extra_models:
        if extra.role == "critic" and isinstance(extra.model, str):
            values["critic.model_name_or_path"] = extra.model
    return values
