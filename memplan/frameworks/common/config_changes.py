"""Fields of a model's config that a training file sets: LLM Foundry's ``config_overrides`` and their like."""

from typing import Any

from memplan.arch.layer_norm import GPT_NAMES
from memplan.frameworks.base import Draft, Keys
from memplan.models import model_config

UNFELT = ("rope_scaling", "rope_parameters", "attn_config")
"""Sections of a config that memory does not feel."""
_CHANGES = "config_changes"
_COMMON = {own: common for common, own in GPT_NAMES.items()}


def change(keys: Keys, prefix: str) -> None:
    """Note those whose dotted names begin with ``prefix``; the model's name may not be settled yet."""
    fields: dict[str, Any] = {}
    for key in [key for key in keys.settings.values if key.startswith(prefix)]:
        keys.skip(key)
        field, _, inner = key.removeprefix(prefix).partition(".")
        if not inner and (value := keys.settings.values[key]) is not None:
            fields[field] = value
        elif inner and field not in UNFELT:
            keys.draft.warn(key, keys.settings.where(key), "the model is counted as its name says", "model")
    keys.draft.facts[_CHANGES] = fields


def settle_changes(draft: Draft) -> None:
    """Give the model as its config with these fields, where the file names it and no option another. Raises
    ModelNotFound where the name is nobody's."""
    fields, model = draft.facts.get(_CHANGES), draft.values.get("model")
    if fields and model is not None and "model" not in draft.given:
        config = model_config(model, draft.values.get("revision"))
        named = {_COMMON[key] if _COMMON.get(key) in config else key: value for key, value in fields.items()}
        draft.values["model"] = {**config, **named}
