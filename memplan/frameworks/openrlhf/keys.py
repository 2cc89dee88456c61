"""OpenRLHF's options by name: defaults of each program, names before 0.11, what memory does not feel.

Source: OpenRLHF 0.11 cli/train_sft.py, train_dpo.py, train_rm.py, train_ppo_ray.py; 0.5 train_prm.py, train_ppo.py;
0.9.9 train_kto.py, trainer/kto_trainer.py."""

from typing import Any

from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, rows_of, settings_by_name, settings_in
from memplan.units import pairs_of, words_of

_PARTS = parts_of(__file__)

SHARED: dict[str, Any] = settings_in(
    """train.batch_size=128 ds.zero_stage=2 ds.param_dtype=bf16 ds.attn_implementation=flash_attention_2 ds.lora.rank=0
    ds.lora.alpha=16 ds.lora.dropout=0.0 ds.lora.target_modules=all-linear optim=adam"""
)
PROGRAMS = settings_by_name(_PARTS["programs"])
OLDER: dict[str, Any] = settings_in(
    "prompt_max_len=1024 rollout.max_new_tokens=1024 train.micro_batch_size=4 rollout.micro_batch_size=8"
)
"""train_ppo_ray.py before 0.10 (0.5.7 to 0.9.9 read): a prompt and what is generated each have a bound."""
ESTIMATORS = pairs_of("gae=ppo rloo group_norm=grpo dr_grpo=grpo reinforce=grpo reinforce_baseline=grpo")
"""REINFORCE's update has no critic and no group, and is GRPO's otherwise."""
COUNTS = ("num_nodes", "num_gpus_per_node")
OLD_NAMES = pairs_of(_PARTS["old-names"]) | {
    f"{role}_{count}": f"{role}.{count}" for role in ("ref", "reward", "critic") for count in COUNTS
}
"""Flat names, before 0.11."""
OF_THE_ACTOR = (
    "model.model_name_or_path",
    "model.gradient_checkpointing_enable",
    "model.gradient_checkpointing_reentrant",
)
NOT_MODELLED = rows_of(_PARTS["not-modelled"])
HARMLESS = words(_PARTS["harmless"])
FAMILIES = words_of(
    """ckpt. logger. eval. data. adam. muon. vllm. algo. rollout. reward. actor.adam. actor.muon. critic.adam.
    critic.muon."""
)
"""Groups of which only what is read above bears on the update's memory."""
OF_THE_MODEL = words(_PARTS["of-the-model"])
"""``train.enable_ema``: the moving average stands on the CPU."""
