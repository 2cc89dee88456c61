"""The script inside a file that hands it to a cluster: SkyPilot's ``run``, the commands of Beaker, MosaicML, Kubernetes
and Compose, with the variables that such a file sets."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.files.documents import Document, document_of, words

MARKS = tuple(
    map(
        words,
        ("run resources", "run setup", "tasks version", "command image", "command compute", "kind spec", "services"),
    )
)
"""Keys at the top of which such a file has all of one row."""
VARIABLES = words("env envs envVars env_variables environment")
SCRIPTS, PROGRAM, HANDED = words("run script"), words("command entrypoint"), words("args arguments")
SHELL = re.compile(r"(.*/)?(ba|z|da)?sh")
MOUNTED = "/mnt/config/parameters.yaml"
"""Where MosaicML's platform puts the file's own ``parameters``, which a script that reads them is given."""
MOST = 64
"""Scripts of one file that are looked at."""


def opened(document: Document) -> Document:
    """The script that a cluster's file starts, each line where the file has it; any other file as it is."""
    if document.form != "yaml" or not any(marks <= document.keys for marks in MARKS):
        return document
    texts = [text for _, text in zip(range(MOST), _scripts(document.settings.values, ""), strict=False)]
    mounted = isinstance(document.settings.values.get("parameters"), Mapping) and any(MOUNTED in each for each in texts)
    if not texts or mounted:
        return document
    try:
        return document_of(_placed(texts, document.text), document.path, "shell")
    except InvalidJob:
        return document


def _scripts(values: Mapping[str, Any], exports: str) -> Iterator[str]:
    """Scripts of a mapping and of those within it, each behind the variables that are set around it."""
    for key in VARIABLES & values.keys():
        exports += "".join(f"export {name}={shlex.quote(said)}; " for name, said in _variables(values[key]))
    for key in SCRIPTS & values.keys():
        if isinstance(values[key], str):
            yield exports + values[key]
    program = next((_list(values[key]) for key in PROGRAM if key in values), [])
    handed = next((_list(values[key]) for key in HANDED if key in values), [])
    yield from (exports + text for text in _command(program, handed))
    for key, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Mapping) and key not in VARIABLES:
                yield from _scripts(each, exports)


def _variables(value: object) -> Iterator[tuple[str, str]]:
    """(name, value) of a mapping, or of a list of names and values."""
    rows = value.items() if isinstance(value, Mapping) else ()
    listed = [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
    found = [*rows, *((each.get("name") or each.get("key"), each.get("value")) for each in listed)]
    for name, said in found:
        if re.fullmatch(r"[A-Za-z_]\w*", str(name)) and isinstance(said, (str, int, float)):
            yield str(name), str(said)


def _list(value: object) -> list[str]:
    """Words of a command, or its one text."""
    return [str(each) for each in value] if isinstance(value, list) else [value] if isinstance(value, str) else []


def _command(program: list[str], handed: list[str]) -> Iterator[str]:
    """A program with what it is handed; of a shell the script itself. One text is one already."""
    row = [*program, *handed]
    if row and SHELL.fullmatch(row[0]):
        yield from (text for text in row[1:] if not text.startswith("-"))
    elif len(row) == 1 or (len(program) == 1 and " " in program[0]):
        yield " ".join(row)
    elif row:
        yield shlex.join(row)


def _placed(texts: list[str], whole: str) -> str:
    """Scripts one after the other, as far down as the file has their first words."""
    out = ""
    for text in texts:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        first = first.rpartition("; ")[2]
        at = max(whole.find(first[:24]), 0) or max(whole.find(first.partition(" ")[0]), 0)
        missing = whole.count("\n", 0, at) - out.count("\n")
        out += "\n" * max(0, missing) + text.rstrip("\n") + "\n"
    return out
