"""NeMo RL's own configs, as far as memory feels them, and its keys that memory does not feel.

Source: NVIDIA-NeMo/RL@7ea279a (August 2026) examples/configs/*.yaml, models/policy/__init__.py (PolicyConfig)."""

import re
from typing import Any

from memplan.frameworks.files.documents import words
from memplan.frameworks.megatron.keys import SIZES as OF_MEGATRON
from memplan.tables.texts import parts_of, settings_in, told_in

_PARTS = parts_of(__file__)
POLICY = "policy."

PROGRAM = re.compile(r"run_(?:vlm_|math_)?(grpo|dpo|sft|rm|ppo|distillation)\w*\.py")
"""Its entry points."""
PARENT = re.compile(r"(?:[\w./-]*/)?(?:vlm_|audio_)?(?:grpo|dpo|sft|rm|ppo|distillation|dapo|prorl)[\w.-]*\.ya?ml")
"""A config that others are written over, by the name it has."""
METHODS = {"grpo": "grpo", "dpo": "dpo", "sft": "sft", "rm": "reward", "ppo": "ppo", "distillation": "distill"}
"""Section at the top, or word of the entry point -> method."""
ONLINE = ("grpo", "ppo", "distill")
_POLICY: dict[str, Any] = settings_in(_PARTS["policy"])
BASES = {name: _POLICY | settings_in(text) for name, text in _PARTS.items() if name.endswith(".yaml")}
BASES["grpo_math_8B.yaml"] = BASES["grpo_math_1B.yaml"] | settings_in(_PARTS["grpo_math_8B.yaml"])
"""What configs of users are written over, where they are not beside them."""
OF_PROGRAM = {"grpo": "grpo_math_1B.yaml", "dpo": "dpo.yaml", "sft": "sft.yaml", "rm": "rm.yaml"}
"""The config that an entry point takes without ``--config``."""
STAGES = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "mtp_num_layers")
"""Megatron's settings that memplan has under the same names."""
DEFAULTS = _POLICY | {"policy.train_micro_batch_size": 1}
SIZES = {
    "dtensor_cfg": tuple((f"{name}_parallel_size", f"{name}_parallel") for name in ("tensor", "context", "expert")),
    "megatron_cfg": tuple(OF_MEGATRON.items()),
}
"""Backend -> its sizes and the job's."""
ON = told_in(_PARTS["on"])
"""What bears where it is on, and is not modelled: what it decides, and why."""
LESS = words(_PARTS["less"])
"""Of these, where what is counted takes no less."""
_OF_POLICY = words(_PARTS["of-policy"])
_OF_MEGATRON = words(_PARTS["of-megatron"])
HARMLESS = {f"policy.{name}" for name in _OF_POLICY} | {f"policy.megatron_cfg.{name}" for name in _OF_MEGATRON}
"""Names, and beginnings of names."""
