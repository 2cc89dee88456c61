"""The model that a job's keys name, as far as it is to be had now, and what its checkpoint holds."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks.common.local_models import alike
from memplan.models import load_model
from memplan.spec.model import ModelSpec
from memplan.tables.families import FP32_CHECKPOINTS


def spec_of(given: Mapping[str, Any]) -> ModelSpec | None:
    """The model of a job's keys, or that of its name; None where it is not to be had now."""
    name = given.get("model")
    for each in (name, alike(name) if isinstance(name, str) else ""):
        with suppress(MemplanError):
            if each:
                return load_model(each, given.get("revision") if each == name else None)
    return None


def holds_fp32(given: Mapping[str, Any]) -> bool:
    """Whether a model's checkpoint is fp32: its config says so, or names no dtype, where the first of its weights
    decides (transformers 5.24 modeling_utils.py: _get_dtype)."""
    spec = spec_of(given)
    return spec is not None and (spec.dtype == "fp32" or (not spec.dtype and spec.family in FP32_CHECKPOINTS))


def family_of(given: Mapping[str, Any]) -> str:
    """The model's type; empty where it is not to be had now."""
    found = spec_of(given)
    return found.family if found else ""
