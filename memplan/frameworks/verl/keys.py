"""verl's settings by their dotted names: defaults, and which of them memory does not feel.

Source: verl 0.9 trainer/config/ppo_trainer.yaml, sft_trainer_engine.yaml and the files they are made of;
workers/engine/fsdp/transformer_impl.py."""

from typing import Any

from memplan.tables.texts import settings_in
from memplan.units import words_of

ACTOR, ROLLOUT, MODEL, REF = (f"actor_rollout_ref.{group}." for group in ("actor", "rollout", "model", "ref"))
DEFAULTS: dict[str, Any] = (
    settings_in(
        """algorithm.adv_estimator=gae algorithm.use_kl_in_reward=false data.max_prompt_length=512
        data.max_response_length=512 critic.model.enable_gradient_checkpointing=true
        critic.model.use_remove_padding=true critic.ppo_max_token_len_per_gpu=32768 trainer.n_gpus_per_node=8
        trainer.nnodes=1"""
    )
    | settings_in(
        """strategy=fsdp use_kl_loss=false ppo_mini_batch_size=256 use_dynamic_bsz=false ppo_max_token_len_per_gpu=16384
        entropy_coeff=0 calculate_entropy=false optim.optimizer=AdamW fsdp_config.model_dtype=fp32
        fsdp_config.dtype=bfloat16 fsdp_config.reshard_after_forward=true megatron.tensor_model_parallel_size=1
        megatron.use_distributed_optimizer=true""",
        ACTOR,
    )
    | settings_in(
        """enable_gradient_checkpointing=true lora_rank=0 lora_alpha=16 target_modules=all-linear
        use_fused_kernels=false use_remove_padding=true""",
        MODEL,
    )
    | settings_in(
        "n=1 temperature=1.0",
        ROLLOUT,
    )
)
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
