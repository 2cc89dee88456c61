"""From blocks to lines of a width: where paragraphs break, and how wide columns are.

Nothing is ever cut: a column of numbers keeps its width, columns of words share what is left, and where even that is
not enough a line is longer than the width rather than wrong.
"""

import re
from collections.abc import Iterator, Sequence

from memplan.errors import printable
from memplan.lang import width as screen
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, text_of
from memplan.render.spoken import spoken

GAP = "  "
NARROWEST = 16
"""Columns of words are not made narrower than this."""
_NO_BREAK = "\u00a0"
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:GiB|MiB|KiB|TiB|GB|B|M|K|%|GPUs?|tokens|×)(?:\W|$))|(?<=×) (?=\d)")
_JOINTS = re.compile(r"[^=/_:]+[=/_:]*|[=/_:]+")
"""The pieces of a long name, such as PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or a path."""

_SIDES = re.compile(r"[^=]+=*|=+")
"""A name with its =, and its value."""

Line = list[Span]


def lines(blocks: Sequence[Block], width: int) -> Iterator[Line]:
    """Every line of a view."""
    for position, block in enumerate(spoken(blocks)):
        if isinstance(block, Heading):
            if position:
                yield []
            yield from ([Span(text, block.style)] for text in broken(printable(block.text), width))
        elif isinstance(block, Prose):
            margin = " " * block.indent
            parts = broken(printable(block.text), width - block.indent)
            yield from ([Span(margin), Span(text, block.style)] for text in parts)
        else:
            yield from _table(block, width)


def broken(text: str, width: int) -> list[str]:
    """A paragraph in lines. A number stays with its unit; a word longer than the line is broken after one of =/_:."""
    if screen.cells(text) <= width and "\n" not in text:
        return [text]
    return [line.replace(_NO_BREAK, " ") for part in text.split("\n") for line in _filled(part, max(width, NARROWEST))]


def _filled(text: str, width: int) -> list[str]:
    """Words put into lines until they are full."""
    done, line = [], ""
    for word in _NUMBER_AND_UNIT.sub(_NO_BREAK, text).split(" "):
        for number, piece in enumerate(filter(None, _pieces(word, width))):
            gap = " " if line and number == 0 else ""
            if line and screen.cells(line + gap + piece) > width:
                done.append(line)
                line, gap = "", ""
            line += gap + piece
    return [*done, line]


def _pieces(word: str, width: int) -> list[str]:
    """A word that is too long breaks after =, and what is still too long after one of /_: too; Chinese anywhere."""
    if not word.isascii():
        units = screen.units(word)
        return units if len(units) < 2 else [piece for unit in units for piece in _pieces(unit, width)]
    if len(word) <= width:
        return [word]
    halves = _SIDES.findall(word)
    return [piece for half in halves for piece in ([half] if len(half) <= width else _JOINTS.findall(half))]


def _least(word: str) -> list[str]:
    """The pieces that even the narrowest column keeps whole."""
    return [piece for unit in screen.units(word) for piece in _JOINTS.findall(unit)]


def widths(table: Table, width: int) -> list[int]:
    """The width of each column: its own where it must not wrap, a share of what is left where it may."""
    own = [_natural(table, position) for position in range(len(table.columns))]
    room = width - table.indent - len(GAP) * (len(own) - 1)
    wrapping = [position for position, column in enumerate(table.columns) if column.wrap]
    left = room - sum(size for position, size in enumerate(own) if position not in wrapping)
    for position in sorted(wrapping, key=lambda position: own[position]):
        least = max(NARROWEST, _longest_piece(table, position))
        own[position] = min(own[position], max(left // len(wrapping), least))
        left -= own[position]
        wrapping.remove(position)
    return own


def _longest_piece(table: Table, position: int) -> int:
    """What a column of words cannot be narrower than."""
    texts = (_NUMBER_AND_UNIT.sub(_NO_BREAK, text_of(row[position])) for row in table.rows)
    words = [word for text in texts for word in text.split(" ")]
    return max((screen.cells(piece) for word in words for piece in _least(word)), default=0)


def _natural(table: Table, position: int) -> int:
    """The longest text of a column; its title counts too."""
    texts = [table.columns[position].title, *(text_of(row[position]) for row in table.rows)]
    return max(screen.cells(line) for text in texts for line in text.split("\n"))


def _table(table: Table, width: int) -> Iterator[Line]:
    sizes = widths(table, width)
    if table.has_header:
        titles = tuple(Span(column.title, "dim") for column in table.columns)
        yield from _row(titles, table.columns, sizes, table.indent)
    for row in table.rows:
        yield from _row(row, table.columns, sizes, table.indent)


def _row(row: Sequence[Cell], columns: Sequence[Column], sizes: Sequence[int], indent: int) -> Iterator[Line]:
    """One row, as many lines as its longest cell needs."""
    cells = [
        broken(text_of(cell), size) if column.wrap else text_of(cell).split("\n")
        for cell, column, size in zip(row, columns, sizes, strict=True)
    ]
    for number in range(max(map(len, cells))):
        line = [Span(" " * indent)]
        for cell, column, size, parts in zip(row, columns, sizes, cells, strict=True):
            text = parts[number] if number < len(parts) else ""
            style = (cell.style if isinstance(cell, Span) else "") or column.style
            padded = (screen.right if column.right else screen.left)(text, size)
            line += [Span(padded, style), Span(GAP)]
        yield _stripped(line)


def _stripped(line: Line) -> Line:
    """Without spaces at its end."""
    while line and not line[-1].text.strip():
        line.pop()
    if line:
        line[-1] = Span(line[-1].text.rstrip(), line[-1].style)
    return line
