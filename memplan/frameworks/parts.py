"""The trainings of a file: of a script one document for each command that starts one, and the config that it names.

``run.py config.yaml --x=1`` is the config under the options behind it, whatever the framework; a command that prepares,
evaluates or serves is no training."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memplan.errors import InvalidJob, NoTraining, UsageError
from memplan.frameworks.base import Framework
from memplan.frameworks.commands import hydra
from memplan.frameworks.commands.launch import PROGRAMS, Launch, launches
from memplan.frameworks.files import hosted
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import found_at, open_reference, open_written, program_at, trains_nothing
from memplan.frameworks.programs import reader as python
from memplan.frameworks.registry import recognise
from memplan.frameworks.shell.reader import Command, Word, options_of, scalar
from memplan.units import words_of

_OTHER = re.compile(
    r"(?:^|[_/.-])(?:eval\w*|infer\w*|generat\w*|predict\w*|serv\w*|merge\w*|export\w*|convert\w*|preprocess\w*|prepare\w*"
    r"|tokeni[sz]e\w*|bench\w*|demo|chat|test)(?:[_.-]|$)",
    re.IGNORECASE,
)
"""Programs that prepare, evaluate or serve."""
_TRAINS = re.compile(r"train|finetun|fine_tun|pretrain", re.IGNORECASE)
_MAY_START = re.compile(rf"[$]|\.sh$|^(?:bash|sh|eval|exec|sbatch|srun|ray|{'|'.join(PROGRAMS)})$")
"""Commands without a launcher that may start a training."""
_NAMES_TRAINING = re.compile(r"(?:train|finetun|fine_tun)\w*\.py\b", re.IGNORECASE)
CONFIGS = words_of("config job.config_file config_file config_path cfg yaml yaml_file yaml_path args_file")
"""Options of a script that name its config."""
ENDINGS = (".yaml", ".yml", ".json", ".toml")
BY_NAME = "trl"
"""A framework that is told by the name of a script, and reads its config itself."""
GENERAL = ("transformers",)
"""Frameworks that are told by arguments alone: a config beside these is read with them."""


def parts(document: Document) -> tuple[Document, ...]:
    """One document for each training that a script or a program starts; the document itself where it starts none."""
    inner = hosted.opened(document)
    if inner is not document:
        within = parts(inner)
        return within if within != (inner,) else (document,)
    if document.form == "python" and not python.parts(document)[0].commands:
        return python.parts(document)
    if document.form not in ("shell", "python"):
        return (document,)
    scripts = python.parts(document) if document.form == "python" else (document,)
    found = (_alone(script, command) for script in scripts for command in script.commands)
    return tuple(part for part in found if _trains(part)) or (document,)


def the_part(document: Document, line: int = 0) -> Document:
    """The training of a script, or of several the one in this line. Raises UsageError, naming them."""
    found = parts(document)
    chosen = [part for part in found if part.place == line] if line else list(found)
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(part.name for part in found[:6])
    if line:
        raise UsageError(f"{document.path}: no training in line {line}", f"name {names}" if found[0].place else "")
    raise UsageError(f"{document.path}: {len(found)} trainings", f"name one of them: {names}")


def _alone(document: Document, command: Command) -> Document:
    """A script of one command."""
    others = tuple(other for other in document.commands if other is not command)
    text = shlex.join(command.texts)
    return replace(document, commands=(command,), text=text, place=command.place, others=others)


def _trains(part: Document) -> bool:
    """Whether a command starts a training that is known, or one that cannot be read."""
    launch = next(launches(part), None)
    if launch is None or is_other(launch) or _predicts(launch) or trains_nothing(part.path, launch.program):
        return False
    try:
        row, _ = whose(part)
    except InvalidJob:
        return True
    return row is not None and not row.launches


def is_other(launch: Launch) -> bool:
    """Whether a program prepares, evaluates or serves, by its name."""
    name = launch.program.rpartition("/")[2] if launch.program.endswith(".py") else launch.program.rpartition(".")[2]
    return _OTHER.search(name) is not None and _TRAINS.search(name) is None


def whose(document: Document) -> tuple[Framework | None, Document]:
    """Whose file a document is; of a command that names a config, the config under its options.

    Raises InvalidJob for keys of two frameworks, and for a config that is not here; NoTraining for a script that only
    serves, evaluates or prepares."""
    row, config = _whose(document)
    if row is not None and document.form == "shell" and (predicted := _only_predicts(document)):
        raise NoTraining(f"{predicted.where}: do_predict without do_train: it trains nothing", "check a training")
    if row is not None and document.form == "shell" and (other := _only_other(document)):
        hint = "name the script that starts the training"
        raise NoTraining(f"{other.where}: {other.program} trains nothing, by its name", hint)
    return row, config


def _only_other(document: Document) -> Launch | None:
    """The program of a script whose programs prepare, evaluate or serve, all; None where one of them may train."""
    if _NAMES_TRAINING.search(document.text):  # in a branch that is not taken
        return None
    found = [each for each in launches(document) if each.launcher or _MAY_START.search(each.program)]
    return found[0] if found and all(each.launcher and is_other(each) for each in found) else None


def _predicts(launch: Launch) -> bool:
    """Whether a command predicts alone: programs after transformers' examples train under ``--do_train``, where their
    text asks for it."""
    said = launch.arguments().values if launch.program.endswith(".py") else {}
    if [str(said.get(key, False)).lower() for key in ("do_predict", "do_train")] != ["true", "false"]:
        return False
    here = found_at(launch.path, program_at(launch.path, launch.program))
    return here is None or "do_train" in here.read_text("utf-8", "replace")


def _only_predicts(document: Document) -> Launch | None:
    """The first program of a script whose programs predict alone, all."""
    found = [each for each in launches(document) if each.program.endswith(".py") and not is_other(each)]
    return found[0] if found and all(map(_predicts, found)) else None


def _whose(document: Document) -> tuple[Framework | None, Document]:
    row = recognise(document)
    if document.form != "shell" or not (row is None or row.launches or row.name in (*GENERAL, BY_NAME)):
        return row, document
    found = list(launches(document))
    if row is not None and row.launches and all(is_other(launch) for launch in found):
        return None, document
    launch = found[0] if len(document.commands) == 1 and found else None
    config = _with_config(document, launch) if launch is not None and launch.launcher else None
    if config is None:
        return row, document
    of_config = recognise(config)
    by_name = row is not None and row.name == BY_NAME
    general = of_config is not None and of_config.name in (*GENERAL, BY_NAME)
    nobodys = of_config is None and row is not None and not row.launches
    return (row, document) if (by_name and general) or nobodys else (of_config, config)


def _with_config(document: Document, launch: Launch) -> Document | None:
    """The config that a script is given, under the options behind it; None where it is given none."""
    values, lines, loose = options_of(launch.words)
    path = Settings(launch.path, values, lines)
    for key in [key for key in CONFIGS if isinstance(values.get(key), list)]:
        values[key], *rest = values[key]  # and the overrides behind it
        loose += [Word(str(text), lines[key]) for text in rest]
    named = next((key for key in CONFIGS if str(values.get(key, "")).endswith(ENDINGS)), "")
    first = next((word for word in loose[:1] if word.text.endswith(ENDINGS)), None) if not named else None
    word = (
        first if first and first.text.partition("=")[0] in (first.text, "config") else None
    )  # no Hydra's group=a.yaml
    if word is None and not named:
        return hydra.composed(document, launch)
    reference = word.text.removeprefix("config=") if word else str(values.pop(named))
    lines["config"] = word.line if word else lines[named]
    config = open_written(document, reference) or _opened(replace(path, lines=lines), reference, launch)
    if config is None:
        return None
    settings = merged(config.settings, replace(path, values=values, lines=lines), overrides(loose))
    return replace(document, form=config.form, settings=settings, text=config.text)


def _opened(options: Settings, reference: str, launch: Launch) -> Document | None:
    """A command's config. Raises InvalidJob where it is not here and the command is a training's, by its name."""
    try:
        return open_reference(options, "config", reference)
    except InvalidJob:
        if launch.launcher == "python" and not _TRAINS.search(launch.program):
            return None
        raise


def overrides(words: Sequence[Word]) -> list[tuple[str, Any, int]]:
    """``key=value`` words: name, value and line."""
    found = []
    for word in words:
        key, equals, text = word.text.partition("=")
        if equals and key != "config" and re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w./@-]*", key):
            found.append((key.lstrip("+"), scalar(text), word.line))
    return found


def merged(settings: Settings, options: Settings, more: Sequence[tuple[str, Any, int]]) -> Settings:
    """Settings under options, whose names may be dotted: each keeps its file and line."""
    values: dict[str, Any] = dict(settings.values)
    places, paths = dict(settings.lines), dict(settings.paths)
    said = [(key, value, options.lines.get(key, 1)) for key, value in options.values.items()]
    for key, value, line in [*said, *more]:
        name = key.lstrip("~")
        hydra.put_at(values, name.split("."), None if key.startswith("~") else value)
        places[name], paths[name] = line, options.path
    return Settings(settings.path, values, places, settings.prefix, paths)
