"""NeMo RL's own configs, as far as memory feels them, and its keys that memory does not feel.

Source: NVIDIA-NeMo/RL@7ea279a (August 2026) examples/configs/*.yaml, models/policy/__init__.py (PolicyConfig)."""

import re
from typing import Any

from memplan.frameworks.files.documents import words
from memplan.frameworks.megatron.keys import SIZES as OF_MEGATRON
from memplan.tables.texts import parts_of, settings_in

_PARTS = parts_of(__file__)
POLICY = "policy."

PROGRAM = re.compile(r"run_(?:vlm_|math_)?(grpo|dpo|sft|rm|ppo|distillation)\w*\.py")
"""Its entry points."""
PARENT = re.compile(r"(?:[\w./-]*/)?(?:vlm_|audio_)?(?:grpo|dpo|sft|rm|ppo|distillation|dapo|prorl)[\w.-]*\.ya?ml")
"""A config that others are written over, by the name it has."""
METHODS = {"grpo": "grpo", "dpo": "dpo", "sft": "sft", "rm": "reward", "ppo": "ppo", "distillation": "distill"}
"""Section at the top, or word of the entry point -> method."""
ONLINE = ("grpo", "ppo", "distill")
_POLICY: dict[str, Any] = settings_in(
    """policy.precision=bfloat16 policy.dtensor_cfg.enabled=true policy.dtensor_cfg.tensor_parallel_size=1
    policy.dtensor_cfg.context_parallel_size=1 policy.megatron_cfg.enabled=false
    policy.optimizer.name=torch.optim.AdamW cluster.gpus_per_node=1 cluster.num_nodes=1"""
)
_GRPO: dict[str, Any] = {
    **_POLICY,
    "grpo.num_generations_per_prompt": 16,
    "loss_fn.reference_policy_kl_penalty": 0.01,
    "policy.model_name": "Qwen/Qwen2.5-1.5B",
    "policy.train_global_batch_size": 512,
    "policy.train_micro_batch_size": 4,
    "policy.logprob_batch_size": "${policy.train_micro_batch_size}",
    "policy.max_total_sequence_length": 512,
    "policy.sequence_packing.enabled": True,
    "policy.sequence_packing.train_mb_tokens": "${mul:${policy.max_total_sequence_length}, "
    "${policy.train_micro_batch_size}}",
    "policy.sequence_packing.logprob_mb_tokens": "${mul:${policy.max_total_sequence_length}, "
    "${policy.logprob_batch_size}}",
    "policy.generation.colocated.enabled": True,
}
BASES: dict[str, dict[str, Any]] = {
    "grpo_math_1B.yaml": _GRPO,
    "grpo_math_8B.yaml": _GRPO
    | settings_in(
        """grpo.num_generations_per_prompt=32 policy.model_name=meta-llama/Llama-3.1-8B-Instruct
        policy.train_micro_batch_size=1 policy.logprob_batch_size=2 policy.max_total_sequence_length=4096
        cluster.gpus_per_node=8"""
    ),
    "dpo.yaml": _POLICY
    | settings_in(
        """dpo.sft_loss_weight=0 policy.model_name=meta-llama/Llama-3.2-1B-Instruct policy.train_global_batch_size=128
        policy.train_micro_batch_size=2 policy.max_total_sequence_length=1024"""
    ),
    "sft.yaml": _POLICY
    | settings_in(
        """sft.max_num_epochs=1 policy.model_name=meta-llama/Llama-3.2-1B policy.train_global_batch_size=32
        policy.train_micro_batch_size=1 policy.max_total_sequence_length=1024"""
    ),
    "rm.yaml": _POLICY
    | settings_in(
        """rm.max_num_epochs=1 policy.model_name=meta-llama/Llama-3.2-1B-Instruct policy.train_global_batch_size=128
        policy.train_micro_batch_size=1 policy.max_total_sequence_length=8192 policy.reward_model_cfg.enabled=true"""
    ),
}
"""What configs of users are written over, where they are not beside them."""
OF_PROGRAM = {"grpo": "grpo_math_1B.yaml", "dpo": "dpo.yaml", "sft": "sft.yaml", "rm": "rm.yaml"}
"""The config that an entry point takes without ``--config``."""
STAGES = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "mtp_num_layers")
"""Megatron's settings that memplan has under the same names."""
DEFAULTS = _POLICY | {"policy.train_micro_batch_size": 1}
SIZES = {
    "dtensor_cfg": tuple((f"{name}_parallel_size", f"{name}_parallel") for name in ("tensor", "context", "expert")),
    "megatron_cfg": tuple(OF_MEGATRON.items()),
}
"""Backend -> its sizes and the job's."""
ON: dict[str, tuple[str, str, bool]] = {
    "policy.dtensor_cfg.dp_replicate_size": ("states are counted as sharded over all GPUs", "parallelism", False),
    "policy.megatron_cfg.fp8_cfg.enabled": ("products in fp8 are not counted", "precision", False),
    "policy.megatron_cfg.use_fused_linear_logprobs": ("logits are counted whole", "loss", True),
    "policy.megatron_cfg.use_linear_ce_fusion_loss": ("logits are counted whole", "loss", True),
    "policy.megatron_cfg.defer_fp32_logits": ("what is held of them in half precision is not counted", "", False),
    "policy.megatron_cfg.fine_grained_activation_offloading": (
        "activations are counted on the card", "checkpointing", True),
    "policy.megatron_cfg.distributed_data_parallel_config.use_custom_fsdp": (
        "states are counted under the distributed optimizer", "parallelism", False),
    "policy.draft.enabled": ("the draft model is not counted", "model", False),
    "policy.logprob_chunk_size": ("log-probabilities are counted at once", "loss", True),
    "policy.quant_cfg": ("fake quantisation is not counted", "quantisation", False),
}  # fmt: skip
"""What bears where it is on, and is not modelled: why, what it decides, whether what is counted takes no less."""
_OF_POLICY = words(_PARTS["of-policy"])
_OF_MEGATRON = words(_PARTS["of-megatron"])
HARMLESS = {f"policy.{name}" for name in _OF_POLICY} | {f"policy.megatron_cfg.{name}" for name in _OF_MEGATRON}
"""Names, and beginnings of names."""
