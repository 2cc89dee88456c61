"""A program gone through once for what is known of its run, and the trainers that it makes."""

import re
from copy import copy
from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.asking import SHELLS
from memplan.frameworks.base import Draft
from memplan.frameworks.commands import scripts
from memplan.frameworks.commands.hydra import of_program
from memplan.frameworks.files import sourced
from memplan.frameworks.files.documents import Document
from memplan.frameworks.files.following import found_from
from memplan.frameworks.programs import calls as python_calls
from memplan.frameworks.programs import files, loops
from memplan.frameworks.programs.run import Known, Run
from memplan.frameworks.programs.text import program_of
from memplan.frameworks.programs.values import Thing
from memplan.frameworks.project import pinned
from memplan.frameworks.project.copies import in_copy
from memplan.frameworks.project.own_copies import found_in
from memplan.frameworks.project.starters import texts_of
from memplan.gpus import find_gpu

MAKES = re.compile(r"Trainer\(|\.backward\(")


def known_of(draft: Draft) -> Known:
    """What the options say of the card and of the GPUs."""
    gpus = draft.options.get("num_gpus")
    capability, memory = _card(draft.options.get("gpu"))
    return Known(capability >= (8, 0), capability, memory, int(gpus) if gpus else None)


def _card(gpu: Any) -> tuple[tuple[int, int], int]:
    """Compute capability of a card, an Ampere's where it is known by its size alone, and its bytes."""
    try:
        card = find_gpu(str(gpu)) if gpu else None
    except MemplanError:
        card = None
    if card is None:
        return (8, 0), 0
    major, _, minor = card.architecture.partition(".")
    known = major.isdigit() and minor.isdigit()
    return (int(major), int(minor)) if known else (8, 0), card.memory_bytes


def followed(document: Document, known: Known) -> Run:
    """The program, gone through once. Raises InvalidJob."""
    key = (repr((known.arguments, known.places, known.environment)), known.words)
    run = _cached(document.text, document.path, key, _Held(known))
    if run.asked_machine and run.known != known:
        run = _cached(document.text, document.path, (*key, *known.machine), _Held(known))
    if run.refusal is not None:
        raise run.refusal.with_traceback(None)
    if run.known != known:
        run = copy(run)
        run.known = known
    return run


class _Held:
    """What is known, which the key before it tells already."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


def forget() -> None:
    """Programs and scripts are gone through anew, and their projects looked for: files beside them, and those that they
    start, may have changed."""
    projects = (texts_of, in_copy, found_in, of_program, files.lying, files.around, found_from)
    for kept in (_cached, scripts.gone_through, pinned.pins_of, *projects):
        kept.cache_clear()
    sourced.forget()


def leave_programs() -> None:
    """Another project's are asked for now: these, and their syntax trees, would be looked through for garbage."""
    _cached.cache_clear()
    program_of.cache_clear()


@lru_cache(maxsize=32)  # a script's commands are asked for in turn, again and again
def _cached(text: str, path: str, key: tuple[Any, ...], held: _Held) -> Run:
    return _go(text, path, held.known)


def _go(text: str, path: str, known: Known) -> Run:
    """Once; and again past conditions that end it, where it makes no trainer before them: ``if dry_run: return``."""
    run = _gone(text, path, known)
    ends = run.uncalled and "__main__" in text
    if (run.trainers and not ends) or run.refusal or not MAKES.search(text):
        return run
    again = _gone(text, path, known, hopeful=True)
    return again if not again.refusal and again.trainers and not (run.trainers and again.uncalled) else run


def _gone(text: str, path: str, known: Known, hopeful: bool = False) -> Run:
    starter = next((place.path for place in known.places.values() if place.path.endswith(SHELLS)), "")
    program, run = program_of(text, path), Run(known, python_calls, files.Files(path, starter))
    run.hopeful, run.saved_by = hopeful, lambda document: followed(document, Known()).saved
    parts = program.parts or [part for _, part in program.written]
    try:
        run.program(parts)
        plain = [] if run.trainers else loops.trainers(run, parts)
        run.trainers, run.uncalled = run.trainers or plain, run.uncalled and not plain
    except InvalidJob as error:
        run.refusal = error.with_traceback(None)
    return run


def trainings(run: Run) -> list[Thing]:
    """The trainers that are started; all where none is started in this file."""
    started = [each for each in run.trainers if "?trained" in each.values]
    return started or run.trainers
