"""Commands that start a program which lies beside them: ``torchrun train.py --lr 1`` is train.py under options."""

from dataclasses import replace
from typing import NamedTuple

from memplan.errors import MemplanError
from memplan.frameworks.documents import Document, Settings
from memplan.frameworks.following import found_at, open_reference, program_at
from memplan.frameworks.hugging_face.dialect_scripts import script_of
from memplan.frameworks.launch import Launch, launches
from memplan.frameworks.programs.follow import followed, trainings
from memplan.frameworks.programs.models import things
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
    known script's keys it is followed where it loads a model of transformers' own: keys alone may be another's."""
    for launch in launches(document):
        path = program_at(document.path, launch.program)
        if not path or found_at(document.path, path) is None:
            continue
        script = script_of(launch.arguments(), launch.program)
        try:
            program = open_reference(Settings(document.path, {}), "program", path)
            under = with_options(launch, known or Known())
            found = trainings(followed(program, under))
        except MemplanError:
            continue
        models = things(found[0].values.get("model")) if found else []
        plain = all(str(each.values["class"]).startswith("Auto") for each in models) and models
        mine = plain or not script or script.trainer == "trl"  # whose options say less than the program's calls
        told = found and (has_value_head(found[0]) or (mine and isinstance(found[0].values.get("args"), Thing)))
        if told and len(found) == 1:
            return Started(launch, program, under)
    return None


def with_options(launch: Launch, known: Known) -> Known:
    """What is known, with the command's options over the program's defaults."""
    arguments = launch.arguments()
    places = {key: Place(launch.path, line) for key, line in {"": launch.command.line, **arguments.lines}.items()}
    environment = {key: value for key, value in launch.command.environment.items() if "$" not in value}
    return replace(known, arguments=arguments.values, places=places, words=launch.words, environment=environment)
