"""What MODEL on the command line may be: a model, or a whole job, by its content."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from memplan.errors import InvalidJob, ModelNotFound, UsageError, nearest
from memplan.spec.reading import JobInput, canonical_key, read_job

YAML_ENDINGS = (".yaml", ".yml")
FILE_ENDINGS = (*YAML_ENDINGS, ".json", ".toml", ".py", ".ipynb", ".sh", ".slurm", ".sbatch", ".cfg")
"""Of configs and scripts: such a name is a file's, and no model's."""


def jobs_dir() -> str:
    """The folder of preset jobs."""
    from memplan.presets import presets_dir

    return os.path.join(presets_dir(), "jobs")


def job_names() -> list[str]:
    """Bare names of the preset jobs."""
    return sorted(name.removesuffix(".yaml") for name in os.listdir(jobs_dir()) if name.endswith(".yaml"))


def read_job_file(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The keys of a job file, and the line of each. InvalidJob names file and line of what is not understood."""
    from pathlib import Path

    from memplan.yaml_lines import fields_of, read_yaml

    fields = fields_of(read_yaml(Path(path), "job"), Path(path), "the file")
    return dict(fields.values), dict(fields.lines)


def read_target(model: str | None, options: Mapping[str, Any]) -> JobInput:
    """A job from MODEL and options: MODEL is, in this order, an existing path, a preset's bare name, or a Hub id.

    Beside a job file or a preset job, the option ``model`` names another model for it.

    Raises InvalidJob or ModelError with what to type instead."""
    if model is None:
        return read_job(options)
    if model.endswith(YAML_ENDINGS) and os.path.isfile(model):
        return _from_file(model, options)
    if not os.path.exists(model):
        if model.startswith((".", "/", "~")) or model.lower().endswith(FILE_ENDINGS):
            raise _no_such_file(model)
        if "/" not in model:
            return _from_bare_name(model, options)
    return _of_model(model, options)


def _of_model(model: str, options: Mapping[str, Any]) -> JobInput:
    if "model" in options:
        raise UsageError(f"the model is given twice: {model!r} and --model {options['model']!r}", "keep one of them")
    return read_job({**options, "model": model})


def _from_file(path: str, options: Mapping[str, Any], called: str = "") -> JobInput:
    """A job file, whose unknown keys are reported with their line. ``called``: what its values are said to be from."""
    try:
        values, lines = read_job_file(path)
        given = read_job(options, values, f"{path}: ")
    except InvalidJob as error:
        raise _with_line(error, path, options) from None
    keys = {canonical_key(key): key for key in values}
    said = {key: name for key, name in keys.items() if given.sources.get(key) == "file"}
    return given._replace(origins={key: f"{called or path}, line {lines[name]}: {name}" for key, name in said.items()})


_KEY = re.compile(r"(?:([\w.]+): )?unknown key '([^']+)'|([\w.]+)")
"""How a message begins that is about one key: the key, and where it is unknown perhaps the one that holds it."""


def _with_line(error: Any, path: str, options: Mapping[str, Any]) -> Any:
    """The same error with the line of the key that its message begins with, where the file gives it."""
    text = error.message.removeprefix(f"{path}: ")
    found = None if f"{path}, line" in text else _KEY.match(text)
    if found is None:
        return error
    outer, unknown, known = found.groups()
    keys = f"{outer}.{unknown}" if outer else unknown or known
    line = None if canonical_key(keys.split(".")[0]) in map(canonical_key, options) else _line_of(path, keys.split("."))
    return error if line is None else type(error)(f"{path}, line {line}: {text}", error.hint)


def _line_of(path: str, keys: Sequence[str]) -> int | None:
    """The line in a job file of a key within keys, or of as much of it as is there."""
    from pathlib import Path

    from memplan.yaml_lines import pairs_of, read_yaml

    node, line = read_yaml(Path(path), "job"), None
    for key in keys:
        if node.id == "sequence" and key.isdecimal() and int(key) < len(node.value):
            node = node.value[int(key)]
            continue
        held = pairs_of(node, Path(path)) if node.id == "mapping" else []
        here = next((pair for pair in held if canonical_key(str(pair[0].value)) == canonical_key(key)), None)
        if here is None:
            break
        line, node = here[0].start_mark.line + 1, here[1]
    return line


def _from_bare_name(name: str, options: Mapping[str, Any]) -> JobInput:
    from memplan.presets import has_model, instead_of

    if has_model(name):
        return _of_model(name, options)
    jobs = job_names()
    if name in jobs:
        return _from_file(os.path.join(jobs_dir(), f"{name}.yaml"), options, f"preset {name}")
    raise ModelNotFound(f"no model or job named {name[:80]!r}", instead_of(name, jobs))


def _no_such_file(path: str) -> ModelNotFound:
    """The error of a path where nothing is: perhaps a preset job's name was meant."""
    from memplan.files import instead_of_missing

    ending = os.path.splitext(path)[1].lower()
    jobs = nearest(os.path.splitext(os.path.basename(path))[0], job_names()) if ending in YAML_ENDINGS else []
    otherwise = f"did you mean {' or '.join(jobs)}?" if jobs else "name a file or folder that is there, or a Hub id"
    kin = [ending] if ending in FILE_ENDINGS else []
    return ModelNotFound(f"no such file: {path}", instead_of_missing(path, otherwise, kin))
