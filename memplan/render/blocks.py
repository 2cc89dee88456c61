"""What a view is made of: headings, prose and tables. Views make blocks; text, terminal and Markdown are made of them.

A view is built for a width, since what is worth a column of its own depends on it; where lines break is ``layout``'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from memplan.errors import printable


class Span(NamedTuple):
    """Text in one style: good, bad, warn, dim, strong, heading or bar; plain where empty."""

    text: str
    style: str = ""


Cell: TypeAlias = str | Span


@dataclass(frozen=True, slots=True)
class Heading:
    """A line that stands out, with an empty line before it."""

    text: str
    style: str = "heading"


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph: broken at spaces, never inside a number."""

    text: str
    style: str = ""
    indent: int = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str = ""
    right: bool = False
    wrap: bool = False
    """Its text may be broken; a column that does not wrap is never cut."""
    style: str = ""
    screen_only: bool = False
    """Drawn for the eye, such as a bar: left out of Markdown."""


def columns_of(titles: str) -> tuple[Column, ...]:
    """Columns by their titles, between bars: ``>`` behind that of numbers, ``~`` behind that of text that may wrap."""
    marked = (each.strip() for each in titles.split("|"))
    return tuple(Column(each.rstrip(">~ "), right=each.endswith(">"), wrap=each.endswith("~")) for each in marked)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; without titles it is a list of names and what they mean."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    indent: int = 2

    @property
    def has_header(self) -> bool:
        """Whether any column has a title."""
        return any(column.title for column in self.columns)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines as they are: neither broken nor translated. A span whose style is a colour, such as #3b5b92, is letters
    where there are no colours, and blocks where there are."""

    lines: tuple[tuple[Span, ...], ...]


Block: TypeAlias = Heading | Prose | Table | Drawing
View: TypeAlias = Callable[[int], Sequence[Block]]
"""The blocks of a view, for a width in columns."""

NAMES_AND_MEANINGS = (Column(style="dim"), Column(wrap=True))


def definitions(rows: Sequence[tuple[Cell, Cell]], indent: int = 2) -> Table:
    """Names at the left, what they mean at the right."""
    return Table(NAMES_AND_MEANINGS, tuple(rows), indent)


def text_of(cell: Cell) -> str:
    """The text of a cell without its style, as it may be shown."""
    return printable(cell.text if isinstance(cell, Span) else cell)


def bar(share: float, width: int) -> str:
    """A bar for a share of 1, in eighths of a character."""
    eighths = max(0, min(8 * width, round(share * 8 * width)))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
