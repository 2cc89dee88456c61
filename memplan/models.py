"""From what a user names to a ModelSpec: a path, a preset, a Hub id, an inline config, or only a number of
parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from memplan.errors import ModelError, ModelNotFound
from memplan.spec.model import Layer, ModelSpec, Run
from memplan.spec.parts import Attention, FeedForward, Linear, Norm

MAX_CONFIG_BYTES = 10_000_000


def load_model(model: str | os.PathLike[str] | Mapping[str, Any], revision: str | None = None) -> ModelSpec:
    """The description of a model: an existing folder or config.json, a preset's name, a Hub id, or a config mapping.

    Raises ModelNotFound when nothing answers to the name, UnknownArchitecture when its kind is not described.
    """
    if isinstance(model, Mapping):
        from memplan.arch import parse_config

        return parse_config(model, str(model.get("_name_or_path") or "inline config"), "inline config")
    text = os.fspath(model)
    if os.path.exists(text):
        return _from_path(text)
    return _from_name(text, revision)


def model_config(model: str | os.PathLike[str] | Mapping[str, Any], revision: str | None = None) -> dict[str, Any]:
    """The raw config of a model named in any of these ways, as ``config.json`` has it: what a trace builds from.

    Raises ModelNotFound when nothing answers to the name.
    """
    if isinstance(model, Mapping):
        return dict(model)
    text = os.fspath(model)
    if os.path.exists(text):
        return read_config(_config_file(text))
    from memplan.presets import find_by_hub_id, has_model, model_names, model_preset

    preset = (text if has_model(text) else find_by_hub_id(text)) if revision is None else None
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
    return parse_config(read_config(file), path, f"file {file}")


def read_config(path: str) -> dict[str, Any]:
    """A config.json from disk. Raises ModelError for one that is too large, not JSON, or not an object."""
    import json

    try:
        if os.path.getsize(path) > MAX_CONFIG_BYTES:
            raise ModelError(f"{path} is larger than 10 MB", "a config.json has a few kilobytes")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not readable JSON: {str(error)[:120]}", "pass a model's config.json") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no JSON object", "pass a model's config.json")
    return config


def _from_name(name: str, revision: str | None) -> ModelSpec:
    from memplan.presets import find_by_hub_id, has_model

    if revision is None:
        preset = name if has_model(name) else find_by_hub_id(name)
        if preset:
            return _preset(preset)
    if "/" not in name:
        from memplan.presets import model_preset

        model_preset(name)  # raises, naming the nearest presets
    from memplan.arch import parse_config
    from memplan.hub import fetch_config
    from memplan.presets import model_names

    found = fetch_config(name, revision, presets=model_names())
    return parse_config(found.config, name, f"Hugging Face Hub ({found.origin})")


@lru_cache(maxsize=256)
def _preset(name: str) -> ModelSpec:
    from memplan.arch import parse_config
    from memplan.presets import model_preset

    preset = model_preset(name)
    return parse_config(preset["config"], preset["name"], f"preset {preset['name']} ({preset['hub_id']})")


_GENERIC_SHAPES = (
    # parameters, hidden, layers, heads, kv heads, feed-forward, vocabulary: of published dense decoders of that size
    (135e6, 576, 30, 9, 3, 1536, 49152, True),
    (500e6, 896, 24, 14, 2, 4864, 151936, True),
    (1.2e9, 2048, 16, 32, 8, 8192, 128256, True),
    (3.2e9, 3072, 28, 24, 8, 8192, 128256, True),
    (8.0e9, 4096, 32, 32, 8, 14336, 128256, False),
    (14.8e9, 5120, 48, 40, 8, 13824, 152064, False),
    (32.8e9, 5120, 64, 40, 8, 27648, 152064, False),
    (70.6e9, 8192, 80, 64, 8, 28672, 128256, False),
    (405e9, 16384, 126, 128, 8, 53248, 128256, False),
)


def generic_model(total: int) -> ModelSpec:
    """A dense decoder of about ``total`` parameters: the nearest published shape, with layers and width fitted to
    it.
    """
    from math import log

    _, hidden, _, heads, kv_heads, width, vocabulary, tied = min(
        _GENERIC_SHAPES, key=lambda shape: abs(log(shape[0] / total))
    )
    head_dim = hidden // heads
    fixed = vocabulary * hidden * (1 if tied else 2) + hidden
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim + 2 * hidden
    body = max(total - fixed, attention + 3 * hidden * 64)
    count = max(1, round(body / (attention + 3 * hidden * width)))
    fitted = max(64, round((body / count - attention) / (3 * hidden)))
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    outputs = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim, hidden)
    inputs = (hidden, hidden, hidden, heads * head_dim)
    layer = Layer(
        mixer=Attention(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            linears=tuple(Linear(name=n, inputs=i, outputs=o) for n, i, o in zip(names, inputs, outputs, strict=True)),
        ),
        feed_forward=FeedForward(
            intermediate=fitted,
            linears=(
                Linear(name="gate_proj", inputs=hidden, outputs=fitted),
                Linear(name="up_proj", inputs=hidden, outputs=fitted),
                Linear(name="down_proj", inputs=fitted, outputs=hidden),
            ),
        ),
        norms=(Norm(name="input_layernorm", width=hidden), Norm(name="post_attention_layernorm", width=hidden)),
    )
    return ModelSpec(
        name=f"generic {total / 1e9:g}B",
        family="generic",
        hidden_size=hidden,
        vocab_size=vocabulary,
        tied=tied,
        runs=(Run(count=count, layer=layer),),
        final_norm=Norm(name="norm", width=hidden),
        head=Linear(name="lm_head", inputs=hidden, outputs=vocabulary),
        source="nearest published dense shape",
    )
