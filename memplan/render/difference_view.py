"""Two jobs side by side: the keys that differ, where each peaks, and what moved between the two peaks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from memplan.comparison import Comparison
from memplan.comparison.grid import value_words
from memplan.comparison.result import CompareRow, Difference, Move
from memplan.lang import Name
from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, columns_of
from memplan.render.instants import instant_title
from memplan.render.verdict_view import STYLES
from memplan.units import format_bytes

SMALL = 0.003
"""Share of the larger peak below which moves are told together, where there are many."""
ALWAYS = 8
"""Moves that are told by name, however small."""
LAYERS = re.compile(r", layers? \d+(-\d+)?$")
LONGEST = 44
"""Characters of a key's value."""


def difference_blocks(comparison: "Comparison") -> Iterator[Block]:
    """What differs between the two rows of a comparison, the baseline first."""
    found = comparison.difference
    assert found is not None
    rows = {row.name: row for row in comparison.rows}
    before, after = rows[found.before], rows[found.after]
    yield Heading("What differs between the jobs")
    yield Prose(f"A: {before.title}\nB: {after.title}")
    yield from _keys(found)
    yield Heading("Where each peaks")
    yield _peaks(before, after)
    for name, row in (("A", before), ("B", after)):
        yield Prose(f"{name} peaks at {instant_title(row.report.per_gpu.peak_instant)}.", "dim")
    yield from _moves(found, before, after)


def _keys(found: "Difference") -> Iterator[Block]:
    if not found.changes:
        yield Prose("No key: the models differ, or nothing does.")
        return
    columns = (Column("key"), Column("A", wrap=True), Column("B", wrap=True), Column(style="dim"))
    rows = [
        (Name(change.key), _value(change.before), _value(change.after), "" if change.given else "follows")
        for change in found.changes
    ]
    yield Table(columns, tuple(rows))


def _value(value: object) -> str:
    if value is None:
        return "not set"
    text = value_words(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _peaks(before: "CompareRow", after: "CompareRow") -> Table:
    """The meters and the verdict of each."""
    columns = columns_of(" | A > | B > | B − A >")
    first, second = before.report.per_gpu, after.report.per_gpu
    meters = (
        ("allocated", first.allocated_bytes, second.allocated_bytes),
        ("reserved", first.reserved_bytes.expected, second.reserved_bytes.expected),
        ("device", first.device_bytes.expected, second.device_bytes.expected),
    )
    rows: list[tuple[Cell, ...]] = [
        (name, format_bytes(one), format_bytes(other), words.signed(other - one)) for name, one, other in meters
    ]
    if before.fits or after.fits:
        verdicts = [Span(row.fits, STYLES[row.fits]) if row.fits else Span("no card") for row in (before, after)]
        rows.append(("fits", *verdicts, ""))
    return Table(columns, tuple(rows))


def _moves(found: "Difference", before: "CompareRow", after: "CompareRow") -> Iterator[Block]:
    """Rows of the ledger, the largest move first; small ones together."""
    yield Heading("What moved at the peak")
    largest = max(row.report.per_gpu.allocated_bytes for row in (before, after))
    moves = over_layers(found.moves)
    large = sum(abs(move.after - move.before) >= SMALL * largest for move in moves)
    shown, rest = moves[: max(large, ALWAYS)], moves[max(large, ALWAYS) :]
    columns = (
        Column("row", wrap=True),
        Column("A", right=True),
        Column("B", right=True),
        Column("B − A", right=True, style="strong"),
    )
    rows: list[tuple[Cell, ...]] = [
        (move.name, _size(move.before), _size(move.after), words.signed(move.after - move.before)) for move in shown
    ]
    if rest:
        sums = sum(move.before for move in rest), sum(move.after for move in rest)
        name = f"{len(rest)} smaller rows" if len(rest) > 1 else rest[0].name
        rows.append((name, *map(_size, sums), words.signed(sums[1] - sums[0])))
    rows.append(("the same in both", *[_size(found.unchanged_bytes)] * 2, ""))
    total = [format_bytes(row.report.per_gpu.allocated_bytes) for row in (before, after)]
    moved = after.report.per_gpu.allocated_bytes - before.report.per_gpu.allocated_bytes
    rows.append((Span("total", "strong"), *(Span(text, "strong") for text in total), words.signed(moved)))
    yield Table(columns, tuple(rows))


def over_layers(moves: Sequence["Move"]) -> list["Move"]:
    """Rows of the same kind in several layers as one: 'activation, layer 0' and 'activation, layers 1-30'."""
    kinds: dict[tuple[str, str], list[Move]] = {}
    for move in moves:
        kinds.setdefault((move.category, LAYERS.sub("", move.name)), []).append(move)
    found = [
        same[0]
        if len(same) == 1
        else replace(
            same[0], name=name, before=sum(move.before for move in same), after=sum(move.after for move in same)
        )
        for (_, name), same in kinds.items()
    ]
    return sorted(found, key=lambda move: -abs(move.after - move.before))


def _size(size: int) -> str:
    return format_bytes(size) if size else "—"
