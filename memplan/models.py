"""From what a user names to a ModelSpec: path, preset, Hub id, inline config, or only a number of parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob, ModelError, ModelNotFound
from memplan.spec.model import ModelSpec
from memplan.spec.plain import check_plain

MAX_CONFIG_BYTES = 10_000_000
MAX_NAMES_BYTES = 64_000_000
"""Of a checkpoint's index, or the header of its one file."""


def load_model(model: str | os.PathLike[str] | Mapping[str, Any], revision: str | None = None) -> ModelSpec:
    """The description of a model: an existing folder or config.json, a preset's name, a Hub id, or a config mapping.

    Raises ModelNotFound when nothing answers to the name, UnknownArchitecture when its kind is not described."""
    if isinstance(model, Mapping):
        from memplan.arch import parse_config

        check_plain({"model": model})
        return parse_config(model, str(model.get("_name_or_path") or "inline config"), "inline config")
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidJob(
            f"a model is a name or a config, not {type(model).__name__}", "name a preset, a Hub id, a path"
        )
    text = os.fspath(model)
    if os.path.exists(text):
        return _from_path(text)
    return _from_name(text, revision)


def model_config(model: str | os.PathLike[str] | Mapping[str, Any], revision: str | None = None) -> dict[str, Any]:
    """The raw config of a model named in any of these ways, as ``config.json`` has it: what a trace builds from.

    Raises ModelNotFound when nothing answers to the name."""
    if isinstance(model, Mapping):
        return dict(model)
    text = os.fspath(model)
    if os.path.exists(text):
        return read_config(_config_file(text))
    from memplan.presets import model_names, model_preset

    preset = _preset_of(text) if revision is None else None
    if preset or "/" not in text:
        return dict(model_preset(preset or text)["config"])
    from memplan.hub import fetch_config

    return dict(fetch_config(text, revision, presets=model_names()).config)


def _config_file(path: str) -> str:
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise ModelNotFound(f"no config.json in {path}", "name the config.json itself, a preset or a Hub id")
    return file


def _from_path(path: str) -> ModelSpec:
    from memplan.arch import parse_config

    file = _config_file(path)
    return parse_config(_with_tensors(read_config(file), os.path.dirname(file)), path, f"file {file}")


def _with_tensors(config: dict[str, Any], folder: str) -> dict[str, Any]:
    """A quantised checkpoint's config with what else its folder tells of it: ModelOpt's own file, where the config has
    no section, and the names of the tensors, where they are there."""
    section = config.get("quantization_config")
    if section is None:
        own = _json_of(os.path.join(folder, "hf_quant_config.json")).get("quantization")
        section = {"quant_method": "modelopt", **own} if isinstance(own, dict) else None
    if not isinstance(section, dict):
        return config
    from memplan.arch.quantised_layers import TENSORS

    header = os.path.join(folder, "model.safetensors")
    names = _json_of(header + ".index.json").get("weight_map") or _json_of(header)
    more = {TENSORS: [*names]} if isinstance(names, dict) and names else {}
    return config | {"quantization_config": section | more}


def _json_of(path: str) -> dict[str, Any]:
    """The object in a file, or in the header of a safetensors file; empty where there is none that can be read."""
    import json

    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little") if path.endswith(".safetensors") else os.path.getsize(path)
            found = json.loads(file.read(size)) if os.path.isfile(path) and size <= MAX_NAMES_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_config(path: str) -> dict[str, Any]:
    """A config.json from disk. Raises ModelError for one that is too large, not JSON, or not an object."""
    import json

    try:
        if os.path.getsize(path) > MAX_CONFIG_BYTES:
            raise ModelError(f"{path} is larger than 10 MB", "a config.json has a few kilobytes")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        if not path.endswith(".json"):
            said = f"{path} is no training config that memplan knows, and no model's config.json"
            raise ModelError(said, "memplan show frameworks lists whose files are read") from None
        raise ModelError(f"{path} is not readable JSON: {str(error)[:120]}", "pass a model's config.json") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no JSON object", "pass a model's config.json")
    return config


def _from_name(name: str, revision: str | None) -> ModelSpec:
    preset = _preset_of(name) if revision is None else None
    if preset:
        return _preset(preset)
    if "/" not in name:
        from memplan.presets import model_preset

        model_preset(name)  # raises, naming the nearest presets
    from memplan.arch import parse_config
    from memplan.hub import fetch_config
    from memplan.presets import model_names

    found = fetch_config(name, revision, presets=model_names())
    config = _with_tensors(found.config, os.fspath(found.path.parent))
    return parse_config(config, name, f"Hugging Face Hub ({found.origin})")


@lru_cache(maxsize=256)
def _preset_of(name: str) -> str | None:
    """The name by which a preset answers to a name, its own or a Hub id: once, as a sweep names one in each row."""
    from memplan.presets import find_by_hub_id, has_model, last_part

    return name if has_model(name) else last_part(name) if find_by_hub_id(name) else None


@lru_cache(maxsize=256)
def _preset(name: str) -> ModelSpec:
    from memplan.arch import parse_config
    from memplan.presets import model_preset

    preset = model_preset(name)
    config, named = preset["config"], preset["name"]
    spec = parse_config(config, named, f"preset {named} ({preset['hub_id']})")
    if "published" not in preset:
        return spec
    return spec.but(published=parse_config(config | {"quantization_config": preset["published"]}, named).quantization)
