"""What to type for a change of job keys: plain options, and --set for what has none."""

import json
from collections.abc import Mapping
from typing import Any

from memplan.tables.choices import ALLOCATOR_OPTIONS, ROLLOUT_OPTIONS, rollout_option


def option_words(changes: Mapping[str, Any]) -> str:
    """What to type for a change of job keys."""
    return " ".join(_option(key, value) for key, value in changes.items())


def _option(key: str, value: Any) -> str:
    if key == "gradient_checkpointing":
        flags = {"full": "--gradient-checkpointing", "none": "--no-gradient-checkpointing"}
        return flags.get(value, f"--recompute {value}")
    if key == "lora" and value == {}:
        return "--lora"
    if value is None:
        return f"--set {key}=null"
    if isinstance(value, dict):
        pairs = [(inner, _scalar(item)) for inner, item in value.items()]
        return " ".join(_inner(key, inner, text) for inner, text in pairs)
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(item, str) for item in value):
            return f"--set '{key}={json.dumps(value)}'"
        value = ",".join(value)
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {_scalar(value)}"


def _inner(key: str, inner: str, text: str) -> str:
    """A key inside another: LoRA's, some of the engine's and the allocator's are options of their own."""
    if key == "allocator" and inner in ALLOCATOR_OPTIONS:
        return _flag(inner, text)
    if key == "rollout" and inner in ROLLOUT_OPTIONS:
        name = rollout_option(inner)
        return _flag(name, text) if text in ("true", "false") else f"--{name} {text}"
    return f"--lora-{inner.replace('_', '-')} {text}" if key == "lora" else f"--set {key}.{inner}={text}"


def _flag(name: str, text: str) -> str:
    return f"--{'no-' if text == 'false' else ''}{name.replace('_', '-')}"


def _scalar(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
