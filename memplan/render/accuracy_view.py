"""Errors as tables: what was held against the estimate, how far it was off, and what was refused."""

from typing import TYPE_CHECKING, Any

from memplan.lang import Name
from memplan.render.blocks import Block, Column, Heading, Prose, Table, definitions

if TYPE_CHECKING:
    from memplan.accuracy import Accuracy, Grouping

BANDED = ("meter", "quality", "engine")
"""Groupings by meter: reserved and device are estimated as a range, which a measured figure is in or not."""
NOTHING = "Nothing could be estimated."


def accuracy_blocks(found: "Accuracy") -> list[Block]:
    """The sets and their sources, a table for each grouping, and the refused rows by reason."""
    blocks: list[Block] = [Heading("Truth"), _sets(found)]
    sources = [(Name(each.name), each.source) for each in found.sets if each.source]
    blocks += [Heading("Sources"), definitions([*sources])] if sources else []
    tables = [grouping for grouping in found.groupings if grouping.groups]
    for grouping in tables:
        blocks += [Heading(f"Error by {grouping.by} ({grouping.of})"), _errors(grouping)]
    blocks += [] if tables else [Heading("Error"), Prose(NOTHING)]
    return blocks + ([Heading("Refused"), _refused(found)] if found.refused else [])


def _sets(found: "Accuracy") -> Table:
    columns = (Column("set"), Column("made by"), *(Column(title, right=True) for title in ROWS))
    cells = (
        (Name(each.name), each.kind, str(each.rows), str(each.estimated), str(each.refused)) for each in found.sets
    )
    return Table(columns, tuple(cells))


ROWS = ("rows", "estimated", "refused")


def _errors(grouping: "Grouping") -> Table:
    banded = grouping.by in BANDED
    titles = ("rows", "median %", "p95 %", "worst %", *(["in range"] if banded else []))
    columns = (Column(grouping.by), *(Column(title, right=True) for title in titles), Column("worst row"))
    cells = (
        (
            Name(group.name),
            str(group.rows),
            f"{100 * group.median:.4f}",
            f"{100 * group.p95:.4f}",
            f"{100 * group.worst:+.4f}",
            *([str(group.inside)] if banded else []),
            group.worst_id,
        )
        for group in grouping.groups
    )
    return Table(columns, tuple(cells))


def _refused(found: "Accuracy") -> Table:
    columns = (Column("set"), Column("reason", wrap=True), Column("rows", right=True), Column("such as"))
    return Table(columns, tuple((Name(each.set), each.reason, str(each.rows), each.first_id) for each in found.refused))


def accuracy_rows(found: "Accuracy") -> list[dict[str, Any]]:
    """A line for each figure, then one for each refused row, for CSV."""
    figures: list[dict[str, Any]] = [
        figure._asdict() | {"error": figure.error, "refused": ""} for figure in found.figures
    ]
    refused = [{"set": each.set, "kind": each.kind, "id": each.id, "refused": each.reason} for each in found.refusals]
    return figures + refused
