"""Files that a file refers to: opened beside it or in the project around it, and nowhere else."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.errors import InvalidJob
from memplan.frameworks.asking import SHELLS, WRITE
from memplan.frameworks.files import documents
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.sourced import MAX_BYTES, project_of, roots_of

if TYPE_CHECKING:
    from memplan.frameworks.draft import Draft

_ROOT = re.compile(r"^(~|\$(\{\w+\}|\w+))/")
"""A folder that only the machine knows."""


class Missing(InvalidJob):
    """A file that another names is not here."""


MOST_OF_A_NAME = 255
"""Bytes of a file's name."""


def found_at(base: str, name: str) -> Path | None:
    """Where a file of this name lies: beside another, in the project around that, or in a folder between."""
    return found_from(base, name, os.getcwd())


@lru_cache(maxsize=4096)  # commands of one project name the same programs
def found_from(base: str, name: str, here: str) -> Path | None:
    """``found_at``, from this working directory."""
    if any(len(os.fsencode(part)) > MOST_OF_A_NAME for part in name.split("/")):
        return None  # a text, which no system takes for a name
    roots, top = roots_of(base)
    paths = (os.path.normpath(os.path.join(root, name)) for root in roots)  # ``gone/../conf`` is conf
    found = (Path(path).resolve() for path in paths if os.path.isfile(path))
    return next((path for path in found if path.is_relative_to(top)), None)


_MODULE = re.compile(r"\w+(\.\w+)*")


def program_at(base: str, program: str) -> str:
    """The file of a program that a command names, by its path or as a module (``-m pkg.train``, in ``src/`` too); empty
    where it is no file's name, or a module's that is not here. Of a path of another machine the end that lies here; of
    one that lies nowhere the file of its name beside the command's own."""
    if program.endswith(".py"):
        ends = [] if os.path.isfile(program) else ends_of(program)
        if found_at(base, program) is None:
            ends += [f"{folder}/{program}" for folder in _gone_to(base)]
            ends += [name] if (Path(base).parent / (name := posixpath.basename(program))).is_file() else []
        return next((end for end in ends if found_at(base, end) is not None), program)
    path = f"{program.replace('.', '/')}.py"
    names = (path, f"src/{path}") if _MODULE.fullmatch(program) else ()
    return next((name for name in names if found_at(base, name) is not None), "")


_GOES = re.compile(r"^\s*(?:cd|pushd)\s+[\"']?(?:\$(?:\{\w+\}|\w+|\([^)]*\))/)?([\w./-]+)", re.MULTILINE)


def _gone_to(script: str) -> list[str]:
    """Folders that a script goes to before it starts a program: ``cd ../training``."""
    if not script.endswith(SHELLS) or not os.path.isfile(script):
        return []
    return _GOES.findall(Path(script).read_text("utf-8", "replace"))


MOST_PARTS = 6
"""Of a path of another machine, from its end, that are looked for in the project."""


def ends_of(reference: str, least: int = 1) -> list[str]:
    """Of a path of another machine, ``/home/me/repo/a.py`` or ``$ROOT/repo/a.py``, its ends of so many parts, the
    longest first; nothing of another."""
    parts = reference.split("/") if reference.startswith("/") or _ROOT.match(reference) else []
    return ["/".join(parts[place:]) for place in range(max(1, len(parts) - MOST_PARTS), len(parts) - least + 1)]


_VARIABLES = re.compile(r"(?:\$(?:\{[^{}]*\}|\d|[A-Za-z_]\w*))+")


def _may_be(path: str, name: str) -> list[str]:
    """Configs of the project that a name with variables in it may be: ``configs/${SIZE}_sft.yaml``."""
    pattern = _VARIABLES.sub("*", name)
    if pattern == name or pattern.startswith(("*", "/")) or ".." in pattern or not pattern.endswith(CONFIGS):
        return []
    here = Path(path).resolve().parent
    roots = dict.fromkeys((here, *here.parents[: len(here.parts) - len(project_of(here).parts)]))
    found = next((hits for root in roots if (hits := sorted(islice(root.glob(pattern), MOST_FILES)))), [])
    return [os.path.relpath(each) for each in found]


CONFIGS = (".yaml", ".yml", ".json", ".toml")
MOST_FILES = 50
"""Of a folder that are looked at for a name with variables."""


def open_reference(settings: Settings, key: str, reference: str) -> Document:
    """The file that a key names: beside its own, in the working directory around that, or in a folder between.

    ``$ROOT/zero3.json`` is looked for as zero3.json. Raises Missing for a reference out of these, to the network, or to
    nothing. Links are resolved first."""
    name = _ROOT.sub("", reference)
    may_be = _may_be(settings.path, name)
    if len(may_be) == 1:
        why = f"{settings.where(key)}: {key}: {reference[:80]} is taken for {may_be[0]}, all that it can be here"
        found = documents.open_document(may_be[0])
        return replace(found, remarks=(*found.remarks, why))
    if "://" in name or documents.is_template(name):
        hint = f"check the one that it is: memplan check {may_be[0]}" if may_be else "give it with --with"
        raise _missing(settings, key, f"{reference[:80]!r} is not followed", hint)
    said = settings.paths.get(f"{settings.prefix}{key}", settings.path)  # an option over a file is its command's
    path = found_at(said, name) or found_at(settings.path, name)
    beside = [posixpath.basename(name)] if (Path(settings.path).parent / posixpath.basename(name)).is_file() else []
    machines = name.startswith("/") or name != reference  # another machine's: its last parts may lie here
    away = path is None
    if away:
        ends = ends_of(reference, 1 if beside else 2) if machines else beside
        path = next(filter(None, (found_at(settings.path, end) for end in ends)), None)
    if path is not None:
        shown = os.path.relpath(path)
        found = documents.open_document(shown if not shown.startswith("..") else str(path))
        why = f"{settings.where(key)}: {key}: {reference[:80]} is not here, and {shown} is taken for it"
        return replace(found, remarks=(*found.remarks, why)) if away else found
    here = Path(settings.path).resolve().parent
    top = project_of(here)
    outside = not any((root / name).resolve().is_relative_to(top) for root in (here, top))
    if outside:
        raise _missing(settings, key, f"{reference[:80]!r} is outside of {top}", "give it with --with")
    hint = "run from the project's folder, or give it with --with"
    raise _missing(settings, key, f"there is no file {reference[:80]!r} here", hint)


_BACKWARD, _TRAINER = re.compile(r"^.*\.backward\(", re.MULTILINE), re.compile(r"Trainer\b|trainer\.train\(")


def own_loop(path: str, program: str) -> str:
    """Where a program that a script starts, or a module that it imports, runs a training loop of its own, as far as
    they lie here; empty elsewhere."""
    texts = _with_modules(path, program)
    if any(_TRAINER.search(text) for text in texts.values()):
        return ""
    for here, text in texts.items():
        if found := _BACKWARD.search(text):
            return f"{os.path.relpath(here)}, line {text.count(chr(10), 0, found.start()) + 1}"
    return ""


def starts_another(path: str, program: str) -> bool:
    """Whether a program that lies here runs commands, and names no trainer: what trains is what it starts."""
    texts = _with_modules(path, program)
    return any("subprocess" in text for text in texts.values()) and not any(map(_TRAINER.search, texts.values()))


def _with_modules(path: str, program: str) -> dict[Path, str]:
    """A program and the modules that it imports, those that lie here."""
    own = _lying(path, [program_at(path, program)])
    modules = [each for text in own.values() for each, _ in _IMPORTS.findall(text) if each]
    return own | _lying(path, [program_at(path, each) for each in modules])


def _lying(path: str, names: list[str]) -> dict[Path, str]:
    """Those of these files that lie here, and their text."""
    found = (found_at(path, name) for name in names if name)
    return {
        each: each.read_text("utf-8", "replace") for each in found if each and each.stat().st_size <= MOST_OF_A_TEXT
    }


MOST_OF_A_TEXT = 1024 * 1024
_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+([.\w]+)|import[ \t]+([\w., \t]+))", re.MULTILINE)
_STARTS = re.compile(r"\bos\.(?:system|exec|spawn|popen)|\b(?:exec|__import__)\(")
_PLAIN = ({*sys.stdlib_module_names} - {"subprocess", "runpy", "importlib", "multiprocessing", "pty"}) | {"yaml"}


def trains_nothing(path: str, program: str) -> bool:
    """Whether a program that lies here has the standard library and YAML alone, and starts no other."""
    name = program_at(path, program) if program else ""
    here = found_at(path, name) if name else None
    if here is None or here.stat().st_size > MAX_BYTES:
        return False
    text = here.read_text("utf-8", "replace")
    names = (part.split()[0] for found in _IMPORTS.findall(text) for part in "".join(found).split(",") if part.strip())
    return not _STARTS.search(text) and all(each.partition(".")[0] in _PLAIN for each in names)


WITHOUT = "add --without program, if its own settings are those of its command"


def told_of(path: str, program: str, where: str, draft: Draft) -> None:
    """A command's program that no reader follows may have settings of its own: unclear, but where its file alone is not
    here, which is said."""
    if program.endswith(".py") and found_at(path, _ROOT.sub("", program_at(path, program))) is None:
        draft.warn("program", where, f"{program} is not here, and may have settings of its own", "")
        return
    loop = own_loop(path, program)
    if loop:
        draft.warn("program", loop, "a training loop of the program's own, which is not read", "method", WRITE)
        return
    name = program_at(path, program) or program
    if starts_another(path, program):
        draft.warn("program", where, f"{name} starts a command that trains, which is not read", "method", WRITE)
        return
    draft.warn("program", where, f"{name} is not followed to its trainer, and may have settings of its own", "method",
               WITHOUT)  # fmt: skip


def open_written(script: Document, reference: str) -> Document | None:
    """The file of this name that a script itself writes; None where it writes none. Raises InvalidJob."""
    wanted = posixpath.normpath(reference)
    name = next((name for name in script.files if posixpath.normpath(name) == wanted), None)
    if name is None:
        return None
    text = script.files[name]
    form = documents.FORMS.get(posixpath.splitext(name)[1].lower()) or documents.guessed_form(text)
    return documents.document_of(text, f"{script.path} ({name})", form)


def _missing(settings: Settings, key: str, problem: str, hint: str) -> Missing:
    error = settings.error(key, problem, hint)
    return Missing(error.message, error.hint)
