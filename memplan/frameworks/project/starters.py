"""What starts a program, or a script, in the project around it: named where the command has what the text lacks."""

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from memplan.errors import MemplanError
from memplan.frameworks.asking import SHELLS
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.files.documents import Document, document_of
from memplan.frameworks.files.following import found_at, program_at
from memplan.frameworks.files.sourced import MAX_BYTES, project_of

PAGES = (".md", ".rst", ".txt")
LEFT = {"__pycache__", "node_modules", "site-packages", "venv", "wandb", "outputs", "data"}
MOST_FOLDERS, MOST_FILES = 400, 400
TRIAL = re.compile(r"smoke|dry|debug|test|eval|help|stats|sample|diagnos|profil")
"""Options of a command that tries a program out, and names of scripts."""
_OF_TRAINING = re.compile(r"do_eval|_eval_batch_size|eval(uation)?_(strategy|steps|accumulation_steps|delay|on_start)")
"""Options of a Trainer's that only sound like one that tries a program out."""
_SIGNS = re.compile(r"^[\s#$>*`]*(?:- )?(?:Usage:|Example:)?\s*`?")
_PROGRAM = re.compile(r"\b([\w-]+\.py)\b")
_LAUNCHERS = re.compile(r"\b(python3?|torchrun|accelerate|deepspeed|uv)\b")


def starter_of(path: str) -> str:
    """What to check in the place of a program or a script, as a hint says it; empty where nothing here starts it."""
    name, shown = next(starters(path), ("", ""))
    if not shown:
        return f"memplan check {os.path.relpath(name)}, which starts it" if name else ""
    return f"memplan check '{shown}', as {os.path.relpath(name)} has it" if "'" not in shown else ""


def starters(path: str) -> Iterator[tuple[str, str]]:
    """Scripts of the project that start a program or a script, then commands of its pages that do, with the page; a
    script's own comments may show one."""
    here = Path(path).resolve()
    texts = texts_of(str(project_of(here.parent)))
    scripts = [(name, text) for name, text in texts if name.endswith(SHELLS) and here.stem in text]
    for name, text in sorted(scripts, key=lambda each: TRIAL.search(os.path.basename(each[0])) is not None):
        if _starts(name, text, here):
            yield name, ""
    if here.suffix != ".py":
        own = [(name, text) for name, text in texts if name == str(here)]
        pages = [(name, text) for name, text in texts if not name.endswith(SHELLS) and here.name in text]
        yield from ((name, shown) for name, text in (*own, *pages) for shown in _shown(text, name, here))
        return
    for name, text in texts:
        for launch in commands_in(text, name, here.name):
            if runs(found_at(path, program_at(path, launch.program)), here):
                yield name, " ".join(word.text for word in launch.command.words)


def naming(here: Path) -> Iterator[tuple[str, str]]:
    """(file, command) of what takes a config: scripts of the project that name it, without a command; those that take
    another of its folder where they are given none, as they are with this one; commands of its
    pages that do, or that name another of its folder, with this one in its place; programs that name it; last, of those
    that train and have an option ``--config``, under that, the ones that have most of its keys in their text."""
    top = project_of(here.parent)
    found = [(name, text) for name, text in texts_of(str(top)) if name != str(here)]
    scripts = [(name, text) for name, text in found if name.endswith(SHELLS)]
    yield from ((name, "") for name, text in scripts if here.name in text)
    for name, text in scripts:
        for each in _GIVEN.finditer(text):  # config=${1:-configs/a.yaml}: it is started with another one too
            other = found_at(name, each[2])
            if other and other != here and other.suffix == here.suffix and here.is_relative_to(other.parent):
                yield name, text.replace(each[0], f"{each[1]}{here}")
    near = (here.name, here.parent.name)
    pages = [(name, text) for name, text in found if not name.endswith(SHELLS) and any(each in text for each in near)]
    in_place: list[tuple[str, str]] = []
    for name, text in sorted(pages, key=lambda each: here.name not in each[1]):
        for program in dict.fromkeys(_PROGRAM.findall(text)):
            for launch in commands_in(text, name, program):
                words = [word.text for word in launch.command.words]
                if any(names(word, name, here) for word in words):
                    yield name, " ".join(words)
                    continue
                own = words[words.index(program) + 1 :] if program in words else words  # not those of its launcher
                if others := [word for word in own if _beside(found_at(name, word), here)]:
                    stem = posixpath.basename(others[0]).rpartition(".")[0]  # zero3/a100.yaml beside a100.yaml
                    its = {word: new for word in words if found_at(name, new := word.replace(stem, here.stem))}
                    in_place.append((name, " ".join((its | {others[0]: str(here)}).get(word, word) for word in words)))
    yield from in_place  # once no command names it
    programs = [
        (name, text)
        for name, text in texts_of(str(top), (".py",))
        if "Trainer" in text and ".train(" in text and not TRIAL.search(os.path.basename(name))
    ]
    found_in = {name: set(_WORD.findall(text)) for name, text in programs if here.name in text or _TAKES.search(text)}
    keys = set(_KEY.findall(here.read_text(encoding="utf-8", errors="replace")[:MOST_OF_A_DOOR])) if found_in else set()
    shared = {name: len(keys & words) for name, words in found_in.items()}
    taking = [(name, here.name in text) for name, text in programs if name in shared]
    for name, named in sorted(taking, key=lambda each: (-shared[each[0]], not each[1])):
        if named or shared[name] == max(shared[each] for each, its in taking if not its):
            yield name, "" if named else f"python {name} --config {here}"


_GIVEN = re.compile(r"""(\$\{\d:-["']?)([^}"'\s]+)""")
_KEY, _WORD = re.compile(r"^[\s\"'-]*([A-Za-z_]\w*)[\"']?\s*[:=]", re.MULTILINE), re.compile(r"[A-Za-z_]\w*")
_TAKES = re.compile(r"""add_argument\([^)]*["']--config["']""")


def _beside(other: Path | None, here: Path) -> bool:
    return other is not None and other.parent == here.parent and other.suffix == here.suffix


def names(word: str, base: str, here: Path) -> bool:
    """Whether a word of a command names this file: ``--config=runs/a.yaml`` does."""
    return word.endswith(here.name) and found_at(base, word.rpartition("=")[2]) == here


MOST_OF_A_DOOR = 8 * 1024


def runs(program: Path | None, here: Path) -> bool:
    """Whether a program is this one, or a small one beside it that imports it: LLaVA's train_mem.py."""
    if program == here or program is None:
        return program == here
    beside = program.parent == here.parent and program.suffix == ".py" and program.stat().st_size <= MOST_OF_A_DOOR
    imports = rf"^\s*(from|import)\s+[\w.]*\b{re.escape(here.stem)}\b"
    return beside and re.search(imports, program.read_text("utf-8", "replace"), re.MULTILINE) is not None


def _starts(name: str, text: str, here: Path) -> bool:
    """Whether a script starts this program with options, or this script with arguments."""
    if here.suffix != ".py":
        return name != str(here) and next(_shown(text, name, here, commented=False), "") != ""
    try:
        found = list(launches(document_of(text, name, "shell")))
    except MemplanError:
        return False
    return any(_is_training(each) and runs(found_at(name, program_at(name, each.program)), here) for each in found)


_OPEN = re.compile(r"[<\[…]|\.\.\.(?!/)|\$[1-9@*]")
"""What stands for a value in a command that only shows how one looks."""


def _shown(text: str, path: str, here: Path, commented: bool = True) -> Iterator[str]:
    """The commands of a text that start this script with arguments; ``commented``: in prose and comments, and of the
    script itself in its comments alone."""
    command = rf"^(.*?)\b((?:ba)?sh\s+(\S*\b{re.escape(here.name)})(?:[ \t]*\\\n)?[ \t]+\S.*)$"
    for match in re.finditer(command, text, re.MULTILINE):
        comment, word, name = match[1].lstrip().startswith("#"), match[3], posixpath.basename(match[3])
        if comment != commented and (not commented or path == str(here)):
            continue
        whole, lines = match[2].rstrip("` "), text[match.end() :].split("\n")[1:]
        while whole.endswith("\\") and lines:
            whole = f"{whole[:-1].rstrip()} {_SIGNS.sub('', lines.pop(0)).strip()}"
        near = found_at(path, word) == here
        if near or (commented and found_at(path, name) == here):
            shown = whole if near else whole.replace(word, name)
            yield from () if commented and _OPEN.search(shown) else (shown,)


def _is_training(launch: Launch) -> bool:
    return bool(launch.words) and not any(TRIAL.search(_OF_TRAINING.sub("", key)) for key in launch.arguments().values)


def commands_in(text: str, path: str, program: str) -> Iterator[Launch]:
    """The commands of a text of prose, or of a program's comments, that start a program of this name with options."""
    lines, end = text.split("\n") if program in text else [], -1
    for number, line in enumerate(lines):
        begins = program in line or line.rstrip("`").endswith("\\")
        if number <= end or not begins or not _LAUNCHERS.search(line):
            continue
        words, end = [_SIGNS.sub("", line).rstrip("`")], number
        while words[-1].endswith("\\") and end + 1 < len(lines):
            words[-1] = words[-1].rstrip("\\") + "\\"  # a program's text may double it
            end += 1
            words.append(_SIGNS.sub("", lines[end]))
        if not any(program in each for each in words):
            continue
        try:
            script: Document = document_of("\n" * number + "\n".join(words), path, "shell")
        except MemplanError:
            continue
        launch = next((each for each in launches(script) if posixpath.basename(each.program) == program), None)
        first = launch.words[0].text if launch is not None and launch.words else ""
        takes = first.endswith((".yaml", ".yml", ".json"))
        if launch is not None and (launch.arguments().values or takes) and _is_training(launch):
            yield _placed(launch, path)


def _placed(launch: Launch, path: str) -> Launch:
    """A page's command from another folder, whose program is the only one of its name in the project, with its path."""
    if found_at(path, program_at(path, launch.program)) is not None:
        return launch
    found = [name for name, _ in texts_of(str(project_of(Path(path).resolve().parent)), (".py",))]
    named = [name for name in found if posixpath.basename(name) == posixpath.basename(launch.program)]
    if len(named) != 1:
        return launch
    words = tuple(
        word._replace(text=named[0]) if word.text == launch.program else word for word in launch.command.words
    )
    return replace(launch, program=named[0], command=replace(launch.command, words=words))


def programs_saying(path: str, *words: str) -> Iterator[tuple[str, str]]:
    """(file, text) of the other programs of the project around a file that have all of these words."""
    here = Path(path).resolve()
    found = texts_of(str(project_of(here.parent)), (".py",))
    yield from ((name, text) for name, text in found if name != str(here) and all(word in text for word in words))


@lru_cache(maxsize=8)
def texts_of(top: str, endings: tuple[str, ...] = (*SHELLS, *PAGES[:2])) -> tuple[tuple[str, str], ...]:
    """Scripts and pages of a project, or its programs: scripts first, as far as a person writes them."""
    found: list[tuple[str, str]] = []
    for count, (folder, folders, files) in enumerate(os.walk(top)):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in LEFT)
        if count >= MOST_FOLDERS or len(found) >= MOST_FILES:
            break
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.endswith(endings) and os.path.getsize(path) <= MAX_BYTES:
                found.append((path, Path(path).read_text(encoding="utf-8", errors="replace")))
    return tuple(sorted(found, key=lambda each: not each[0].endswith(SHELLS)))
