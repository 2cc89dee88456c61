"""TRL's own arguments by name: which trainer they mean, which memory does not feel, and defaults by version.

Source: trl 0.9 to 1.16 trainer/*_config.py, experimental/*/*_config.py, scripts/."""

from typing import Any

from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, rows_of, settings_in
from memplan.units import by_word

_PARTS = parts_of(__file__)

COMMANDS: dict[str, str] = rows_of(_PARTS["commands"])
"""A word of ``trl …`` or of a script's name -> method; online_dpo is told by both of its words."""
NOT_MODELLED = ("xpo", "nash", "bco", "tpo", "prm", "gold", "sdft", "sdpo", "ssd", "minillm", "gmpo", "a2po")

METHOD_KEYS = {method: tuple(names.split()) for method, names in rows_of(_PARTS["method-keys"]).items()}
"""Arguments that only one trainer has."""
LOSSES = by_word(rows_of(_PARTS["losses"]))
"""``loss_type`` -> the trainer that has it; ipo is DPO's and CPO's."""
KNOWN_LOSSES = {*LOSSES, *words("ipo sft kto_pair gspo none None")}
"""With those that several trainers have, or had."""

MARKS = words(_PARTS["marks"])
"""Keys that tell a file of TRL's."""

MODEL: dict[str, Any] = settings_in(_PARTS["model"])
"""ModelConfig. Before 0.27 ``dtype`` was not set, and transformers 4 then loaded fp32 as well."""
TRAINER: dict[str, Any] = {"gradient_checkpointing": True, "bf16": None, "max_length": 1024}
METHODS: dict[str, dict[str, Any]] = {
    "sft": {},
    "dpo": {"loss_type": "sigmoid"},
    "kto": {"loss_type": "kto"},
    "orpo": {},
    "cpo": {"loss_type": "sigmoid", "cpo_alpha": 1.0},
    "simpo": {"loss_type": "simpo", "cpo_alpha": 1.0},
    "reward": {},
    "grpo": {"max_completion_length": 512, "num_generations": 8, "beta": 0.0, "temperature": 1.0, "max_length": None},
    "rloo": {"max_completion_length": 512, "num_generations": 2, "beta": 0.05, "temperature": 1.0, "max_length": None},
    "online-dpo": {"max_new_tokens": 64, "max_length": 512, "temperature": 0.9},
    "ppo": {"response_length": 53, "temperature": 0.7, "max_length": None},
    "distill": {"temperature": 1.0},
}
"""By method, on top of the two above: TRL 1.16."""

HARMLESS = words(_PARTS["harmless"])
