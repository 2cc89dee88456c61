"""How sure an estimate is, as a person reads it: errors for jobs of its kind, and the nearest that was measured."""

from collections.abc import Iterable, Iterator, Mapping

from memplan.render.blocks import Block, Column, Heading, Prose, Table
from memplan.trust import Trust
from memplan.units import format_bytes


def trust_blocks(found: Trust) -> Iterator[Block]:
    """The kind, errors by meter of the rows like it, the nearest row with its source."""
    kind = tuple(found.kind)
    yield Heading(f"How sure this is: estimates held against measured runs like {_words(found.kind, kind)}")
    columns = (
        Column("measured", wrap=True),
        Column("meter"),
        Column("rows", right=True),
        Column("median %", right=True),
        Column("worst %", right=True),
        Column("in range", right=True),
    )
    rows = []
    for alike in found.alike:
        how = "tensor by tensor, without a card" if alike.traced else "on a card"
        of = _words(found.kind, alike.shared) or "any kind"
        for group in alike.groups:
            inside = f"{group.inside} of {group.rows}" if group.name in RANGED else ""
            errors = _hundredths(group.median, ""), _hundredths(group.worst)
            rows.append((f"{of}; {how}", group.name, str(group.rows), *errors, inside))
    if rows:
        yield Table(columns, tuple(rows))
    if not any(not alike.traced and set(kind) <= set(alike.shared) for alike in found.alike):
        yield Prose("No run of just this kind that somebody measured on a card is known to memplan.")
    near = found.nearest
    if near is not None:
        other = f"; it differs in {', '.join(near.differs)}" if near.differs else ""
        amounts = f"{format_bytes(near.measured_bytes)} {near.meter}, estimated {format_bytes(near.estimated_bytes)}"
        yield Prose(f"Nearest: {near.id} ({near.kind}): {amounts} ({_hundredths(near.error)} %){other}.")
        yield Prose(f"Source: {near.source}", "dim")


RANGED = ("reserved", "device")
"""Meters whose estimates have a range; allocated is one figure."""


def _words(kind: Mapping[str, str], keys: Iterable[str]) -> str:
    return ", ".join(kind[key] for key in keys if key in kind)


def _hundredths(error: float, sign: str = "+") -> str:
    return f"{100 * error:{sign}.2f}".replace("-", "−")
