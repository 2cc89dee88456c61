"""verl's settings by their dotted names: defaults, and which of them memory does not feel.

Source: verl 0.9 trainer/config/ppo_trainer.yaml, sft_trainer_engine.yaml and the files they are made of;
workers/engine/fsdp/transformer_impl.py."""

from collections.abc import Mapping
from typing import Any

from memplan.frameworks.files.documents import Settings
from memplan.tables.texts import parts_of, settings_in
from memplan.units import pairs_of, words_of

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


def places_of(text: str) -> dict[str, str]:
    """Settings of another's and verl's that they are, of whose groups the long names (``ACTOR.strategy``)."""
    groups = {"ACTOR": ACTOR, "ROLLOUT": ROLLOUT, "MODEL": MODEL, "REF": REF}
    parted = ((own, of.partition(".")) for own, of in pairs_of(text).items())
    return {own: f"{groups.get(head, f'{head}{dot}')}{rest}" for own, (head, dot, rest) in parted}


def moved(settings: Settings, values: dict[str, Any], said: Mapping[str, str]) -> Settings:
    """The settings with other values, each with the line of the name under which it is ``said``."""
    lines = {name: settings.lines[own] for name, own in said.items()}
    paths = {name: settings.paths[own] for name, own in said.items() if own in settings.paths}
    return Settings(settings.path, values, {**settings.lines, **lines}, settings.prefix, {**settings.paths, **paths})
