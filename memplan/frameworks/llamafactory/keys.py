"""LLaMA-Factory's own arguments by name: what bears on memory and is not modelled, and what memory does not feel.

Source: llamafactory 0.9.5 hparams/*.py (data, model, finetuning, generating and training arguments)."""

from typing import Any

from memplan.frameworks.files.documents import words
from memplan.frameworks.hugging_face.arguments import DEFAULTS as TRAINER
from memplan.tables.texts import parts_of, rows_of, settings_in

_PARTS = parts_of(__file__)

DEFAULTS: dict[str, Any] = TRAINER | settings_in(
    """stage=sft finetuning_type=lora cutoff_len=2048 gradient_checkpointing=true use_reentrant_gc=true lora_rank=8
    lora_dropout=0.0 lora_target=all pref_loss=sigmoid pref_ftx=0.0 flash_attn=auto quantization_method=bnb
    quantization_type=nf4 double_quantization=true"""
)
STAGES = {"pt": "sft", "sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "orpo": "orpo"}
"""orpo was one in 0.6 and 0.7, and is a loss of dpo since."""
LOSSES = {"sigmoid": "dpo", "hinge": "dpo", "kto_pair": "dpo", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}
"""``pref_loss`` of stage dpo."""
ATTENTIONS = {"fa2": "flash", "fa3": "flash", "sdpa": "sdpa", "disabled": "eager", "auto": "sdpa"}
MARKS = words("finetuning_type cutoff_len lora_target lora_rank pref_loss pref_beta neat_packing quantization_bit")
"""With ``stage`` or ``template``, a file of LLaMA-Factory's."""

NOT_MODELLED = rows_of(_PARTS["not-modelled"])
"""Keys that bear on memory, where they are on."""
HARMLESS = words(_PARTS["harmless"])
