"""What trainers can be told of a plan's choices, by job key: every value that one of their switches has.

A key that is not named is free, as all are in a bare loop; what the environment says (``PYTORCH_CUDA_ALLOC_CONF``)
every trainer can be told. A plan keeps to these values; ``memplan.frameworks`` writes them, which is their check
(tests/test_plan_switches.py)."""

from collections.abc import Mapping
from typing import Any

Switches = Mapping[str, tuple[Any, ...]]

OWN_HEAD: Switches = {
    "loss_head": ("auto",),
    "pair_pass": ("concatenated",),
    "kernels": ("none",),
    "compile": (False,),
    "recompute_modules": (),
    "moe_token_dispatcher_type": ("alltoall",),
    "pipeline_model_parallel_layout": (False,),
}
"""The loss is the trainer's code: no switch but those of ``kernels`` turns another on. Nothing else runs fused, is
compiled, or is made again module by module, where a row does not say so."""
_ZERO = ("zero0", "zero1", "zero2", "zero3")
HUGGING_FACE: Switches = {
    **OWN_HEAD,
    "sharding": ("none", "ddp", *_ZERO, "fsdp", "fsdp2"),
    "reshard_after_forward": (None, True, False),
    "fsdp": ("cpu_offload",),
    "offload": ("optimizer", "parameters"),
    "gradient_checkpointing": ("none", "full"),
    "gradient_as_bucket_view": (False,),
    "optimizer_impl": ("fused", "auto"),
    "attention": ("sdpa", "flash", "eager"),
    "reference": ("auto",),
    "kernels": ("none", "liger"),
    "compile": (False, True),
}
"""transformers 5.23 training_args.py: optim, gradient_checkpointing, use_liger_kernel, torch_compile, no views (DDP);
accelerate 1.15 utils/dataclasses.py: FullyShardedDataParallelPlugin.reshard_after_forward is a bool, cpu_offload."""
TRL: Switches = {
    **HUGGING_FACE,
    "offload": ("optimizer", "parameters", "activations"),
    "activation_offloading": ("sft", "dpo", "ipo", "kto", "reward"),
    "divided_sequences": ("sft",),
    "reference": ("auto", "precomputed", "second-adapter"),
}
"""trl 1.16 trainer/dpo_config.py, kto_config.py: precompute_ref_log_probs, use_liger_kernel; these, sft_config.py and
reward_config.py: activation_offloading; accelerate's ParallelismConfig divides SFT's sequences. Methods of both."""
OLD_REPOSITORY: Switches = {**HUGGING_FACE, "kernels": ("none",), "compile": (False,)}
"""princeton-nlp/SimPO training_configs/, accelerate_configs/, with transformers 4.44."""
LLAMAFACTORY_V1: Switches = {
    **OWN_HEAD,
    "sharding": ("none", "ddp", *_ZERO, "fsdp2"),
    "reshard_after_forward": (None, True, False),
    "fsdp": ("cpu_offload",),
    "offload": ("optimizer", "parameters"),
    "gradient_checkpointing": ("none", "full"),
    "gradient_checkpointing_reentrant": (False,),
    "gradient_as_bucket_view": (False,),
    "optimizer_impl": ("auto", "foreach"),
    "optimizer": ("adamw", "muon"),
    "attention": ("sdpa", "flash", "eager"),
    "kernels": ("none", "liger"),
    "quantization": ("none", "nf4", "nf4-double", "fp4", "int8"),
}
"""LLaMA-Factory, August 2026 src/llamafactory/v1/config/*.py, plugins/."""
OPENRLHF: Switches = {
    **OWN_HEAD,
    "sharding": _ZERO,
    "offload": ("optimizer",),
    "gradient_checkpointing": ("none", "full"),
    "optimizer_impl": ("auto",),
    "attention": ("sdpa", "flash", "eager"),
    "reference": ("auto", "offloaded"),
    "kernels": ("none", "liger"),
    "optimizer": ("adamw", "muon"),
    "quantization": ("none", "nf4-double"),
}
"""openrlhf 0.11 cli/train_dpo.py, cli/train_sft.py: ds.zero_stage, ds.adam_offload, ds.use_liger_kernel,
ds.attn_implementation, ds.load_in_4bit, optim, ref.offload, model.gradient_checkpointing_enable."""
VERL: Switches = {
    **OWN_HEAD,
    "loss_head": ("auto", "fused"),
    "sharding": ("fsdp", "fsdp2"),
    "reshard_after_forward": (None, True, False),
    "fsdp": ("cpu_offload",),
    "offload": (),
    "gradient_checkpointing": ("none", "full"),
    "optimizer_impl": ("fused", "auto", "foreach", "loop"),
    "attention": ("sdpa", "flash", "eager"),
    "kernels": ("none", "liger"),
    "optimizer": ("adamw", "sgd", "muon"),
    "quantization": ("none",),
}
"""verl 0.9 trainer/config/model/hf_model.yaml: use_fused_kernels, use_liger, enable_gradient_checkpointing;
engine/fsdp.yaml: strategy, reshard_after_forward, offload_policy; optim/fsdp.yaml: override_optimizer_config."""
NEMO_RL: Switches = {
    **VERL,
    "loss_head": ("auto",),
    "sharding": ("fsdp2",),
    "reshard_after_forward": (None, True),
}
"""NVIDIA-NeMo/RL@7ea279a models/automodel/setup.py: FSDP2Config without reshard_after_forward, cpu_offload,
activation_checkpointing, automodel_kwargs.use_liger_kernel; fused log-probs are Megatron's (algorithms/dpo.py)."""
AREAL: Switches = {**NEMO_RL, "kernels": ("none",)}
"""AReaL 1.0.4 areal/api/cli_args.py: FSDPEngineConfig has offload_params, and no resharding, kernels or head."""
LITGPT: Switches = {
    **OWN_HEAD,
    "sharding": ("none", "fsdp"),
    "fsdp": (),
    "offload": (),
    "gradient_checkpointing": ("none",),
    "gradient_as_bucket_view": (False,),
    "optimizer_impl": ("fused", "auto"),
    "attention": ("sdpa",),
    "optimizer": ("adamw", "sgd", "adamw-8bit", "paged-adamw-8bit", "paged-adamw"),
    "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
"""litgpt 0.5 finetune/full.py: one device, or FSDPStrategy(auto_wrap_policy={Block}, activation_checkpointing_policy);
model.py: scaled_dot_product_attention; finetune/lora.py: lora_query, … lora_mlp for parts of a block."""
TORCHTUNE: Switches = {
    **OWN_HEAD,
    "sharding": ("none", "fsdp", "fsdp2"),
    "reshard_after_forward": (None, True, False),
    "fsdp": ("cpu_offload",),
    "offload": ("activations",),
    "gradient_checkpointing": ("none", "full"),
    "gradient_as_bucket_view": (False,),
    "optimizer_impl": ("fused", "auto", "foreach"),
    "attention": ("sdpa",),
    "quantization": ("none", "nf4-torchao"),
    "compile": (False, True),
    "reference": ("auto",),
}
"""torchtune 0.7 recipes/: fsdp_cpu_offload, fsdp_reshard_after_forward, enable_activation_checkpointing,
enable_activation_offloading, quantize_base, compile."""
LLM_FOUNDRY: Switches = {
    **OWN_HEAD,
    "sharding": ("none", "ddp", "fsdp"),
    "fsdp": (),
    "offload": (),
    "gradient_checkpointing": ("none",),
    "gradient_as_bucket_view": (False,),
    "optimizer_impl": ("auto", "loop"),
    "optimizer": ("adamw", "lion"),
    "attention": ("sdpa", "flash", "eager"),
    "quantization": ("none",),
}
LLM_FOUNDRY_OVER_SEVERAL: Switches = {"gradient_checkpointing": ("none", "full")}
"""llm-foundry 0.22 command_utils/train.py; composer 0.32 utils/parallelism.py: FSDPConfig.activation_checkpointing."""
XTUNER: Switches = {
    **OWN_HEAD,
    "sharding": ("none", "ddp", *_ZERO),
    "offload": ("optimizer", "parameters"),
    "gradient_checkpointing": ("none", "full"),
    "gradient_as_bucket_view": (False,),
    "optimizer_impl": ("auto", "foreach", "fused"),
    "attention": ("sdpa", "flash", "eager"),
    "reference": ("auto",),
}
"""xtuner 0.1.23 model/sft.py: use_activation_checkpointing; configs/deepspeed/."""
LITGPT_OVER_SEVERAL: Switches = {"gradient_checkpointing": ("full",)}
MEGATRON: Switches = {
    **OWN_HEAD,
    "sharding": ("ddp", "distributed-optimizer"),
    "offload": ("optimizer",),
    "gradient_checkpointing": ("none", "selective", "full"),
    "optimizer": ("adamw", "sgd", "sgd-momentum"),
    "quantization": ("none",),
}
"""megatron-core 0.16 arguments.py: --recompute-granularity, --use-distributed-optimizer, --optimizer-cpu-offload; its
trainers' losses are their own code."""
MEGATRON_LM: Switches = {
    **MEGATRON,
    "recompute_modules": ("layernorm", "moe_act", "mla_up_proj", "moe", "mlp"),
    "moe_token_dispatcher_type": ("alltoall", "flex"),
    "pipeline_model_parallel_layout": (False, True),
    "lora": ("Megatron-Bridge's recipes do",),
}
"""megatron-core 0.16 arguments.py: --recompute-modules, --moe-token-dispatcher-type,
--pipeline-model-parallel-layout, and none for adapters, which Megatron-Bridge's recipes have."""
