"""Tables that are text: a file beside the module that reads it, with its name and ``.txt``."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from memplan.units import pairs_of

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Lazily(Mapping[_Key, _Value]):
    """A mapping whose keys are known, and whose values are made when they are first asked for."""

    def __init__(self, keys: Iterable[_Key], make: Callable[[_Key], _Value]) -> None:
        self._keys, self._make, self._made = dict.fromkeys(keys), make, dict[_Key, _Value]()

    def __getitem__(self, key: _Key) -> _Value:
        if key not in self._made:
            if key not in self._keys:
                raise KeyError(key)
            self._made[key] = self._make(key)
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def lines_of(module: str) -> list[str]:
    """Its lines, without empty ones and those that begin with #; a backslash joins a line and the next."""
    text = Path(module).with_suffix(".txt").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.split("\n") if line.strip() and not line.startswith("#")]


def parts_of(module: str) -> dict[str, str]:
    """What stands below each line that is a ``[heading]``."""
    parts = re.split(r"(?m)^\[([^\]]+)\]$", "\n".join(lines_of(module)))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def words_by_part(module: str) -> dict[str, frozenset[str]]:
    """The words below each heading."""
    return {name: frozenset(text.split()) for name, text in parts_of(module).items()}


def rows_of(text: str) -> dict[str, str]:
    """``name: text`` of a line, where indented lines go on with the text of the one before."""
    rows = re.sub(r"\n +", " ", text.strip("\n")).split("\n")
    return {name: told for name, _, told in (row.partition(": ") for row in rows)}


def told_in(text: str) -> dict[str, tuple[str, str]]:
    """``name: what: words`` of a row."""
    return {name: (what, told) for name, row in rows_of(text).items() for what, _, told in [row.partition(": ")]}


def texts_by_name(module: str) -> dict[str, str]:
    """Its rows, of a text without headings."""
    return rows_of("\n".join(lines_of(module)))


def settings_in(text: str, before: str = "") -> dict[str, Any]:
    """``name=value`` of each word of a text, as JSON's; ``before``: what all names begin with."""
    return {f"{before}{name}": json_value(word) for name, word in pairs_of(text).items()}


def settings_over(text: str, known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The same, where a word alone stands for settings that are ``known`` by it."""
    found: dict[str, Any] = {}
    for word in text.split():
        found |= known[word] if word in known else settings_in(word)
    return found


def settings_by_name(text: str) -> dict[str, dict[str, Any]]:
    """``name: settings`` of each row, where a word alone is that of a row before it."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in rows_of(text).items():
        found[name] = settings_over(row, found)
    return found


def json_value(word: str) -> Any:
    """A number, list, true, false or null of JSON's; of any other word itself."""
    try:
        return json.loads(word)
    except ValueError:
        return word
