"""What MODEL on the command line may be: a model, or a whole job, by its content."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from memplan.errors import ModelNotFound, UsageError, did_you_mean
from memplan.spec.reading import JobInput, canonical_key, read_job

YAML_ENDINGS = (".yaml", ".yml")


def jobs_dir() -> str:
    """The folder of preset jobs."""
    from memplan.presets import presets_dir

    return os.path.join(presets_dir(), "jobs")


def job_names() -> list[str]:
    """Bare names of the preset jobs."""
    return sorted(name.removesuffix(".yaml") for name in os.listdir(jobs_dir()) if name.endswith(".yaml"))


def read_job_file(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The keys of a job file, and the line of each. Raises InvalidJob, naming file and line, for what is not
    understood.
    """
    from pathlib import Path

    from memplan.yaml_lines import fields_of, read_yaml

    fields = fields_of(read_yaml(Path(path), "job"), Path(path), "the file")
    return dict(fields.values), dict(fields.lines)


def read_target(model: str | None, options: Mapping[str, Any]) -> JobInput:
    """A job from MODEL and options: MODEL is, in this order, an existing path, a preset's bare name, or a Hub id.

    Beside a job file or a preset job, the option ``model`` names another model for it.

    Raises InvalidJob or ModelError with what to type instead.
    """
    if model is None:
        return read_job(options)
    if model.endswith(YAML_ENDINGS) and os.path.isfile(model):
        return _from_file(model, options)
    if not os.path.exists(model):
        if model.startswith((".", "/", "~")) or (model.endswith((".json", *YAML_ENDINGS)) and "/" in model):
            raise ModelNotFound(f"no such file: {model}", "name an existing file or folder, a preset, or a Hub id")
        if "/" not in model:
            return _from_bare_name(model, options)
    return _of_model(model, options)


def _of_model(model: str, options: Mapping[str, Any]) -> JobInput:
    if "model" in options:
        raise UsageError(f"the model is given twice: {model!r} and --model {options['model']!r}", "keep one of them")
    return read_job({**options, "model": model})


def _from_file(path: str, options: Mapping[str, Any], called: str = "") -> JobInput:
    """A job file, whose unknown keys are reported with their line. ``called``: what its values are said to be from."""
    from memplan.errors import InvalidJob

    try:
        values, lines = read_job_file(path)
        given = read_job(options, values, f"{path}: ")
    except InvalidJob as error:
        raise _with_line(error, path) from None
    keys = {canonical_key(key): key for key in values}
    said = {key: name for key, name in keys.items() if given.sources.get(key) == "file"}
    return given._replace(origins={key: f"{called or path}, line {lines[name]}: {name}" for key, name in said.items()})


def _with_line(error: Any, path: str) -> Any:
    """The same error with the line of the first key that its message names."""
    if f"{path}, line" in error.message or not error.message.startswith(f"{path}: "):
        return error
    text = error.message.removeprefix(f"{path}: ")
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            key = line.split(":")[0].strip()
            named = text.startswith((f"{key}:", f"{key} ", f"{key}.")) or f"key {key!r}" in text
            if key and not key.startswith("#") and named:
                return type(error)(f"{path}, line {number}: {text}", error.hint)
    return error


def _from_bare_name(name: str, options: Mapping[str, Any]) -> JobInput:
    from memplan.presets import has_model, model_names

    if has_model(name):
        return _of_model(name, options)
    jobs = job_names()
    if name in jobs:
        return _from_file(os.path.join(jobs_dir(), f"{name}.yaml"), options, f"preset {name}")
    if name.endswith(YAML_ENDINGS):
        raise ModelNotFound(f"no such file: {name}", did_you_mean(name.rsplit(".", 1)[0], jobs))
    raise ModelNotFound(
        f"no model or job named {name!r}",
        did_you_mean(name, [*model_names(), *jobs]) or "see: memplan show models; a Hub id has a slash",
    )
