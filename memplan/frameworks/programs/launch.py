"""Commands that start a program which lies beside them: ``torchrun train.py --lr 1`` is train.py under options."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from memplan.errors import MemplanError
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import found_at, open_reference, own_loop, program_at, told_of
from memplan.frameworks.hugging_face.dialect_scripts import script_of
from memplan.frameworks.programs.follow import followed, trainings
from memplan.frameworks.programs.models import TRAINERS, UNSLOTH, things
from memplan.frameworks.programs.own_losses import put_losses
from memplan.frameworks.programs.reading import has_value_head
from memplan.frameworks.programs.run import Known
from memplan.frameworks.programs.values import Place, Thing


class Started(NamedTuple):
    """A program that a command starts."""

    launch: Launch
    document: Document
    known: Known


def started(document: Document, known: Known | None = None) -> Started | None:
    """The first program of a script that lies here and builds its training from what is known; None without one. Of a
    known script's keys it is followed where it loads a model of transformers', or Unsloth's: keys may be another's."""
    for each in _begun(document, known or Known()):
        launch, found = each.launch, trainings(followed(each.document, each.known))
        script = script_of(launch.arguments(), launch.program)
        models = things(found[0].values.get("model")) if found else []
        classes = [str(each.values["class"]) for each in models]
        plain = models and all(name.startswith("Auto") or name in UNSLOTH for name in classes)
        mine = plain or not script or script.trainer == "trl"  # whose options say less than the program's calls
        told = found and (has_value_head(found[0]) or (mine and isinstance(found[0].values.get("args"), Thing)))
        if told and len(found) == 1:
            return each
    return None


def _begun(document: Document, known: Known) -> Iterator[Started]:
    """The programs that lie here of a script's commands, as far as they can be gone through."""
    for launch in launches(document):
        path = program_at(document.path, launch.program)
        if not path or found_at(document.path, path) is None:
            continue
        try:
            each = Started(
                launch, open_reference(Settings(document.path, {}), "program", path), with_options(launch, known)
            )
            trainings(followed(each.document, each.known))
        except MemplanError:
            continue
        yield each


def put_trainer(document: Document, framework: str, draft: Draft) -> None:
    """Of a command whose config or options alone are read as TRL's or the Trainer's, the class that its program trains
    by, and what that computes of its own; or that it has a loop of its own."""
    if framework not in ("trl", "transformers"):
        return
    for launch in launches(document) if document.form != "shell" else ():
        if own_loop(document.path, launch.program):
            told_of(document.path, launch.program, launch.where, draft)
    for each in _begun(document, Known()):
        run = followed(each.document, each.known)
        if len(found := trainings(run)) == 1:
            draft.facts["trainer"] = (TRAINERS[found[0].last], Origin(FILE, f"{found[0].place}: {found[0].last}"))
            put_losses(found[0], [], run, draft)


def with_options(launch: Launch, known: Known) -> Known:
    """What is known, with the command's options over the program's defaults."""
    arguments = launch.arguments()
    places = {key: Place(launch.path, line) for key, line in {"": launch.command.line, **arguments.lines}.items()}
    environment = {key: value for key, value in launch.command.environment.items() if "$" not in value}
    return replace(known, arguments=arguments.values, places=places, words=launch.words, environment=environment)
