"""The training configs of a folder, told from what else lies in it; and what lies there for one who names nothing."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from memplan.errors import InvalidJob, MemplanError, UsageError
from memplan.frameworks.commands.launch import launches
from memplan.frameworks.deciding import subject_of
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import FORMS, Document
from memplan.frameworks.files.following import found_at, program_at
from memplan.frameworks.reading import documents_of, framework_of
from memplan.yaml_lines import MAX_BYTES

MOST = 2000
"""Files that are looked at."""
LEFT = {"__pycache__", "node_modules", "site-packages", "venv"}
"""Folders of programs; those that begin with a dot are left out too."""
WRITTEN = {"trainer_state.json"}
"""Files that a training writes, with keys that configs have."""
PROGRAMS = (".py", ".ipynb")
"""Any of them may be a training, or a part of one; where configs or scripts start them, these are what is asked of."""
TELLING = {"model", "batch", "lengths", "adapters", "method"}
_KEY = re.compile(r"^[ \t\"'-]*([A-Za-z][\w.-]*)[\"']?\s*[:=]", re.MULTILINE)
_TRAINS = re.compile(r"Trainer\(|\btrain\(")
MOST_OF_A_NOTEBOOK = 4 * 1024 * 1024
"""Bytes of one with its pictures."""


def is_training(path: str, document: Document | None = None) -> bool:
    """Whether a file is some framework's; or is broken, and speaks of two things at least that a training has.
    ``document``: the file, where it is open."""
    try:
        document = document or documents_of(path)[0]
    except MemplanError:
        text = _start(path)
        listed = path.endswith(".json") and text.lstrip().startswith("[")
        return not listed and len({subject_of(key) for key in _KEY.findall(text)} & TELLING) > 1
    try:
        framework_of(document)
    except InvalidJob:
        return False
    return True


def may_train(program: str) -> bool:
    """Whether a program makes a trainer or starts a training, as far as its words tell; a test trains nothing."""
    tests = os.path.basename(program).startswith("test_")
    return not tests and bool(_TRAINS.search(_start(program, MOST_OF_A_NOTEBOOK)))


def _start(path: str, most: int = MAX_BYTES) -> str:
    try:
        if os.path.getsize(path) > most:  # no person writes that
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def files_of(folder: str) -> tuple[list[str], list[str]]:
    """Files below a folder whose names say that they may be configs or scripts, in the order of their names; and the
    programs beside them. Raises UsageError where there are too many to look at."""
    found, programs = list[str](), list[str]()
    for path in _walked(folder):
        (programs if path.lower().endswith(PROGRAMS) else found).append(path)
        if len(found) > MOST:
            raise UsageError(f"{folder} holds more than {MOST:,} configs and scripts", "name the folder of the configs")
    return found, programs


def _walked(folder: str) -> Iterator[str]:
    endings = tuple(ending for ending in FORMS if ending != ".txt")
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in LEFT)
        for name in sorted(files):
            if name.lower().endswith(endings) and not name.startswith(".") and name not in WRITTEN:
                yield os.path.normpath(os.path.join(place, name))


def launcher_alone(title: str, document: Document) -> str:
    """What is said of a launcher's own file. Raises NotKnown for a script, whose program is to be looked into."""
    if document.form != "shell":
        return f"{title}'s own file, no training: give it with --with"
    launch = max(launches(document), key=lambda each: each.launcher not in ("", "python"))
    program = found_at(document.path, program_at(document.path, launch.program))
    if program is None:
        raise NotKnown(f"{launch.where}: {launch.program} is not here", "run from the project's folder")
    raise NotKnown(
        f"{launch.where}: {launch.program} is not read as the script starts it",
        f"memplan check {os.path.relpath(program)}, which it starts",
    )


KINDS = (("yaml", "json", "toml"), ("shell",), ("python",))
"""Configs come before the scripts that start them, and these before programs."""
MOST_FILES, MOST_NAMED = 200, 4
HINT = "name one: memplan estimate llama-3.1-8b, a training config, or --total-params 8B"


def lies_here(folder: str = ".") -> tuple[str, str]:
    """The one training config of a folder, else the one model in it or below it, and what it is. Raises UsageError
    where there is none, or several."""
    files = [path for path in sorted(Path(folder).iterdir()) if path.is_file() and not path.name.startswith(".")]
    for forms in KINDS:
        ours = [
            path for path in files[:MOST_FILES] if path.suffix != ".txt" and FORMS.get(path.suffix.lower()) in forms
        ]
        found = [(str(path), title) for path in ours if (title := _whose(path))]
        if found:
            return _the_only(found, "training configs")
    if _is_model(Path(folder, "config.json")):
        return folder, "a model's folder"
    models = [(str(path), "a model's folder") for path in _folders(folder) if _is_model(path / "config.json")]
    if models:
        return _the_only(models, "models")
    raise UsageError("no model named, and none lies here, nor a training config", HINT)


def _the_only(found: list[tuple[str, str]], what: str) -> tuple[str, str]:
    if len(found) > 1:
        names = ", ".join(path for path, _ in found[:MOST_NAMED]) + (", …" if len(found) > MOST_NAMED else "")
        raise UsageError(f"several {what} lie here: {names}", f"name one: memplan estimate {found[0][0]}")
    return found[0]


def _whose(path: Path) -> str:
    """'a file of TRL'; empty for what is no training's."""
    try:
        row = framework_of(str(path))
    except MemplanError:
        return ""
    return "" if row.launches else f"a file of {row.title}"


def _folders(folder: str) -> list[Path]:
    return [path for path in sorted(Path(folder).iterdir())[:MOST_FILES] if path.is_dir()]


def _is_model(path: Path) -> bool:
    """Whether a config.json is a model's."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and ("model_type" in found or "architectures" in found)
