"""Scripts on transformers' Trainer that are known: what tells one, and the defaults of its own dataclasses.

A script's defaults hold where a file is silent. Names are the script's own, so that an origin says what stands in it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.frameworks.draft import Draft
from memplan.frameworks.files.documents import Settings
from memplan.tables.texts import parts_of, rows_of, settings_by_name, settings_over


class Script(NamedTuple):
    """One training script, or a family of copies of it."""

    title: str
    marks: tuple[frozenset[str], ...]
    """Any of these sets of keys tells it."""
    defaults: Mapping[str, Any]
    seen: str
    """Repository and file that these were read in."""
    program: str = ""
    """Or this pattern of the program's path tells it; empty where keys alone do."""
    also: Mapping[str, str] = {}
    """Names whose meaning here is another than in the table."""
    tower_apart: bool = False
    """Its vision tower is another key's than its language model."""
    beside: bool = False
    """Adapters stand on the language model alone; what is not frozen of tower and projector is trained whole."""
    head: str = ""
    """Its switch that freezes ``model.model``: a head that is not tied is trained all the same."""
    trainer: str = "transformers"
    """Whose Trainer it runs for supervised fine-tuning."""
    model: str = ""
    """Its model's name has this pattern in it, where copies for other models differ."""
    version: str = ""
    """Of transformers, that its own requirements pin."""


def _scripts(parts: dict[str, str]) -> Iterator[Script]:
    shared = settings_by_name(parts.pop("shared"))
    for title, text in parts.items():
        rows: dict[str, Any] = dict(rows_of(text))
        marks = tuple(frozenset(each.split()) for each in rows.pop("marks", "").split(";") if each)
        rows |= dict.fromkeys(rows.pop("flags", "").split(), True)
        also = dict([rows.pop("also").split("=")]) if "also" in rows else {}
        yield Script(title, marks, settings_over(rows.pop("defaults"), shared), also=also, **rows)


SCRIPTS = tuple(_scripts(parts_of(__file__)))


_TUNED = {"tune_type_llm": "freeze_llm", "tune_type_vision_tower": "freeze_vision_tower",
          "tune_type_connector": "freeze_mm_mlp_adapter"}  # fmt: skip
"""TinyLLaVA_Factory's words for a part, frozen or full, and the switch that says the same (training_recipe/base.py)."""


def with_switches(settings: Settings) -> Settings:
    """``tune_type_llm: frozen`` is ``freeze_llm: true``, and ``lora`` of the recipe of that name ``lora_enable: true``;
    a second tower without a name is none."""
    said = {key: settings.values.get(key) for key in _TUNED}
    plain = {name: (key, said[key] == "frozen") for key, name in _TUNED.items() if said[key] in ("frozen", "full")}
    if said["tune_type_llm"] == settings.values.get("training_recipe") == "lora":
        plain["lora_enable"] = ("tune_type_llm", True)
    if not plain:
        return settings
    none = {key for key in ("vision_tower2",) if not settings.values.get(key)}
    gone = {*(key for key, _ in plain.values()), *TINY, *none}
    values = {key: value for key, value in settings.values.items() if key not in gone}
    values |= {name: on for name, (_, on) in plain.items()}
    lines = {**settings.lines} | {name: settings.lines.get(key, 1) for name, (key, _) in plain.items()}
    return replace(settings, values=values, lines=lines)


TINY = ("tune_vision_tower_from_layer", "connector_type", "pretrained_model_path", "training_recipe",
        "tokenizer_use_fast", "conv_version", "pretrained_connector_path")  # fmt: skip
"""What else it says: connectors are small, layers from 0 on are all."""


def with_lora_config(settings: Settings, draft: Draft) -> Settings:
    """These settings, and under them those of the file that ``lora_config`` names (BELLE), where it is there."""
    path = settings.values.get("lora_config")
    if not isinstance(path, str):
        return settings
    try:
        inner = draft.follow(settings, "lora_config", path).settings
    except InvalidJob:
        return settings  # the key stays, and is told as not understood
    own = {key: value for key, value in settings.values.items() if key != "lora_config"}
    return inner.under(settings, own)


def script_of(settings: Settings, program: str = "") -> Script | None:
    """The known script that takes these settings: told by its keys, and where they are many scripts' by its path."""
    keys = {key for key, value in settings.values.items() if value is not None}
    model = str(settings.values.get("model_name_or_path") or "")
    for row in SCRIPTS:
        named = bool(row.program and re.search(row.program, program))
        if (named or any(marks <= keys for marks in row.marks)) and re.search(row.model, model):
            return row
    return None
