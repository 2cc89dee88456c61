"""verl's settings by their dotted names: defaults, and which of them memory does not feel.

Source: verl 0.9 trainer/config/ppo_trainer.yaml, sft_trainer_engine.yaml and the files they are made of;
workers/engine/fsdp/transformer_impl.py."""

from typing import Any

from memplan.tables.texts import settings_in
from memplan.units import words_of

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
DEFAULTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ACTOR}strategy": "fsdp",
    f"{ACTOR}use_kl_loss": False,
    f"{ACTOR}ppo_mini_batch_size": 256,
    f"{ACTOR}use_dynamic_bsz": False,
    f"{ACTOR}ppo_max_token_len_per_gpu": 16384,
    f"{ACTOR}entropy_coeff": 0,
    f"{ACTOR}calculate_entropy": False,
    f"{ACTOR}optim.optimizer": "AdamW",
    f"{ACTOR}fsdp_config.model_dtype": "fp32",
    f"{ACTOR}fsdp_config.dtype": "bfloat16",
    f"{ACTOR}fsdp_config.reshard_after_forward": True,
    f"{MODEL}enable_gradient_checkpointing": True,
    f"{MODEL}lora_rank": 0,
    f"{MODEL}lora_alpha": 16,
    f"{MODEL}target_modules": "all-linear",
    f"{MODEL}use_fused_kernels": False,
    f"{MODEL}use_remove_padding": True,
    f"{ACTOR}megatron.tensor_model_parallel_size": 1,
    f"{ACTOR}megatron.use_distributed_optimizer": True,
    "critic.model.enable_gradient_checkpointing": True,
    "critic.model.use_remove_padding": True,
    "critic.ppo_max_token_len_per_gpu": 32768,
    f"{ROLLOUT}n": 1,
    f"{ROLLOUT}temperature": 1.0,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
}
"""Of reinforcement learning (main_ppo)."""
SFT: dict[str, Any] = settings_in(
    """data.micro_batch_size_per_gpu=4 data.train_batch_size=256 data.max_length=1024 data.use_dynamic_bsz=true
    data.max_token_len_per_gpu=8192 engine.strategy=fsdp engine.model_dtype=fp32 engine.dtype=bfloat16
    engine.reshard_after_forward=true engine.use_distributed_optimizer=true optim.optimizer=AdamW
    model.use_remove_padding=true model.enable_gradient_checkpointing=true model.lora_rank=0 model.lora_alpha=16
    model.target_modules=all-linear model.use_fused_kernels=false trainer.n_gpus_per_node=1 trainer.nnodes=1"""
)
"""Of supervised fine-tuning (sft_trainer)."""
OLD_SFT: dict[str, Any] = settings_in(
    """data.micro_batch_size_per_gpu=4 data.train_batch_size=256 data.max_length=1024 model.strategy=fsdp2
    model.fsdp_config.model_dtype=fp32 model.enable_gradient_checkpointing=true model.lora_rank=0
    model.lora_alpha=16 model.target_modules=all-linear ulysses_sequence_parallel_size=1 use_remove_padding=false
    trainer.nnodes=1"""
)
"""Of the older one (fsdp_sft_trainer), to 0.7."""
METHODS = {"gae": "ppo", "grpo": "grpo", "rloo": "rloo"}
LIKE_GRPO = words_of(
    """gdpo grpo_passk grpo_vectorized rloo_vectorized reinforce_plus_plus remax opo gpg reinforce_plus_plus_baseline
    gspo optimal_token_baseline tir_optimal_token_baseline"""
)
"""Advantages of other kinds, which the update's memory does not feel."""
OPTIMIZERS = {"adamw": "AdamW", "fusedadam": "Adam", "adam": "Adam", "sgd": "SGD", "muon": "Muon"}
