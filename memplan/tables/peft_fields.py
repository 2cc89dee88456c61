"""Fields of PEFT's LoraConfig (peft 0.21 tuners/lora/config.py): a job's names for them, those without effect on
memory, those that are not modelled."""

from memplan.units import pairs_of

FIELDS = pairs_of(
    """target_modules=targets exclude_modules layers_to_transform rank_pattern lora_alpha=alpha lora_dropout=dropout
    use_rslora=rslora use_dora=dora r bias lora_bias modules_to_save trainable_token_indices"""
)
"""Field: key of a job's ``lora``."""
ADAPTER = "adapter_config.json"
"""What PEFT saves a config as, beside its adapters."""
NO_EFFECT = frozenset(
    [
        "task_type", "peft_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping",
        "peft_version", "alpha_pattern", "layers_pattern", "fan_in_fan_out", "init_lora_weights", "loftq_config",
        "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "megatron_core", "runtime_config",
        "modules_to_tie", "target_modules_to_tie",
    ]
)  # fmt: skip
"""Names, scales and starting values. What PiSSA, OLoRA, EVA, CorDA and LoRA-GA need is gone before the first step."""
NOT_MODELLED = frozenset(
    [
        "target_parameters", "layer_replication", "megatron_config", "ensure_weight_tying", "alora_invocation_tokens",
        "use_qalora", "velora_config", "monteclora_config", "use_bdlora", "arrow_config", "kasa_config",
    ]
)  # fmt: skip
"""Those that bear on memory."""
