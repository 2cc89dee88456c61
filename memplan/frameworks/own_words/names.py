"""What several frameworks name alike: optimizers of transformers, targets of adapters, commands that name a config."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from memplan.frameworks.asking import MODEL, SEES_TOKENS
from memplan.frameworks.base import Draft, Keys
from memplan.frameworks.commands.launch import Launch
from memplan.frameworks.common.image_bounds import IMAGES, fill_packed
from memplan.frameworks.common.local_models import within
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.hugging_face.arguments import job_optimizer
from memplan.frameworks.shell.reader import Word, options_of, scalar
from memplan.presets import find_preset

OTHERS = ("transformers", "trl", "memplan", "accelerate", "deepspeed")
"""Frameworks whose keys stand in scripts of trainers with words of their own, too (``Framework.extends``)."""


def put_hf_optimizer(keys: Keys, key: str, trainer: str, other: Mapping[str, str] | None = None) -> None:
    """An optimizer under transformers' name; ``other`` are further names of the same."""
    name = (keys.text(key) or "").lower()
    name = (other or {}).get(name, name)
    found = job_optimizer(name, trainer)
    if found is None and keys.has(key):
        keys.warn(key, f"optimizer {str(keys.get(key))[:40]} is not modelled: adamw is counted in its place")
    for job_key, value in (found or {}).items():
        keys.put(job_key, value, key)


_ALTERNATIVES = re.compile(r"(\w*)\(\??:?([\w|]+)\)(\w*)\$?|(\w+)\$?")
_WHOLE_GROUP = re.compile(r"(?:^|\.)(\w*\([\w|]+\)\w*|\w+)\$?$")
"""The last part of a path whose separators may be dots or escaped dots."""
PICTURES = re.compile(
    r"(?i)(?:^|[-_/.\d])vl(?:[-_/.\d]|$)|vision|omni|llava|internvl|gemma-3-(?:4|12|27)b|gemma-3n|medgemma|pixtral"
)
"""Names of models that see images."""


def may_see_images(model: object, said: bool = False) -> bool:
    """Whether a model's name, or what else is ``said``, speaks of images, and it is not known to read text alone."""
    name = str(model or "")
    if not (said or PICTURES.search(name)):
        return False
    known = find_preset(name.rpartition("/")[2]) or within(name)
    return known is None or "vision_config" in known["config"]


_FOR_IMAGES = re.compile(r"freeze_vision_tower|limit_images|max_images|mm_processor")
"""Settings that only a model of images has, where they are on."""


def bound_images(keys: Keys, key: str, megatron: bool = False, said: bool = False, asks: bool = False) -> None:
    """A model that sees images, in a framework whose files do not say how many: as many as a sequence, or its prompt,
    holds. Beside adapters on Megatron they are not counted. ``said``: whether the file names images of its data;
    ``asks``: which model it is, where the file names none."""
    keys.draft.facts["sees"] = said or any(
        keys.is_on(each) for each in keys.settings.values if _FOR_IMAGES.search(each)
    )
    if asks and not keys.has(key):
        keys.draft.ask("model", keys.settings.path, f"no {key}", SEES_TOKENS if keys.draft.facts["sees"] else MODEL)
    if not may_see_images(keys.draft.options.get("model") or keys.get(key), said):
        return
    keys.skip(key)
    keys.draft.finishers[IMAGES] = partial(fill_packed, keys.settings.where(key), key, megatron)


def module_names(pattern: str) -> tuple[str, ...]:
    """The linears that a regular expression ends in: ``…\\.(q|k)_proj`` is q_proj and k_proj; empty where unclear."""
    last = re.split(r"\\?\.", pattern)[-1]
    if last != pattern:
        found = _WHOLE_GROUP.search(pattern)
        last = found.group(1) if found else last
    match = _ALTERNATIVES.fullmatch(last)
    if match is None:
        return ()
    if match.group(4):
        return (match.group(4),)
    return tuple(f"{match.group(1)}{name}{match.group(3)}" for name in match.group(2).split("|"))


def lora_targets(names: tuple[str, ...], every: tuple[str, ...] = ("all-linear", "all")) -> str | list[str]:
    """``targets`` of a list of names; one of ``every`` is all of them."""
    return "all-linear" if any(name in every for name in names) else [name.rsplit(".", 1)[-1] for name in names]


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The same settings with some more or other values."""
    return Settings(settings.path, {**settings.values, **values}, settings.lines, settings.prefix)


def is_command_of(launch: Launch, programs: tuple[str, ...], verbs: tuple[str, ...] = ("train",)) -> bool:
    """``llamafactory-cli train …``, or a script of that name; a program that is a script has no verb."""
    if launch.program not in programs and not any(launch.program.endswith(f"/{name}") for name in programs):
        return False
    return launch.program.endswith(".py") or bool(launch.words and launch.words[0].text in verbs)


def config_of(launch: Launch, draft: Draft) -> Settings:
    """The settings of ``program train config.yaml key=value --key value``, or of one behind ``--config``: the file's,
    under the options."""
    words = list(launch.words[0 if launch.program.endswith(".py") else 1 :])
    loose: list[Word] = []
    while words and not words[0].text.startswith("-"):
        loose.append(words.pop(0))
    values, lines, _ = options_of(words)
    for word in loose:
        key, equals, text = word.text.partition("=")
        if equals:
            values[key], lines[key] = scalar(text), word.line
    ends = (".yaml", ".yml", ".json")
    path = next((word for word in loose if word.text.endswith(ends)), None)
    if path is None and str(values.get("config")).endswith(ends):
        path = Word(str(values.pop("config")), lines["config"])
    options = Settings(launch.path, values, {**lines, **({"config": path.line} if path else {})})
    if path is None:
        return options
    return draft.follow(options, "config", path.text).settings.under(options)
