"""The frameworks: every file of this folder that has a row. And which of them a document belongs to."""

import pkgutil
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec

import memplan.frameworks
from memplan.errors import InvalidJob, did_you_mean
from memplan.frameworks import absent
from memplan.frameworks.base import Framework
from memplan.frameworks.files.documents import Document


@cache
def frameworks() -> dict[str, Framework]:
    """By name: the row of each file of this folder, and of each folder's ``reader``, that has one."""
    found = [(each.name, each.ispkg) for each in pkgutil.iter_modules(memplan.frameworks.__path__)]
    names = [f"memplan.frameworks.{name}{'.reader' if folder else ''}" for name, folder in sorted(found)]
    rows = [getattr(import_module(name), "FRAMEWORK", None) for name in names if find_spec(name)]
    return {row.name: row for row in rows if row is not None}


def find_framework(name: str) -> Framework:
    """The framework of this name. Raises InvalidJob, naming the nearest."""
    known = frameworks()
    key = name.strip().lower().replace("_", "-")
    if key not in known:
        raise InvalidJob(f"no framework named {name[:60]!r}", did_you_mean(key, known))
    return known[key]


@lru_cache(maxsize=16)
def recognise(document: Document) -> Framework | None:
    """Whose document this is, by its content; None for nobody's.

    InvalidJob where it has keys of two frameworks, neither with the other's, and for a file of one not read."""
    rows = frameworks()
    marks = {name: tuple(row.recognise(document)) for name, row in rows.items() if not row.follows}
    if all(name in absent.WEAK for name, words in marks.items() if words):
        marks |= {name: tuple(row.recognise(document)) for name, row in rows.items() if row.follows}
    found = {name for name, words in marks.items() if words}
    extended = {other for name in found for other in rows[name].extends}
    candidates = sorted(found - extended)
    if found <= absent.WEAK:
        absent.refuse(document)
    if candidates and found <= absent.WEAK:
        absent.refuse_other_tasks(document)
    if document.form == "shell" and len(candidates) > 1:  # a command starts a training through a launcher
        candidates = [name for name in candidates if not rows[name].launches] or candidates
    if len(candidates) > 1:
        (one, two), where = candidates[:2], document.settings.where
        raise InvalidJob(
            f"{where(marks[two][0])}: {marks[two][0]} is {rows[two].title}'s, and {marks[one][0]} "
            f"({where(marks[one][0])}) is {rows[one].title}'s",
            "a file belongs to one framework: split it, or name it with --framework",
        )
    return rows[candidates[0]] if candidates else None
