"""TRL's own arguments by name: which trainer they mean, which memory does not feel, and defaults by version.

Source: trl 0.9 to 1.16 trainer/*_config.py, experimental/*/*_config.py, scripts/."""

from typing import Any

from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, rows_of
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

MARKS = words(
    """use_peft dataset_train_split dataset_test_split max_completion_length max_prompt_length num_generations
    precompute_ref_log_probs lora_task_type use_bnb_nested_quant simpo_gamma cpo_alpha vllm_mode assistant_only_loss
    completion_only_loss truncation_mode rpo_alpha dataset_mixer reward_funcs scale_rewards missing_eos_penalty
    dataset_text_field teacher_model_name_or_path desirable_weight center_rewards_coefficient lora_modules_to_save
    num_ppo_epochs local_rollout_forward_batch_size dataset_num_proc padding_free"""
)
"""Keys that tell a file of TRL's."""

MODEL: dict[str, Any] = {
    "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "use_peft": False, "dtype": "float32",
    "lora_target_modules": ["q_proj", "v_proj"], "bnb_4bit_quant_type": "nf4",
}  # fmt: skip
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
