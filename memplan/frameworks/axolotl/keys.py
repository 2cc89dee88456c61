"""Axolotl's keys by name: its defaults, and what memory does not feel.

Source: axolotl 0.18 utils/schemas/*.py, utils/config/__init__.py, integrations/*/args.py."""

from typing import Any

from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, rows_of, settings_in
from memplan.units import pairs_of

_PARTS = parts_of(__file__)

RELEASES = {release: row.split() for release, row in rows_of(_PARTS["releases"]).items()}
"""By release, the transformers and the TRL that it pins."""
GONE = {word: release for release, row in reversed(rows_of(_PARTS["gone"]).items()) for word in row.split()}
"""Keys that went, and the last release that took them; the oldest comes last."""
TRANSFORMERS_VERSION, TRL_VERSION = RELEASES["0.18"]
DEFAULTS: dict[str, Any] = settings_in(
    """sequence_len=512 micro_batch_size=1 gradient_accumulation_steps=1 optimizer=adamw_torch_fused bf16=auto
    gradient_checkpointing=false lora_dropout=0.0"""
)
METHODS = {"dpo": "dpo", "ipo": "ipo", "orpo": "orpo", "kto": "kto", "simpo": "simpo", "grpo": "grpo", "gdpo": "grpo"}
"""``rl`` -> method; GDPO normalises GRPO's rewards one by one."""
OWN_OPTIMIZERS = pairs_of("ao_adamw_4bit=adamw_torch_4bit ao_adamw_8bit=adamw_torch_8bit optimi_adamw=adamw_torch")
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
NO_LESS = rows_of(_PARTS["no-less"])
"""Keys that are not modelled and take no more than what is counted in their place."""
HARMLESS = words(_PARTS["harmless"])
