"""Proves that tables which are text say what their fields can hold, and that a row is as the one it begins with."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

from memplan.tables.engines import ERAS
from memplan.tables.generation import ROWS
from memplan.tables.rows import rows_in
from memplan.tables.trainers import TRAINERS
from memplan.units import MiB


def wrong(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Words that a choice does not have, in a row, its groups and its mappings."""
    if hasattr(kind, "_fields"):
        for name, of in kind.__annotations__.items():
            yield from wrong(getattr(value, name), of, f"{where}.{name}")
    elif get_origin(kind) is Literal:
        yield from () if value in get_args(kind) else (f"{where}: {value}",)
    elif get_origin(kind) is Mapping:
        for name, each in value.items():
            yield from wrong(each, get_args(kind)[1], f"{where}[{name}]")
    elif get_origin(kind) is tuple:
        for each in value:
            yield from wrong(each, get_args(kind)[0], where)


@pytest.mark.parametrize(
    "row", [*ERAS, *ROWS, *(era for eras in TRAINERS.values() for era in eras)], ids=lambda r: r[0]
)
def test_a_choice_has_the_word(row: Any) -> None:
    assert list(wrong(row, type(row), f"{row[0]} {row.since}")) == []


class Group(NamedTuple):
    """Of a row."""

    on: bool = False
    names: tuple[str, ...] = ()


class Said(NamedTuple):
    """A row."""

    name: str
    since: tuple[int, ...] = ()
    size: int = 0
    kind: Literal["", "one"] = ""
    degrees: Mapping[str, tuple[str, ...]] = {}
    group: Group = Group()
    title: str = ""


def test_a_row_says_what_it_changes(tmp_path: Path) -> None:
    text = "[a 1.2]\nsize=2MiB kind=one\ngroup: on\ngroup.names: x y\ndegrees: p=q,r s=\ntitle: two\n  words\n"
    (tmp_path / "table.txt").write_text(
        f"{text}\n[a 1.10 < a 1.2]\n# a comment\ngroup: on=false\ntitle:\n[b < a 1.10]\n"
    )
    first, second, third = rows_in(str(tmp_path / "table.py"), Said)
    degrees = {"p": ("q", "r"), "s": ()}
    assert first == Said("a", (1, 2), 2 * MiB, "one", degrees, Group(True, ("x", "y")), "two words")
    assert second == first._replace(since=(1, 10), group=Group(False, ("x", "y")), title="")
    assert third == second._replace(name="b", since=())
    other: Any = "two"
    assert list(wrong(first._replace(kind=other), Said, "row")) == ["row.kind: two"]
