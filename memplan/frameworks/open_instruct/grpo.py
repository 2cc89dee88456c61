"""open-instruct's GRPO and PPO: learners on DeepSpeed, rows packed to ``pack_length``, engines on GPUs of their own.

Source: allenai/open-instruct@e6c3044 grpo_fast.py, grpo_utils.py, utils.py: get_train_ds_config, get_eval_ds_config."""

from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks import deepspeed
from memplan.frameworks.base import Keys
from memplan.frameworks.common.generating import VLLM, put, put_engine, read_fields
from memplan.frameworks.files.documents import Settings
from memplan.models import load_model


def read_grpo(keys: Keys, program: str) -> None:
    """The learners' side."""
    keys.put("gradient_checkpointing", "full")
    keys.put("loss_head", "selective")
    keys.put("optimizer_impl", "fused" if keys.flag("fused_optimizer") else "loop", "fused_optimizer")
    keys.put("reference", "resident" if keys.flag("load_ref_policy") else "none", "load_ref_policy")
    keys.put("entropy", "metric" if keys.flag("record_entropy") else "none", "record_entropy")
    temperature = keys.number("temperature")
    if temperature and temperature != 1:
        keys.put("temperature", temperature, "temperature")
    keys.assume("gradient_accumulation_steps", 2, "as many micro-steps as there are packed rows: two are counted")
    keys.skip("gradient_accumulation_steps", "gradient_checkpointing", "beta", "fused_optimizer")
    _lengths(keys, program)
    gpus = _learners(keys)
    _zero(keys, gpus)
    if program != "grpo_fast":
        _scores(keys, program.startswith("ppo"))
    _engines(keys)


def _scores(keys: Keys, critic: bool) -> None:
    """Rollouts scored so many at once; a value model of the reward model's shape, which is updated in each micro-step
    before the policy, and that itself where its score has a weight (ppo_vllm_thread_ray_gtrl.py: from_pretrained)."""
    local, each = (keys.whole(name, 1) for name in ("local_rollout_batch_size", "num_samples_per_prompt_rollout"))
    forward = min(keys.whole("local_rollout_forward_batch_size", 1), local * each)
    if forward > keys.whole("per_device_train_batch_size", 1):
        tokens = forward * int(keys.draft.now("sequence_length") or 0)
        keys.put("logprob_token_budget", tokens, "local_rollout_forward_batch_size")
    roles = (["critic"] if critic else []) + (["reward"] if keys.number("reward_model_multiplier") else [])
    if roles:
        path = keys.text("reward_model_path")
        try:
            load_model(path or "")
        except MemplanError:
            path = keys.draft.said.get("model")
            keys.remark("not known here, and counted in the policy's shape", "reward_model_path")
        keys.put("extra_models", [{"role": role, "model": path} for role in roles], "reward_model_path")
    keys.skip(
        "reward_model_path", "reward_model_multiplier", "local_rollout_batch_size", "num_samples_per_prompt_rollout",
        "local_rollout_forward_batch_size",
    )  # fmt: skip


def _engines(keys: Keys) -> None:
    """``vllm_num_engines`` of ``vllm_tensor_parallel_size`` cards each, or one on the learner's own card."""
    beside = bool(keys.flag("single_gpu_mode"))
    put_engine(keys, "vllm", "single_gpu_mode" if beside else "vllm_num_engines", separate=not beside, own=True)
    put(keys, "gpu_memory_utilization", 0.9, "vllm_gpu_memory_utilization")
    put(keys, "sleep", "none", "single_gpu_mode")
    read_fields(keys, {f"vllm_{name}": inner for name, inner in VLLM.items()})
    if not beside:
        engines = keys.whole("vllm_num_engines", 1)
        put(keys, "num_gpus", engines * keys.whole("vllm_tensor_parallel_size", 1), "vllm_num_engines")


def _lengths(keys: Keys, program: str) -> None:
    """A packed row; before packing a prompt and its response."""
    if program == "grpo_fast":
        keys.copy("sequence_length", "pack_length", "whole")
    elif "sequence_length" not in keys.draft.given:
        names = ("max_prompt_token_length", "response_length")
        prompt, response = (keys.whole(name) or 0 for name in names)
        keys.put("sequence_length", prompt + response, *names)
        keys.put("completion_length", response, names[1])
    keys.skip("response_length", "pack_length", "max_prompt_token_length")


def _learners(keys: Keys) -> int:
    """``--num_learners_per_node 8 8``: GPUs that train, node by node."""
    name = "num_learners_per_node" if keys.has("num_learners_per_node") else "actor_num_gpus_per_node"
    given = keys.get(name if keys.has(name) else "num_learners_per_node")
    counts = given if isinstance(given, list) else str(given).split()
    try:
        each = [int(str(count)) for count in counts]
    except ValueError:
        keys.draft.ask("num_gpus", keys.settings.where(name), f"{name} {str(given)[:40]}")
        return int(keys.draft.options.get("num_gpus") or 1)
    if not keys.flag("single_gpu_mode"):
        keys.draft.trains_on(sum(each), keys.settings.path)
    keys.put("num_gpus", sum(each), name)
    if len(each) > 1:
        keys.put("gpus_per_node", max(each), name)
    keys.skip("num_learners_per_node", "actor_num_gpus_per_node")
    return int(keys.draft.options.get("num_gpus") or sum(each))


def _zero(keys: Keys, gpus: int) -> None:
    """get_train_ds_config: gradients are kept in fp32, and a second partition stands in each group of ``zpg`` GPUs."""
    stage, zpg = keys.whole("deepspeed_stage") or 0, keys.whole("deepspeed_zpg", 1)
    zero: dict[str, Any] = {"stage": stage}
    if keys.flag("deepspeed_offload_param"):
        zero["offload_param"] = {"device": "cpu"}
    if keys.flag("deepspeed_offload_optimizer"):
        zero["offload_optimizer"] = {"device": "cpu"}
    if stage == 3 and zpg > 1 and gpus % zpg == 0:
        zero["zero_hpz_partition_size"] = zpg
    settings: dict[str, Any] = {"zero_optimization": zero, "bf16": {"enabled": True}}
    if stage:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    else:
        why = "stage 0 keeps gradients in fp32 (BF16_Optimizer), and bf16 is counted"
        keys.draft.warn("deepspeed_stage", keys.settings.where("deepspeed_stage"), why, "parallelism")
    deepspeed.read_settings(
        Settings(f"{keys.settings.where('deepspeed_stage')}: deepspeed_stage", settings), keys.draft
    )
