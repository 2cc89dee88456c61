"""Where NeMo RL's settings stand: a config with those that it is written over, under a command's overrides."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.base import Draft
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import found_at, program_at
from memplan.frameworks.nemo_rl.keys import BASES, OF_PROGRAM, PROGRAM
from memplan.frameworks.shell.reader import scalar
from memplan.frameworks.transformers import only_launch
from memplan.frameworks.verl.source import flat

MOST = 8
"""Configs that stand over one another."""
MOST_TEXT = 1000
"""Characters of a value that may refer to others."""
_NAME = re.compile(r"\$\{([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{(mul|add|div|max):\s*([\d.]+)\s*,\s*([\d.]+)\s*\}")
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.[\w@-]+)+)=(.*)", re.DOTALL)
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\w+,\s*([^${}]*)\}")
"""A variable of the environment with what stands for it where it is not set."""
_SUMS: dict[str, Callable[[float, float], float]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "div": lambda a, b: a / b if b else 0.0,
    "max": max,
}


def trainings(document: Document) -> list[Launch]:
    """The commands of a script that start its entry points: on Ray, with ``--config`` and overrides. Scripts of other
    projects have the same names: one that lies here imports NeMo RL."""
    return [
        launch
        for launch in launches(document)
        if PROGRAM.fullmatch(launch.program.rsplit("/", 1)[-1])
        and launch.launcher in ("", "python")
        and launch.arguments().values.keys() <= {"config"}
        and not _of_others(document.path, launch.program)
    ]


def _of_others(script: str, program: str) -> bool:
    """Whether a program that lies in the project has nothing of NeMo RL's in it."""
    path = found_at(script, program_at(script, program) or program)
    return path is not None and b"nemo_rl" not in path.read_bytes()


def of_document(document: Document, draft: Draft) -> Settings:
    """Everything by dotted name, references put in."""
    if document.form != "shell":
        settings = _over(document, draft, 0)
        return replace(settings, values=referred(settings.values))
    launch = only_launch(trainings(document))
    found = PROGRAM.fullmatch(launch.program.rsplit("/", 1)[-1])
    draft.facts["program"] = found.group() if found else ""
    here = Settings(launch.path, {}, {"config": launch.command.line})
    inner = _named(here, _config_of(launch), OF_PROGRAM.get(found.group(1) if found else "", ""), draft)
    whole = inner.under(launch.overrides(_OVERRIDE))
    return replace(whole, values=referred(whole.values))


def _config_of(launch: Launch) -> str:
    texts = [word.text for word in launch.words]
    for place, text in enumerate(texts):
        if text.startswith("--config="):
            return text.partition("=")[2]
        if text == "--config" and place + 1 < len(texts):
            return texts[place + 1]
    return ""


def _named(settings: Settings, path: str, usual: str, draft: Draft, depth: int = 0) -> Settings:
    """The config that a key or a command names; NeMo RL's own from memory where it is not there."""
    name = path.rsplit("/", 1)[-1] or usual
    key = "defaults" if depth else "config"
    try:
        if not (path or depth):
            raise InvalidJob(f"{settings.path}: the command names no config", "add --config FILE to it")
        return _over(draft.follow(settings, key, path), draft, depth)
    except InvalidJob:
        if name not in BASES:
            raise
    where = settings.where(key) if depth else settings.path
    draft.remarks.append(f"{where}: {path or name} is taken as NeMo RL has it (August 2026)")
    return Settings(f"NeMo RL's {name}", BASES[name])


def _over(document: Document, draft: Draft, depth: int) -> Settings:
    """A config over those of its ``defaults``, later ones stronger; ``_override_`` puts a section in theirs' place."""
    own = document.settings
    if depth > MOST:
        raise own.error("defaults", f"more than {MOST} configs over one another", "name the one that is meant")
    named = own.values.get("defaults")
    base = Settings(document.path, {})
    for path in [named] if isinstance(named, str) else named if isinstance(named, list) else ():
        base = base.under(_named(own, str(path), "", draft, depth + 1))
    values = base.values
    mine = {key: value for key, value in flat(own.values) if key != "defaults"}
    for key in [key for key in mine if key.endswith("._override_")]:
        values = {name: value for name, value in values.items() if not name.startswith(key.removesuffix("_override_"))}
        del mine[key]
    for key in [key for key in mine if key in own.values or mine[key] is None]:  # a section that becomes one value
        values = {name: old for name, old in values.items() if not name.startswith(f"{key}.")}
    return replace(base, values=values).under(replace(own, values=mine))


def referred(values: Mapping[str, Any]) -> dict[str, Any]:
    """``${a.b}``, ``${..b}`` and ``${mul:…, …}`` put in, where they come to a value."""
    found = dict(values)
    for _ in range(4):
        for key, value in found.items():
            if isinstance(value, str) and "${" in value and len(value) < MOST_TEXT:
                found[key] = _put_in(value, key, found)
    return found


def _put_in(text: str, key: str, values: Mapping[str, Any]) -> Any:
    def named(match: re.Match[str]) -> Any:
        name = match.group(1)
        dots = len(name) - len(name.lstrip("."))
        above = ".".join(key.split(".")[: -dots or None] if dots else ())
        return (
            values.get(f"{above}.{name[dots:]}".lstrip("."), match.group()) if dots else values.get(name, match.group())
        )

    whole = _NAME.fullmatch(text)
    if whole:
        return named(whole)
    text = _ENVIRONMENT.sub(r"\1", text)
    made = _NAME.sub(lambda match: str(named(match)), text)
    made = _PRODUCT.sub(
        lambda match: f"{_SUMS[match.group(1)](float(match.group(2)), float(match.group(3))):.15g}", made
    )
    return scalar(made) if "${" not in made else made
