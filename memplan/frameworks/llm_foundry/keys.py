"""LLM Foundry's keys: its defaults, names of precisions and optimizers, what memory does not feel.

Source: mosaicml/llm-foundry 0.22 (8c8dd48) utils/config_utils.py (TrainConfig), optim/__init__.py."""

import re
from typing import Any

from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, settings_in
from memplan.units import words_of

_PARTS = parts_of(__file__)

FSDP = "fsdp_config."
DEFAULTS: dict[str, Any] = settings_in(
    """precision=amp_bf16 device_train_microbatch_size=auto model.attn_implementation=eager
    fsdp_config.sharding_strategy=FULL_SHARD fsdp_config.mixed_precision=DEFAULT
    fsdp_config.backward_prefetch=BACKWARD_POST fsdp_config.activation_checkpointing=false
    fsdp_config.activation_checkpointing_reentrant=true expandable_segments=true"""
)
PRECISIONS = {"amp_bf16": "bf16-amp", "amp_fp16": "fp16-amp", "fp32": "fp32"}
OPTIMIZERS = {"decoupled_adamw": "adamw", "decoupled_lionw": "lion"}
LOADS = "model.pretrained_model_name_or_path"
OTHER_MODELS = words(
    "hf_t5 hf_prefix_lm mosaic_bert flex_bert hf_bert bert fmapi_causal_lm openai_chat openai_causal_lm"
)
"""Models that are no decoders with a head of the vocabulary, or not trained here."""
HARMLESS = words(_PARTS["harmless"])
SECTIONS = words_of(
    """variables. tokenizer. scheduler. train_loader. eval_loader. callbacks. loggers. save_ load_ metadata.
    algorithms.gradient_clipping model.init_config icl_tasks eval_gauntlet profiler optimizer."""
)
"""Beginnings of names that memory does not feel, or whose parts are read one by one."""
OF_FSDP = words(
    """state_dict_type sync_module_states verbose load_monolith_rank0_only load_fsdp_monolith_rank0_only
    sharded_ckpt_prefix_dir min_params flatten_parameters save_planner load_planner auto_wrap forward_prefetch_limit
    backward_prefetch_limit use_orig_params te_checkpoint_wrapper"""
)
OWN_LAYERS = re.compile(r"mosaicml/mpt-.*|replit/.*", re.IGNORECASE)
"""Models of the Hub whose code is LLM Foundry's own (``trust_remote_code`` is on by default)."""
OF_OWN_CLASS = re.compile(
    r"model\.(d_model|[nd]_(kv_)?(heads|layers)|\w+_size|expansion_ratio|max_seq_len|rms_norm_eps|init_std|\w+_pdrop)"
)
"""What sizes a class of a project's own, which --model says."""
BESIDE_FSDP = (
    ("activation_cpu_offload", "activations on the host are counted on the card"),
    ("cpu_offload", "weights on the host are counted on the card"),
    ("keep_low_precision_grads", "gradients are counted in the dtype of the weights"),
    ("data_parallel_replicate_degree", "states are counted as sharded over all GPUs"),
    ("process_group", "states are counted as sharded over all GPUs"),
    ("te_shard_fp8_weight", "fp8 is not counted"),
)
"""Keys of its section that bear and are not modelled."""
