"""Catalogues kept true: which entries the code no longer says.

``python tests/stale_entries.py`` names them, and exits 1 where there are any; ``--write`` takes them out.
"""

import ast
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from memplan.lang import ENGLISH, LANGUAGES
from memplan.lang.catalogue import entries_of, files, pieces

PACKAGE = Path(__file__).resolve().parent.parent / "memplan"
CATALOGUES = PACKAGE / "lang"
OF_THE_PARSER = ("unexpected extra argument", "requires an argument", "Options", "Usage:", "COMMAND", "[OPTIONS]")
"""What click and typer say themselves."""
_RUN = re.compile(r"[A-Za-z][\w'-]*(?: [\w'-]+)*")


@cache
def _said_in_code() -> str:
    """Every text of the code and of the presets, in small letters and with white space made even."""
    texts: list[str] = []
    for path in sorted(set(PACKAGE.rglob("*.py")) - set(CATALOGUES.rglob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts += [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    data = (*PACKAGE.rglob("*.toml"), *set(PACKAGE.rglob("*.txt")) - set(CATALOGUES.rglob("*.txt")))
    data += tuple(PACKAGE.parent.glob("presets/*.yaml"))
    texts += [path.read_text(encoding="utf-8") for path in sorted(data)]
    code = re.sub(r"\s+", " ", "\x00".join(texts)).lower()
    return f"{code}\x00{code.replace('_', ' ')}"


def is_said(english: str) -> bool:
    """Whether the code has all words of an entry, each run of them in one text or in two that it puts together."""
    if any(text in english for text in OF_THE_PARSER):
        return True
    return all(_has(run.lower()) for piece in pieces(english) for run in _RUN.findall(piece))


def _has(run: str) -> bool:
    words, everything = run.split(" "), _said_in_code()
    cuts = ((" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(len(words)))
    return any(first in everything and second in everything for first, second in cuts)


def stale(file: Path) -> list[str]:
    """The entries of a file that the code no longer says."""
    return [english for english in entries_of(file.read_text(encoding="utf-8"), file.name) if not is_said(english)]


def without(text: str, gone: Sequence[str]) -> str:
    """A file's text without some entries."""
    lines, kept = iter(text.splitlines(keepends=True)), []
    for line in lines:
        if line.rstrip("\n") in gone:
            next(lines, None)
        else:
            kept.append(line)
    return "".join(kept)


def main(arguments: Sequence[str]) -> int:
    """Name what is stale, or take it out."""
    found = 0
    for file in (file for language in LANGUAGES if language != ENGLISH for file in files(language)):
        gone = stale(file)
        found += len(gone)
        sys.stderr.writelines(f"{file.name}: {english}\n" for english in gone)
        if gone and "--write" in arguments:
            file.write_text(without(file.read_text(encoding="utf-8"), gone), encoding="utf-8")
    return int(found > 0 and "--write" not in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
