"""From blocks to lines of a width: where paragraphs break, and how wide columns are.

Nothing is ever cut: a column of numbers keeps its width, columns of words share what is left, and where even that is
not enough the cells of a row stand below each other, each with its title."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from memplan.errors import printable
from memplan.lang import ENGLISH, language, said
from memplan.lang import width as screen
from memplan.render.blocks import Block, Cell, Column, Drawing, Heading, Prose, Span, Table, text_of

GAP = "  "
NARROWEST = 16
"""Columns of words are not made narrower than this."""
PROSE = 100
"""Lines of prose are never wider, whatever the screen."""
_NO_BREAK = "\u00a0"
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:GiB|MiB|KiB|TiB|GB|B|M|K|%|GPUs?|tokens|×)(?:\W|$))|(?<=×) (?=\d)")
_JOINTS = re.compile(r"[^=/_:]+[=/_:]*|[=/_:]+")
"""The pieces of a long name, such as PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or a path."""
_FINER_JOINTS = re.compile(r"[^-.,;+&]+[-.,;+&]*|[-.,;+&]+")
"""Those of a piece that is too long even so."""

_SIDES = re.compile(r"[^=]+=*|=+")
"""A name with its =, and its value."""

Line = list[Span]


def lines(blocks: Sequence[Block], width: int) -> Iterator[Line]:
    """Every line of a view."""
    for position, block in enumerate(spoken(blocks)):
        if isinstance(block, Heading):
            if position:
                yield []
            yield from ([Span(text, block.style)] for text in broken(printable(block.text), min(width, PROSE)))
        elif isinstance(block, Prose):
            margin = " " * block.indent
            parts = broken(printable(block.text), min(width, PROSE) - block.indent)
            yield from ([Span(margin), Span(text, block.style)] for text in parts)
        elif isinstance(block, Drawing):
            yield from (_stripped(list(line)) for line in block.lines)
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
    """A word that is too long breaks after =, then after one of /_:, then by letters; Chinese anywhere."""
    units = screen.units(word)
    if len(units) > 1:
        return [piece for unit in units for piece in _pieces(unit, width)]
    if len(word) <= width:
        return [word]
    pieces = [word]
    for joints in (_SIDES, _JOINTS, _FINER_JOINTS):
        pieces = [part for piece in pieces for part in ([piece] if len(piece) <= width else joints.findall(piece))]
    return [piece[at : at + width] for piece in pieces for at in range(0, len(piece), width)]


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
        own[position] = min(own[position], PROSE, max(left // len(wrapping), least))
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
    for form in (table, _on_paper(table)):
        sizes = widths(form, width)
        if form.indent + sum(sizes) + len(GAP) * (len(sizes) - 1) <= width:
            break
    else:
        yield from _stacked(form, width)
        return
    if form.has_header:
        titles = tuple(Span(column.title, "dim") for column in form.columns)
        yield from _row(titles, form.columns, sizes, form.indent)
    for row in form.rows:
        yield from _row(row, form.columns, sizes, form.indent)


def _on_paper(table: Table) -> Table:
    """Without what is drawn for the eye."""
    shown = [at for at, column in enumerate(table.columns) if not column.screen_only]
    rows = tuple(tuple(row[at] for at in shown) for row in table.rows)
    return Table(tuple(table.columns[at] for at in shown), rows, table.indent)


def _stacked(table: Table, width: int) -> Iterator[Line]:
    """Each row as a paragraph: the cells up to the first that has a title, and below them the others with theirs."""
    first = next((at for at, column in enumerate(table.columns) if column.title), 0)
    for row in table.rows:
        lead = GAP.join(text for cell in row[: first + 1] if (text := _flat(cell)))
        rest = [
            f"{_flat(column.title)} {_flat(cell)}".strip()
            for column, cell in zip(table.columns[first + 1 :], row[first + 1 :], strict=True)
            if _flat(cell)
        ]
        parts = [(lead, 0, table.columns[first].style), ("; ".join(rest), 2, "")]
        if table.indent + screen.cells(lead + GAP + parts[1][0]) <= width:
            parts = [(GAP.join(text for text, *_ in parts if text), 0, "")]
        for text, indent, style in parts:
            margin = table.indent + indent
            yield from ([Span(" " * margin), Span(line, style)] for line in broken(text, width - margin) if text)


def _flat(cell: Cell) -> str:
    """A cell in one line."""
    return " ".join(text_of(cell).split("\n"))


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


def spoken(blocks: Iterable[Block]) -> list[Block]:
    """The same blocks in the language that is spoken."""
    return list(blocks) if language() == ENGLISH else [_block(each) for each in blocks]


def _block(block: Block) -> Block:
    if isinstance(block, Drawing):
        return block
    if not isinstance(block, Table):
        return replace(block, text=said(block.text))
    columns = tuple(replace(column, title=said(column.title)) for column in block.columns)
    return replace(block, columns=columns, rows=tuple(tuple(map(_cell, row)) for row in block.rows))


def _cell(cell: Cell) -> Cell:
    return Span(said(cell.text), cell.style) if isinstance(cell, Span) else said(cell)
