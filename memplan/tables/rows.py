"""Rows of a table that are text: what each says beside the row that it begins with.

``[name since]`` begins a row, ``[name since < name since]`` one that is as another but for what stands below it (behind
the name may be another field): fields as ``field=value``, several in a line, where a word alone is true; of a group
behind its name, ``group: field=value``. Lists, mappings and sentences have a line each, ``field: value`` or
``group.field: value``; indented lines go on."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin

from memplan.tables.texts import Lazily, parts_of
from memplan.units import pairs_of, parse_size

_Row = TypeVar("_Row")
_NAMED = re.compile(r"([\w.]+):(?: (.*))?")


class Rows(Lazily[str, _Row]):
    """The rows of the text beside a module, by name and ``second``: NamedTuples whose first field is the name. Each is
    read when it is first asked for: a start needs few of them."""

    def __init__(self, module: str, kind: type[_Row], second: str = "since", **named: Callable[[str], Any]) -> None:
        """``second``: the field behind the name; ``named``: what a value stands for, by field."""
        headings = ((heading.partition(" < "), text) for heading, text in parts_of(module).items())
        self.parts = {own: (under, text) for (own, _, under), text in headings}
        self.kind, self.second, self.named, self.fields = kind, second, named, kind.__annotations__
        several = {name: (of, *get_args(of)) for name, of in self.fields.items()}
        groups = ((name, each) for name, of in several.items() for each in of if hasattr(each, "_fields"))
        self.groups: dict[str, Any] = dict(groups)
        super().__init__(self.parts, self._row)

    def _row(self, own: str) -> _Row:
        (under, text), fields, groups, named = self.parts[own], self.fields, self.groups, self.named
        name, _, second = own.partition(" ")
        found: dict[str, Any] = {next(iter(fields)): name, self.second: value_of(second, fields[self.second])}
        inner: dict[str, dict[str, Any]] = {}
        for key, said in said_in(text, groups):
            group, _, field = key.rpartition(".")
            if group:
                inner.setdefault(group, {})[field] = value_of(said, groups[group].__annotations__[field])
            else:
                found[key] = named[key](said) if key in named else value_of(said, fields[key])
        base: Any = self[under] if under else None
        for group, values in inner.items():
            before = getattr(base, group, None)
            found[group] = before._replace(**values) if before else groups[group](**values)
        return base._replace(**found) if base else cast("Any", self.kind)(**found)  # type: ignore[no-any-return]


def rows_in(module: str, kind: type[_Row]) -> tuple[_Row, ...]:
    """All of them."""
    return tuple(Rows(module, kind).values())


def by_name(rows: Rows[_Row]) -> Lazily[str, tuple[_Row, ...]]:
    """All of each name, in their order."""
    headings: dict[str, list[str]] = {}
    for heading in rows:
        headings.setdefault(heading.partition(" ")[0], []).append(heading)
    return Lazily(headings, lambda name: tuple(rows[heading] for heading in headings[name]))


def said_in(text: str, groups: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a row says: field or group.field, and its text."""
    for line in filter(None, re.sub(r"\n +", " ", text.strip("\n")).split("\n")):
        found = _NAMED.fullmatch(line)
        if found and found[1] not in groups:
            yield found[1], found[2] or ""
            continue
        before, words = (f"{found[1]}.", found[2]) if found else ("", line)
        for word in words.split():
            name, sign, value = word.partition("=")
            yield before + name, value if sign else "true"


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


def value_of(text: str, kind: Any) -> Any:
    """A field's value: words of a tuple, numbers of a version, pairs of a mapping with commas within."""
    if kind is bool or kind is str:
        return text if kind is str else text == "true"
    origin, inner = _parts(kind)
    if origin is Mapping or (origin is tuple and _parts(inner[0])[0] is tuple):
        of = inner[1] if origin is Mapping else _parts(inner[0])[1][1]
        pairs = {name: value_of(word.replace(",", " "), of) for name, word in pairs_of(text).items()}
        return pairs if origin is Mapping else tuple(pairs.items())
    if origin is tuple:
        words = text.replace(".", " ") if inner[0] is int else text
        return tuple(value_of(word, inner[0]) for word in words.split())
    if kind is int:
        return int(text) if text.isdecimal() else parse_size(text)
    return float(text) if kind is float else text
