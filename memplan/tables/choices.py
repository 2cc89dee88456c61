"""The values of every key that is a choice: one list for the job, the command line, the schema and the docs."""

import re

from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS
from memplan.tables.precisions import FLOAT8, PRECISIONS
from memplan.tables.quantizations import QUANTIZATIONS
from memplan.tables.trainers import TRAINERS
from memplan.units import by_word, pairs_of, words_of

CHOICES: dict[str, tuple[str, ...]] = {
    "method": tuple(METHODS),
    "trainer": tuple(TRAINERS),
    "dtype": ("bf16", "fp16", "fp32"),
    "precision": ("auto", *PRECISIONS),
    "grad_dtype": ("auto", "bf16", "fp16", "fp32"),
    "reduce_dtype": ("auto", "bf16", "fp16", "fp32"),
    "optimizer": tuple(OPTIMIZERS),
    "optimizer_impl": ("auto", "fused", "foreach", "loop"),
    "gradient_checkpointing": ("none", "full", "selective"),
    "kernels": ("none", "liger", "foak", "unsloth", "te"),
    "float8": ("none", *FLOAT8),
    "mixer_kernels": ("auto", "torch", "cuda"),
    "attention": ("flash", "sdpa", "eager"),
    "loss_head": words_of("auto cross-entropy log-softmax selective chunked fused cut-cross-entropy tiled"),
    "logits_dtype": ("auto", "bf16", "fp32"),
    "pair_pass": ("concatenated", "two-forward", "split", "gradcache"),
    "reference": ("auto", "none", "resident", "adapter", "second-adapter", "precomputed", "offloaded"),
    "quantization": ("none", *QUANTIZATIONS),
    "sharding": ("none", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "fsdp2", "distributed-optimizer"),
    "entropy": ("unscored", "none", "metric", "loss"),
}

_ADAPTED = "it says how weights are trained, not what for: use --method sft, say, with "
INSTEAD = {
    "lora": _ADAPTED + "--lora",
    "qlora": _ADAPTED + "--lora --load-in-4bit",
    "full": _ADAPTED + "--no-lora",
    "pretrain": "use sft: a pretraining step is one of supervised fine-tuning",
    "rlhf": "use ppo, grpo, rloo or online-dpo",
    "unsloth": "memplan check SCRIPT.py reads a script of it; else use --trainer trl --lora, with "
    "--kernels unsloth; its engine of grpo is --set rollout.shared_weights=true",
    "fp8": "products in fp8 are keys of their own: --set float8=tensorwise (torchao), or "
    "--set megatron.fp8_format=hybrid (TransformerEngine)",
    "torchtitan": "memplan check CONFIG.toml reads its file; else use --trainer pytorch --sharding fsdp2",
    "deepspeed-chat": "memplan check SCRIPT.sh reads its commands; its loops are closest to pytorch, with a ZeRO stage",
    "lightning": "Lightning starts another's model: use pytorch for its loop, with sharding ddp, fsdp, fsdp2 or zero3",
    "fsdp": "FSDP shards another's loop: use transformers, trl or pytorch, with sharding fsdp or fsdp2",
    "axolotl": "Axolotl trains by the Hugging Face Trainer, and preferences by TRL: use transformers or trl; "
    "memplan check CONFIG.yaml reads its file",
    "deepspeed": "DeepSpeed shards another's loop: use transformers, trl or pytorch, "
    "with sharding zero1, zero2 or zero3",
    "accelerate": "accelerate starts another's loop: use transformers or trl, or pytorch for a loop of your own",
    "open-instruct": "memplan check SCRIPT.sh reads its commands; its loops are closest to pytorch",
}
"""Words that are no value, and what they mean."""

_SPELLINGS = {
    "dtype": {"bf16": "bfloat16", "fp16": "float16 half", "fp32": "float32 float"},
    "optimizer": {
        "adamw": "adamw_torch adamw_torch_fused adam",
        "adamw-8bit": "adamw_bnb_8bit adamw_8bit",
        "paged-adamw-8bit": "paged_adamw_8bit",
        "paged-adamw": "paged_adamw_32bit paged_adamw",
        "paged-lion": "paged_lion_32bit",
        "paged-lion-8bit": "paged_lion_8bit",
        "adamw-4bit": "adamw_torch_4bit",
        "lion": "lion_32bit",
        "galore": "galore_adamw",
        "apollo": "apollo_adamw",
        "schedule-free": "schedule_free_adamw",
    },
    "trainer": {
        "transformers": "hf huggingface hf-trainer",
        "llamafactory": "llama-factory llama_factory",
        "swift": "ms-swift",
        "megatron": "megatron-lm",
        "pytorch": "torch",
    },
    "float8": {"rowwise-gw-hp": "rowwise_with_gw_hp"},
    "sharding": {"zero0": "zero-0", "zero1": "zero-1", "zero2": "zero-2", "zero3": "zero-3"},
    "attention": {"flash": "flash_attention_2 fa2"},
    "quantization": {
        "nf4": "4bit",
        "nf4-double": "qlora",
        "int8": "8bit llm.int8",
        "gptq-4bit": "gptq",
        "awq-4bit": "awq",
        "hqq-4bit": "hqq",
    },
}
SYNONYMS = {key: by_word(spellings) for key, spellings in _SPELLINGS.items()}
"""Other spellings that users bring."""

ALIASES = pairs_of(
    """b=batch_size per_device_train_batch_size=batch_size micro_batch_size=batch_size
    train_micro_batch_size_per_gpu=batch_size max_length=sequence_length max_seq_length=sequence_length
    cutoff_len=sequence_length sequence_len=sequence_length model_name_or_path=model base_model=model
    tp=tensor_parallel pp=pipeline_parallel cp=context_parallel ep=expert_parallel gpus=num_gpus
    recompute=gradient_checkpointing per_device_eval_batch_size=eval_batch_size"""
)
"""Names that other tools give to a key."""

TRAINING_ONLY = frozenset(
    words_of(
        """learning_rate lr lr_scheduler_type warmup_ratio warmup_steps weight_decay num_train_epochs max_steps
        save_steps save_total_limit save_strategy logging_steps logging_dir eval_steps eval_strategy
        evaluation_strategy seed data_seed output_dir report_to run_name beta gamma simpo_gamma
        gamma_beta_ratio label_smoothing loss_type max_grad_norm adam_beta1 adam_beta2 adam_epsilon dataset
        dataset_name train_data eval_data val_data num_workers dataloader_num_workers epochs num_epochs
        optim_args push_to_hub hub_model_id resume_from_checkpoint remove_unused_columns ddp_timeout
        group_by_length"""
    )
)
"""Keys that training files carry and memory does not feel."""

ROLLOUT_OPTIONS = words_of(
    """engine engine_version tensor_parallel gpu_memory_utilization mem_fraction_static max_model_len max_num_seqs
    max_num_batched_tokens kv_dtype enforce_eager"""
)
"""Keys of ``rollout`` that are options of their own, under the engines' names; the others go by --set."""
ALLOCATOR_OPTIONS = ("expandable_segments",)
"""Keys of ``allocator`` that are options of their own."""


def rollout_option(key: str) -> str:
    """How a key of ``rollout`` is typed: 'gpu-memory-utilization', 'rollout-engine'."""
    name = key.replace("_", "-")
    return f"rollout-{name}" if key in ("engine", "tensor_parallel", "dtype") else name


def options_of_hint(hint: str) -> str:
    """'max_model_len: 8192, or a larger card' -> '--max-model-len 8192, or a larger card': as typed."""
    return re.sub(r"\b([a-z_]+): (\w[\w.]*)", lambda found: _option(found[1], found[2]), hint)


def _option(key: str, value: str) -> str:
    if key in ROLLOUT_OPTIONS:
        name = rollout_option(key)
        return f"--{name}" if value == "true" else f"--{name} {value}"
    return f"--set rollout.{key}={value}"
