"""Models that one program of a project saves and another loads: an SFT's adapters that DPO goes on with."""

import os
import posixpath
from collections.abc import Callable
from itertools import islice
from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks.common.local_models import is_folder
from memplan.frameworks.files.documents import Document, document_of
from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.paths import folder_of
from memplan.frameworks.programs.values import Thing, known, plain
from memplan.frameworks.project.starters import programs_saying

Saved = tuple[Thing, Any]
"""A model, and the adapters that are saved by themselves."""
MOST_TRIED = 3
_going: list[str] = []
"""The program for which others are gone through: they look for none themselves."""


def saved_model(call: Call, name: Any) -> Saved | None:
    """What is in a folder: what this program saves there before, else what another of its project does."""
    folder = folder_of(name)
    found: Saved | None = call.run.saved.get(folder)
    if found is None and folder and known(name) and is_folder(str(plain(name))):
        return of_others(call.run.files.path, folder, call.run.saved_by)
    return found


def of_others(path: str, folder: str, saved_by: Callable[[Document], dict[str, Saved]]) -> Saved | None:
    """What the programs around one save in a folder."""
    if _going:
        return None
    _going.append(path)
    try:
        for name, text in islice(programs_saying(path, posixpath.basename(folder), "save_"), MOST_TRIED):
            try:
                found = saved_by(document_of(text, os.path.relpath(name), "python")).get(folder)
            except MemplanError:
                continue
            if found is not None:
                return found
    finally:
        _going.pop()
    return None
