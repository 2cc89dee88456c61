"""torchtune's names: its models, optimizers and losses, and keys that memory does not feel.

Source: torchtune 0.7 (pytorch/torchtune@bd2a0fc) models/*/_model_builders.py, recipes/*.py, recipes/configs; names of
0.1 to 0.6 from its configs of then."""

import re
from typing import Any

from memplan.arch.config import sizes
from memplan.frameworks.files.documents import words
from memplan.tables.texts import settings_in
from memplan.units import by_word, pairs_of, words_of

COMPONENT = "._component_"
"""The key of what a section builds."""
_BY_METHOD = by_word(
    {
        "sft": """full_finetune_single_device full_finetune_distributed lora_finetune_single_device
            lora_finetune_distributed lora_finetune_fsdp2 qat_single_device qat_distributed
            qat_lora_finetune_distributed full_finetune_multinode""",
        "dpo": "lora_dpo_single_device lora_dpo_distributed full_dpo_distributed",
        "distill": "knowledge_distillation_single_device knowledge_distillation_distributed",
        "ppo": "ppo_full_finetune_single_device",
        "grpo": "grpo_full_finetune_distributed",
    }
)
RECIPES = {name: (method, not name.endswith("_single_device")) for name, method in _BY_METHOD.items()}
"""Recipe -> its method, and whether it runs on several GPUs."""
NO_TRAINING = ("generate", "eleuther_eval", "quantize")
"""Recipes that train nothing."""
_LLAMA: dict[str, Any] = {"model_type": "llama", "tie_word_embeddings": False}
PHI3_MINI = _LLAMA | sizes(vocab=32064, hidden=3072, intermediate=8192, layers=32, heads=32, kv_heads=32)
PHI4_14B = _LLAMA | sizes(vocab=100352, hidden=5120, intermediate=17920, layers=40, heads=40, kv_heads=10)
PHI3_MINI["max_position_embeddings"], PHI4_14B["max_position_embeddings"] = 4096, 16384
"""Phi's with query, key, value, gate and up apart, as torchtune builds them: the shape of a Llama."""
MODELS: dict[str, str | dict[str, Any]] = {
    "phi3_mini": PHI3_MINI,
    "phi4_14b": PHI4_14B,
    **pairs_of(
        """gemma_2b=google/gemma-2b gemma_7b=google/gemma-7b gemma2_2b=google/gemma-2-2b gemma2_9b=google/gemma-2-9b
        gemma2_27b=google/gemma-2-27b llama2_7b=meta-llama/Llama-2-7b-hf llama2_13b=meta-llama/Llama-2-13b-hf
        llama2_70b=meta-llama/Llama-2-70b-hf llama3_8b=meta-llama/Meta-Llama-3-8B
        llama3_70b=meta-llama/Meta-Llama-3-70B llama3_1_8b=meta-llama/Llama-3.1-8B
        llama3_1_70b=meta-llama/Llama-3.1-70B llama3_1_405b=meta-llama/Llama-3.1-405B
        llama3_2_1b=meta-llama/Llama-3.2-1B llama3_2_3b=meta-llama/Llama-3.2-3B
        llama3_3_70b=meta-llama/Llama-3.3-70B-Instruct llama3_2_vision_11b=meta-llama/Llama-3.2-11B-Vision-Instruct
        llama3_2_vision_90b=meta-llama/Llama-3.2-90B-Vision-Instruct
        llama4_scout_17b_16e=meta-llama/Llama-4-Scout-17B-16E-Instruct
        llama4_maverick_17b_128e=meta-llama/Llama-4-Maverick-17B-128E-Instruct
        mistral_reward_7b=mistralai/Mistral-7B-v0.1 llama2_reward_7b=meta-llama/Llama-2-7b-hf
        code_llama2_7b=codellama/CodeLlama-7b-hf mistral_7b=mistralai/Mistral-7B-v0.1 qwen2_0_5b=Qwen/Qwen2.5-0.5B
        qwen2_1_5b=Qwen/Qwen2.5-1.5B qwen2_7b=Qwen/Qwen2-7B smollm2_135m=HuggingFaceTB/SmolLM2-135M
        smollm2_360m=HuggingFaceTB/SmolLM2-360M smollm2_1_7b=HuggingFaceTB/SmolLM2-1.7B"""
    ),
    **{f"qwen2_5_{size}": f"Qwen/Qwen2.5-{size.replace('_', '.').upper()}" for size in
       ("0_5b", "1_5b", "3b", "7b", "14b", "32b", "72b")},
    **{f"qwen3_{size}": f"Qwen/Qwen3-{size.replace('_', '.').upper()}" for size in
       ("0_6b", "1_7b", "4b", "8b", "14b", "32b")},
}  # fmt: skip
"""Builder -> the Hub's model of that shape (Qwen 2's two small ones are Qwen 2.5's)."""
WITH_IMAGES = ("llama3_2_vision_11b", "llama3_2_vision_90b", "llama4_scout_17b_16e", "llama4_maverick_17b_128e")
BUILDER = re.compile(r"(?P<kind>q?lora_)?(?P<name>\w+?)(?:_(?:base|instruct))?")
SHAPED = ("llama2", "llama3", "llama3_1", "mistral", "qwen2")
"""Builders whose sizes stand beside them, of the shape of a Llama (Qwen 2's of its own)."""
SIZES = pairs_of(
    """vocab_size embed_dim=hidden_size intermediate_dim=intermediate_size num_layers=num_hidden_layers
    num_heads=num_attention_heads num_kv_heads=num_key_value_heads"""
)
"""Their sizes -> those of a config.json."""
TARGETS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
LINEAR_LOSS = "torchtune.modules.loss.LinearCrossEntropyLoss"
LOSSES = {LINEAR_LOSS: "0.7", "torchtune.modules.loss.CEWithChunkedOutputLoss": "0.6", "torch.nn.CrossEntropyLoss": ""}
"""Loss of SFT -> the version whose default it was."""
METHOD_OF_LOSS = pairs_of(
    """loss.DPOLoss=dpo loss.RSOLoss=dpo loss.IPOLoss=ipo loss.SimPOLoss=simpo loss.PPOLoss=ppo GRPO=grpo KL=distill"""
)
"""Part of a loss's name -> its method."""
DISTRIBUTED_ONLY = words_of(
    """custom_sharded_layers fsdp_cpu_offload fsdp_reshard_after_forward fsdp_sharding_strategy
    memory_efficient_fsdp_wrap tensor_parallel_dim context_parallel_dim data_parallel_shard_dim
    data_parallel_replicate_dim"""
)
DEFAULTS: dict[str, Any] = settings_in(
    """dtype=bf16 batch_size=1 gradient_accumulation_steps=1 enable_activation_checkpointing=false
    enable_activation_offloading=false optimizer_in_bwd=false fsdp_cpu_offload=false fsdp_reshard_after_forward=true
    tensor_parallel_dim=1 context_parallel_dim=1 data_parallel_replicate_dim=1 compile=false"""
)
SECTIONS = words_of(
    """checkpointer. metric_logger. profiler. lr_scheduler. tokenizer. dataset. dataset_val. tensor_parallel_plan.
    inference. generation."""
)
"""Sections whose other keys memory does not feel."""
HARMLESS = words(
    """output_dir checkpointer ref_checkpointer teacher_checkpointer resume_from_checkpoint save_adapter_weights_only
    seed shuffle epochs max_steps_per_epoch metric_logger log_every_n_steps log_peak_memory_stats log_level device
    profiler lr_scheduler clip_grad_norm name keep_last_n_checkpoints save_every_n_steps save_every_n_epochs
    enable_async_checkpointing cudnn_deterministic_mode activation_offloading_use_streams num_warmup_steps
    context_parallel_rotate_method tensor_parallel_plan data_parallel_shard_dim max_grad_norm low_cpu_ram
    checkpoint_dir tokenizer_dir model_dir base_dir exp_dir data_dir num_workers project run_name wandb
    experiment_name run_id use_distributed_state_dict"""
)
