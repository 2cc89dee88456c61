"""JSON and TOML as values and the line of each key; what nests or grows beyond a person's file is refused before."""

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from memplan.errors import InvalidJob
from memplan.spec.plain import MAX_DEPTH, MAX_VALUES
from memplan.yaml_lines import MAX_BYTES, TOO_MANY, TWICE

MAX_OWN_VALUES = 1_000_000
MAX_REMARKS = 20
MAX_NAME = 1000
"""Characters of a key with those that it stands in."""


def bounded(name: str, path: object, line: int) -> str:
    """The name of a nested key. Raises InvalidJob for one that nobody writes."""
    if len(name) <= MAX_NAME:
        return name
    raise InvalidJob(f"{path}, line {line}: key {name[:60]!r}… is longer than {MAX_NAME} characters", "is it a key?")


_TOKEN = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""|\'{3}.*?\'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*|[]{}[:,=.\n]''', re.DOTALL
)
"""Of JSON or TOML: texts and comments, and what stands between values."""


def refuse_what_grows(text: str, path: str) -> None:
    """Depth, dotted keys among it, and number of values, before anything is built."""
    line, depth, dots, values = 1, 0, 0, 0
    most = MAX_VALUES if len(text) <= MAX_BYTES else MAX_OWN_VALUES
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == ".":
            dots += 1
        elif token in "]}":
            depth -= 1
        elif len(token) == 1:
            depth, dots = depth + (token in "[{"), 0
            values += token in ",:="
        line += token.count("\n")
        if max(depth, dots) > MAX_DEPTH:
            raise InvalidJob(f"{path}, line {line}: nested deeper than {MAX_DEPTH} levels", "flatten the file")
        if values > most:
            raise InvalidJob(f"{path}, line {line}: more than {most} values", TOO_MANY)


def read_json(text: str, path: str, remarks: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Values and lines. Raises InvalidJob; keys given twice are remarked."""
    refuse_what_grows(text, path)
    lines = {} if len(text) > MAX_BYTES else dict(_json_lines(text, path))

    def last(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen and len(remarks) < MAX_REMARKS:
                line = max((line for name, line in lines.items() if name.rpartition(".")[2] == key), default=1)
                remarks.append(f"{path}, line {line}: {TWICE.format(key)}")
            seen.add(key)
        return dict(pairs)

    try:
        values = json.loads(text, object_pairs_hook=last)
    except json.JSONDecodeError as error:
        line, said = _fault(text, error)
        raise InvalidJob(f"{path}, line {line}: not JSON: {said}", "see json.org") from None
    except (ValueError, RecursionError):
        raise InvalidJob(f"{path}: not JSON that can be read", "see json.org") from None
    if not isinstance(values, dict):
        raise InvalidJob(f"{path}, line 1: the file is not a set of keys", 'write {"key": value}')
    return values, lines


def _fault(text: str, error: json.JSONDecodeError) -> tuple[int, str]:
    """The line of what is wrong and what it is: json tells of a trailing comma at the comma since Python 3.13, and
    before at what closes."""
    comma = len(text[: error.pos].rstrip()) - 1 if text[error.pos : error.pos + 1] in "}]" else error.pos
    if text[comma : comma + 1] != ",":
        return error.lineno, error.msg
    return text.count("\n", 0, comma) + 1, "a comma with nothing after it"


_JSON_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[{}\[\]:,\n]')


def _json_lines(text: str, path: str) -> Iterator[tuple[str, int]]:
    """The line of every key of nested objects."""
    line, names, last = 1, [""], ""
    for match in _JSON_TOKEN.finditer(text):
        token = match.group()
        if token == "\n":
            line += 1
        elif token in "{[":
            names.append("")
        elif token in "}]":
            names = names[:-1] or [""]
        elif token == ":":
            names[-1] = last
            yield bounded(".".join(name for name in names if name), path, line), line
        elif token != ",":
            last = token[1:-1]


def read_toml(text: str, path: str, remarks: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Values and lines. Raises InvalidJob."""
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    refuse_what_grows(text, path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        place = f", line {line.group(1)}" if line else ""
        raise InvalidJob(f"{path}{place}: not TOML: {str(error).partition(' (at')[0].lower()}", "see toml.io") from None
    except (ValueError, RecursionError):  # a number of more digits than Python reads
        raise InvalidJob(f"{path}: not TOML that can be read", "see toml.io") from None
    return values, dict(_toml_lines(text, path))


def _toml_lines(text: str, path: str) -> Iterator[tuple[str, int]]:
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        head, closed, _ = line.strip().lstrip("[ \t").partition("]")
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if closed and line.lstrip().startswith("[") and re.fullmatch(r"[\w.\"' -]+", head):
            section = bounded(head.strip().replace('"', ""), path, number) + "."
            yield section[:-1], number
        elif key:
            yield bounded(section + key.group(1).replace('"', ""), path, number), number
