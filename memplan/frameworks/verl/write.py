"""verl's settings of a job as YAML over its own defaults, and the command."""

from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import machines_of, run_script, torchrun
from memplan.frameworks.base import File, Writing
from memplan.frameworks.hugging_face.write import attention
from memplan.frameworks.verl.keys import OPTIMIZERS
from memplan.presets import find_preset
from memplan.spec.generation import Generator
from memplan.spec.job import Job
from memplan.spec.other_models import ExtraModel
from memplan.units import MiB, attributes_of, ceil_div

CONFIG = "verl.yaml"
ESTIMATORS = {"ppo": "gae", "grpo": "grpo", "rloo": "rloo"}
OF_POLICIES = ("logprobs_mode", "checkpoint_engine")
"""Of a policy's engine alone."""


def write(job: Job, writing: Writing) -> list[File]:
    """verl.yaml, run.sh."""
    if job.sharding not in ("fsdp", "fsdp2"):
        raise InvalidJob(f"sharding: {job.sharding} cannot be said to verl", "use fsdp2 or fsdp")
    sft = job.method == "sft"
    module = "verl.trainer.sft_trainer" if sft else "verl.trainer.main_ppo"
    values = _sft(job, writing) if sft else _rl(job, writing)
    nodes, each = machines_of(job)
    values["trainer"] = {"nnodes": nodes, "n_gpus_per_node": each}
    defaults = ["sft_trainer_engine" if sft else "ppo_trainer", "_self_"]
    head = {"defaults": defaults, "hydra": {"searchpath": ["pkg://verl.trainer.config"]}}
    starts = f"{torchrun(job) if sft else 'python3'} -m {module}"
    command = f'{starts} --config-path "$PWD" --config-name verl'
    comment = (f"verl, as memplan planned it: {command}", *writing.expects, "FILL IN data.train_files, data.val_files.")
    return [
        File(CONFIG, {**head, **values}, comment=comment),
        run_script(command, job, ("FILL IN data.train_files and data.val_files first.", *writing.expects)),
    ]


def _model(job: Job, writing: Writing) -> dict[str, Any]:
    values: dict[str, Any] = {
        "path": writing.model,
        "enable_gradient_checkpointing": job.gradient_checkpointing != "none",
        "use_fused_kernels": job.loss_head == "fused",
        "override_config": {"attn_implementation": attention(job)},
    }
    if "activations" in job.offload:
        values["enable_activation_offload"] = True
    if job.kernels == "liger":
        values["use_liger"] = True
    if job.lora:
        targets = job.lora.targets if isinstance(job.lora.targets, str) else list(job.lora.targets)
        values |= {
            "lora_rank": job.lora.r,
            "lora_alpha": int(job.lora.alpha or 2 * job.lora.r),
            "target_modules": targets,
        }
    return values


def _engine(job: Job) -> dict[str, Any]:
    kind, _, how = job.precision.partition("-")
    values: dict[str, Any] = {
        "strategy": job.sharding,
        "model_dtype": "fp32" if how or kind == "fp32" else kind,
        "dtype": "float16" if kind == "fp16" else "bfloat16",
    }
    if job.sync_each_batch is not None:
        values["defer_fsdp_grad_sync"] = not job.sync_each_batch
    if job.sharding == "fsdp2":
        values["reshard_after_forward"] = job.reshard_after_forward is not False
        values["offload_policy"] = bool(job.fsdp.model_dump(exclude_unset=True).get("cpu_offload"))
    elif job.fsdp.model_dump(exclude_unset=True).get("forward_prefetch"):
        values["forward_prefetch"] = True
    return values


def _optimizer(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {"optimizer": OPTIMIZERS.get(job.optimizer, job.optimizer)}
    ways = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    if job.optimizer_impl != "auto":
        values["override_optimizer_config"] = ways[job.optimizer_impl]
    return values


def _micro_batch(job: Job, of: str, tokens_of: str) -> tuple[int, dict[str, Any]]:
    """Sequences of a micro-batch, and its settings: so many sequences, or so many tokens."""
    if job.token_budget is None:
        return job.batch_size, {of: job.batch_size, "use_dynamic_bsz": False}
    each = job.token_budget // job.context_parallel
    return max(1, job.token_budget // job.sequence_length), {"use_dynamic_bsz": True, tokens_of: each}


def _sft(job: Job, writing: Writing) -> dict[str, Any]:
    each, micro = _micro_batch(job, "micro_batch_size_per_gpu", "max_token_len_per_gpu")
    batch = each * job.gradient_accumulation_steps * job.num_gpus
    data = {
        "train_files": "DATASET",
        "val_files": None,
        "train_batch_size": batch,
        **micro,
        "max_length": job.sequence_length,
    }
    return {"data": data, "model": _model(job, writing), "engine": _engine(job), "optim": _optimizer(job)}


def _rl(job: Job, writing: Writing) -> dict[str, Any]:
    completion = job.completion_length
    if completion is None or completion >= job.sequence_length:
        raise InvalidJob(
            "completion_length: verl is told of prompt and completion apart",
            f"add --completion-length, less than the {job.sequence_length} of sequence_length",
        )
    group = (job.rollout.group_size if job.rollout else None) or 1
    count, micro = _micro_batch(job, "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu")
    each = count * job.gradient_accumulation_steps * job.num_gpus
    if each % group:
        raise InvalidJob(f"rollout.group_size: {group} does not divide the {each} completions of a step", "change it")
    kl, of = job.reference != "none", writing.recipe.generator
    actor = {
        "strategy": job.sharding,
        "ppo_mini_batch_size": each // group,
        **micro,
        "use_kl_loss": kl,
        "entropy_coeff": 0.001 if job.entropy == "loss" else 0,
        "calculate_entropy": job.entropy == "metric",
        "entropy_from_logits_chunk_size": 2048,  # of 0.9 alone: the file tells whose defaults it stands on
        "fsdp_config": _engine(job) | _offload(of),
        "optim": _optimizer(job),
    }
    forward: dict[str, Any] = {"log_prob_micro_batch_size_per_gpu": job.batch_size}  # without it verl does not start
    scored, rows = job.logprob_token_budget or job.token_budget, each * job.context_parallel // job.num_gpus
    if scored is not None:
        tokens = scored // job.context_parallel
        forward = {"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": tokens}
    rollout = {"n": group, "temperature": job.temperature or 1.0, **_rollout(of)}
    if job.lora and job.sync.gather == "unit":
        rollout["layered_summon"] = True
    values: dict[str, Any] = {
        "algorithm": {"adv_estimator": ESTIMATORS[job.method], "use_kl_in_reward": False},
        "data": {
            "train_files": "DATASET",
            "val_files": "DATASET",
            "train_batch_size": each // group * max(1, ceil_div((scored or 0) // job.sequence_length, rows)),
            "max_prompt_length": job.sequence_length - completion,
            "max_response_length": completion,
        },
        "actor_rollout_ref": {
            "model": _model(job, writing),
            "actor": actor,
            "rollout": rollout | forward,
            **({"ref": forward} if kl else {}),
        },
    }
    if job.method == "ppo":
        values["critic"] = _critic(job, writing, _offload(of))
    return values | _reward(job, of)


def _rollout(of: Generator | None) -> dict[str, Any]:
    """The engine on the trainer's cards. Raises InvalidJob for one elsewhere, which other programs of verl's start."""
    if of is None or of.engine == "hf":
        return {"name": "hf" if of else "vllm"}
    if of.separate:
        raise InvalidJob("rollout.placement: separate cannot be said to verl's main_ppo", "use colocate")
    values = attributes_of(
        of,
        """name=engine tensor_model_parallel_size=tensor_parallel data_parallel_size=data_parallel
        pipeline_model_parallel_size=pipeline_parallel expert_parallel_size=expert_parallel
        gpu_memory_utilization=share max_model_len max_num_seqs max_num_batched_tokens enforce_eager=eager
        logprobs_mode""",
    ) | {"free_cache_engine": of.sleep > 0}
    bucket = of.syncing.bucket_bytes
    return values | ({"checkpoint_engine": {"update_weights_bucket_megabytes": bucket // MiB}} if bucket else {})


def _reward(job: Job, of: Generator | None) -> dict[str, Any]:
    """A reward model with an engine of its own, on the same cards."""
    own = next((extra.model for extra in job.extra_models if extra.rollout is not None), None)
    if of is None or of.scorer is None or not isinstance(own, str):
        return {}
    preset = find_preset(own) if "/" not in own else None
    engine = {key: value for key, value in _rollout(of.scorer).items() if key not in OF_POLICIES}
    path = str(preset["hub_id"]) if preset else own
    values = {"enable": True, "enable_resource_pool": False, "model": {"path": path}, "rollout": engine}
    return {"reward_model": values}


def _offload(of: Generator | None) -> dict[str, Any]:
    """What waits on the host while the engine generates."""
    return {"param_offload": of.away.parameters, "optimizer_offload": of.away.optimizer} if of else {}


def _critic(job: Job, writing: Writing, offload: dict[str, Any]) -> dict[str, Any]:
    """The critic as the policy is, but for what the job says of it; verl's own default is a model of 7B."""
    own = next((extra for extra in job.extra_models if extra.role == "critic"), None) or ExtraModel(role="critic")
    model = _model(job, writing) | {"path": own.model if isinstance(own.model, str) else writing.model}
    model.pop("use_fused_kernels")
    if own.gradient_checkpointing:
        model["enable_gradient_checkpointing"] = own.gradient_checkpointing == "full"
    budget = own.token_budget or (None if own.batch_size else job.token_budget)
    packed = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": (budget or 0) // job.context_parallel}
    rows = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": own.batch_size or job.batch_size}
    return {
        "strategy": job.sharding,
        **(packed if budget else rows),
        "model": model,
        "fsdp": _engine(job) | offload,
        "optim": _optimizer(job),
    }
