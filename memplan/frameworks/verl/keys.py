"""verl's settings by their dotted names: defaults, and which of them memory does not feel.

Source: verl 0.9 trainer/config/ppo_trainer.yaml, sft_trainer_engine.yaml and the files they are made of;
workers/engine/fsdp/transformer_impl.py."""

from typing import Any

from memplan.tables.texts import parts_of, settings_in
from memplan.units import words_of

ACTOR, ROLLOUT, MODEL, REF = (f"actor_rollout_ref.{group}." for group in ("actor", "rollout", "model", "ref"))
_PARTS = parts_of(__file__)
DEFAULTS: dict[str, Any] = (
    settings_in(_PARTS["rl"])
    | settings_in(_PARTS["actor"], ACTOR)
    | settings_in(_PARTS["model"], MODEL)
    | settings_in("n=1 temperature=1.0", ROLLOUT)
)
"""Of reinforcement learning (main_ppo)."""
SFT: dict[str, Any] = settings_in(_PARTS["sft"])
"""Of supervised fine-tuning (sft_trainer)."""
OLD_SFT: dict[str, Any] = settings_in(_PARTS["old-sft"])
"""Of the older one (fsdp_sft_trainer), to 0.7."""
METHODS = {"gae": "ppo", "grpo": "grpo", "rloo": "rloo"}
LIKE_GRPO = words_of(
    """gdpo grpo_passk grpo_vectorized rloo_vectorized reinforce_plus_plus remax opo gpg reinforce_plus_plus_baseline
    gspo optimal_token_baseline tir_optimal_token_baseline"""
)
"""Advantages of other kinds, which the update's memory does not feel."""
OPTIMIZERS = {"adamw": "AdamW", "fusedadam": "Adam", "adam": "Adam", "sgd": "SGD", "muon": "Muon"}
