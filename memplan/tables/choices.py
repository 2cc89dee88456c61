"""The values of every key that is a choice: one list for the job, the command line, the schema and the docs."""

import re

from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS
from memplan.tables.precisions import FLOAT8, PRECISIONS
from memplan.tables.quantizations import QUANTIZATIONS
from memplan.tables.texts import parts_of, rows_of
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
    "context_exchange": ("own", "gathered"),
    "mixer_kernels": ("auto", "torch", "cuda"),
    "attention": ("flash", "sdpa", "eager"),
    "loss_head": words_of(
        "auto cross-entropy compiled-cross-entropy log-softmax selective chunked fused cut-cross-entropy tiled"
    ),
    "logits_dtype": ("auto", "bf16", "fp32"),
    "pair_pass": ("concatenated", "two-forward", "split", "gradcache"),
    "reference": ("auto", "none", "resident", "adapter", "second-adapter", "precomputed", "offloaded"),
    "quantization": ("none", *QUANTIZATIONS),
    "sharding": ("none", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "fsdp2", "distributed-optimizer"),
    "entropy": ("unscored", "none", "metric", "loss"),
}

_SPELLINGS = {key: rows_of(text) for key, text in parts_of(__file__).items()}
INSTEAD = _SPELLINGS.pop("instead")
"""Words that are no value, and what they mean."""
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
    return re.sub(r"\b([a-z_.]+): (\w[\w.]*)", lambda found: _option(found[1], found[2]), hint)


def _option(key: str, value: str) -> str:
    if key in ROLLOUT_OPTIONS:
        name = rollout_option(key)
        return f"--{name}" if value == "true" else f"--{name} {value}"
    return f"--set {key if '.' in key else f'rollout.{key}'}={value}"
