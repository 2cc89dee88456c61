"""OpenRLHF's options by name: defaults of each program, names before 0.11, what memory does not feel.

Source: OpenRLHF 0.11 cli/train_sft.py, train_dpo.py, train_rm.py, train_ppo_ray.py; 0.5 train_prm.py, train_ppo.py;
0.9.9 train_kto.py, trainer/kto_trainer.py.
"""

from typing import Any

from memplan.frameworks.documents import words
from memplan.tables.texts import parts_of, values_of
from memplan.units import pairs_of, words_of

_PARTS = parts_of(__file__)

SHARED: dict[str, Any] = values_of(
    """train.batch_size=128 ds.zero_stage=2 ds.param_dtype=bf16 ds.attn_implementation=flash_attention_2 ds.lora.rank=0
    ds.lora.alpha=16 ds.lora.dropout=0.0 ds.lora.target_modules=all-linear optim=adam"""
)
PROGRAMS: dict[str, dict[str, Any]] = {
    "sft": {"method": "sft", "train.micro_batch_size": 8, "data.max_len": 2048},
    "prm": {"method": "sft", "train.micro_batch_size": 1, "data.max_len": 2048},
    "dpo": {"method": "dpo", "train.micro_batch_size": 8, "data.max_len": 512},
    "kto": {"method": "dpo", "train.micro_batch_size": 8, "data.max_len": 2048},
    "rm": {"method": "reward", "train.micro_batch_size": 1, "data.max_len": 512},
    "ppo_ray": {
        "method": "ppo",
        "train.micro_batch_size": 1,
        "data.max_len": 2048,
        "train.max_tokens_per_gpu": 16192,
        "rollout.batch_size": 1024,
        "algo.advantage.estimator": "gae",
        "algo.kl.init_coef": 0.01,
        "rollout.n_samples_per_prompt": 1,
        "rollout.temperature": 1.0,
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": 8,
        "actor.optim": "adam",
        "critic.optim": "adam",
    },
}
OLDER: dict[str, Any] = {
    "prompt_max_len": 1024,
    "rollout.max_new_tokens": 1024,
    "train.micro_batch_size": 4,
    "rollout.micro_batch_size": 8,
}
"""train_ppo_ray.py before 0.10 (0.5.7 to 0.9.9 read): a prompt and what is generated each have a bound."""
ESTIMATORS = pairs_of("gae=ppo rloo group_norm=grpo dr_grpo=grpo reinforce=grpo reinforce_baseline=grpo")
"""REINFORCE's update has no critic and no group, and is GRPO's otherwise."""
COUNTS = ("num_nodes", "num_gpus_per_node")
OLD_NAMES = {
    "pretrain": "model.model_name_or_path",
    "max_len": "data.max_len",
    "micro_train_batch_size": "train.micro_batch_size",
    "train_batch_size": "train.batch_size",
    "zero_stage": "ds.zero_stage",
    "param_dtype": "ds.param_dtype",
    "attn_implementation": "ds.attn_implementation",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "model.gradient_checkpointing_reentrant",
    "adam_offload": "ds.adam_offload",
    "lora_rank": "ds.lora.rank",
    "lora_alpha": "ds.lora.alpha",
    "lora_dropout": "ds.lora.dropout",
    "target_modules": "ds.lora.target_modules",
    "load_in_4bit": "ds.load_in_4bit",
    "use_liger_kernel": "ds.use_liger_kernel",
    "grad_accum_dtype": "ds.grad_accum_dtype",
    "ref_offload": "ref.offload",
    "ipo": "model.ipo_enable",
    "nll_loss_coef": "model.nll_loss_coef",
    "actor_num_nodes": "actor.num_nodes",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "advantage_estimator": "algo.advantage.estimator",
    "init_kl_coef": "algo.kl.init_coef",
    "temperature": "rollout.temperature",
    "generate_max_len": "rollout.max_new_tokens",
    "critic_pretrain": "critic.model_name_or_path",
    "reward_pretrain": "reward.model_name_or_path",
    "remote_rm_url": "reward.remote_url",
    "ring_attn_size": "ds.ring_attn_size",
    "pretrain_mode": "model.pretrain_mode_enable",
    "zpg": "ds.zpg",
    "entropy_loss_coef": "actor.entropy_coef",
    "entropy_coef": "actor.entropy_coef",
    "rollout_batch_size": "rollout.batch_size",
    "micro_rollout_batch_size": "rollout.micro_batch_size",
    "rollout_max_tokens_per_gpu": "rollout.max_tokens_per_gpu",
    "policy_loss_type": "actor.policy_loss_type",
    "use_dynamic_batch": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu",
    "optimizer": "optim",
    "overlap_comm": "ds.overlap_comm",
    "colocate_all_models": "train.colocate_all",
    "colocate_actor_ref": "train.colocate_actor_ref",
    "vllm_num_engines": "vllm.num_engines",
    "vllm_enable_sleep": "vllm.enable_sleep",
    "vllm_tensor_parallel_size": "vllm.tensor_parallel_size",
    "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "vllm_enforce_eager": "vllm.enforce_eager",
    "enforce_eager": "vllm.enforce_eager",
    "deepspeed_enable_sleep": "ds.enable_sleep",
    "async_train": "train.async_enable",
    "ref_reward_offload": "ref.offload",
    "full_determinism": "train.full_determinism_enable",
    **{f"{role}_{count}": f"{role}.{count}" for role in ("ref", "reward", "critic") for count in COUNTS},
}
"""Flat names, before 0.11."""
OF_THE_ACTOR = (
    "model.model_name_or_path",
    "model.gradient_checkpointing_enable",
    "model.gradient_checkpointing_reentrant",
)
NOT_MODELLED = {
    "ds.tensor_parallel_size": "DeepSpeed's tensor parallelism is not modelled",
    "ds.deepcompile": "is not modelled",
    "model.compute_fp32_loss_enable": "scores are counted in the model's dtype",
    "critic.optim": "the critic's optimizer is counted as the policy's",
    "train.full_determinism_enable": "deterministic kernels need more scratch memory, which is not counted",
    "ds.experts_implementation": "experts are counted as transformers runs them by itself",
    "pretrain_data": "the loss of pretraining data beside the policy's is not counted",
    "actor.freeze_visual_encoder": "the vision tower is counted as trained",
}
HARMLESS = words(_PARTS["harmless"])
FAMILIES = words_of(
    """ckpt. logger. eval. data. adam. muon. vllm. algo. rollout. reward. actor.adam. actor.muon. critic.adam.
    critic.muon."""
)
"""Groups of which only what is read above bears on the update's memory."""
OF_THE_MODEL = words(_PARTS["of-the-model"])
"""``train.enable_ema``: the moving average stands on the CPU."""
