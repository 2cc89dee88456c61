"""Axolotl's keys by name: its defaults, and what memory does not feel.

Source: axolotl 0.18 utils/schemas/*.py, utils/config/__init__.py, integrations/*/args.py; trl 1.8 and transformers
5.14, which it pins."""

from typing import Any

from memplan.frameworks.documents import words
from memplan.tables.texts import parts_of, rows_of, settings_in
from memplan.units import pairs_of

_PARTS = parts_of(__file__)

TRL_VERSION, TRANSFORMERS_VERSION = "1.8", "5.14"
DEFAULTS: dict[str, Any] = settings_in(
    """sequence_len=512 micro_batch_size=1 gradient_accumulation_steps=1 optimizer=adamw_torch_fused bf16=auto
    gradient_checkpointing=false lora_dropout=0.0"""
)
METHODS = {"dpo": "dpo", "ipo": "ipo", "orpo": "orpo", "kto": "kto", "simpo": "simpo", "grpo": "grpo", "gdpo": "grpo"}
"""``rl`` -> method; GDPO normalises GRPO's rewards one by one."""
OWN_OPTIMIZERS = {
    "ao_adamw_4bit": "adamw_torch_4bit",
    "ao_adamw_8bit": "adamw_torch_8bit",
    "optimi_adamw": "adamw_torch",
}
"""Other names of transformers' optimizers; empty: not modelled."""
ATTENTION_FLAGS = pairs_of(
    """xformers_attention=xformers sage_attention=sage flex_attention flash_attention=flash_attention_2
    sdp_attention=sdpa eager_attention=eager"""
)
LIGER = ("liger_rms_norm", "liger_glu_activation", "liger_swiglu", "liger_rope", "liger_layer_norm")
MARKS = words(
    """micro_batch_size sequence_len datasets sample_packing lora_target_linear val_set_size dataset_prepared_path
    pretraining_dataset num_epochs"""
)
"""With ``base_model``, a file of Axolotl's."""

NOT_MODELLED = rows_of(_PARTS["not-modelled"])
"""Keys that bear on memory and are not understood."""
HARMLESS = words(_PARTS["harmless"])
