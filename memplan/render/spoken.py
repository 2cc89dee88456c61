"""Blocks in the language that is spoken: what a view says, before it is broken into lines."""

from collections.abc import Iterable
from dataclasses import replace

from memplan.lang import ENGLISH, language, said
from memplan.render.blocks import Block, Cell, Drawing, Span, Table


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
