"""Megatron-Bridge's recipes for pretraining and full fine-tuning, as far as memory feels them.

Source: NVIDIA-NeMo/Megatron-Bridge 0.6 (067f987) src/megatron/bridge/recipes/*/h100/*.py, recipes/common.py; 0.4 and
0.5 differ in the short names of Qwen3 8B and 30B-A3B alone."""

import re
from typing import Any

from memplan.tables.texts import Lazily, parts_of, settings_by_name
from memplan.units import pairs_of

_PARTS = parts_of(__file__)
TABLE = tuple(_PARTS["table"].strip("\n").split("\n"))
"""Recipe, model, and where it differs from the common one: sizes by short names, switches by a word.
``@8``: the one for so many GPUs, beside one of the same name for more."""
_COMMON = settings_by_name(_PARTS["common"])
_SIZES = pairs_of(_PARTS["sizes"])
_WORDS = settings_by_name(_PARTS["words"]) | {"layout": {"pipeline_model_parallel_layout": "its own"}}
_GPUS = re.compile(r"_(\d+)gpu(?:_h100_bf16)?")
_LONG = re.compile(r"(.+)_(\d+k)_(pretrain|sft|finetune)")


def _read(name: str) -> tuple[str, dict[str, Any]]:
    model, *words = _LINES[name]
    return model.strip("-"), _settings(name, words)


_LINES = {own: words for own, *words in map(str.split, TABLE)}
_ROWS = Lazily(_LINES, _read)


def _settings(name: str, words: list[str]) -> dict[str, Any]:
    values = dict(_COMMON["pretrain" if "_pretrain" in name else "sft"])
    for word in words:
        key, _, value = word.partition("=")
        if value:
            values[_SIZES[key]] = int(value)
        elif word.startswith("selective:"):
            values |= _WORDS["selective"] | {"recompute_modules": word.partition(":")[2].split("+")}
        else:
            values |= _WORDS[word]
    return values


def recipe(name: str) -> tuple[str, dict[str, Any]] | None:
    """(model, settings under Megatron's names) of a recipe by any of its names; adapters' are full fine-tuning's."""
    bare = name.removesuffix("_config")
    gpus = _GPUS.search(bare)
    bare = _GPUS.sub("", bare)
    long = _LONG.fullmatch(bare)
    bare = f"{long.group(1)}_{long.group(3)}_{long.group(2)}" if long else bare
    bare, old = re.sub(r"_(finetune|peft)(?=_|$)", "_sft", bare), "_finetune" in bare
    smaller = _ROWS.get(f"{bare}@{gpus.group(1)}") if gpus else _ROWS.get(f"{bare}@8") if old else None
    return smaller or _ROWS.get(bare)
