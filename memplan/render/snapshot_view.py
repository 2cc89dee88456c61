"""A snapshot for a screen: what was measured, what the replay says, and what of it a played step explains."""

from collections.abc import Iterator, Sequence

from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Table, columns_of
from memplan.render.words import category_title
from memplan.report import Report
from memplan.snapshot.explaining import SHOWN, Explained, Left
from memplan.units import format_bytes


def snapshot_blocks(found: Explained) -> Iterator[Block]:
    """Measured and replayed, then estimated and what is left over."""
    snapshot, report = found.snapshot, found.report
    yield Heading(f"snapshot of device {snapshot.device}: {found.events:,} events", "strong")
    if not snapshot.whole:
        yield Prose("It begins with blocks in use: the history was started late, or only its end was kept.", "dim")
    columns = [*columns_of("meter | measured > | replayed >")]
    rows: list[tuple[Cell, ...]] = [
        ("allocated", format_bytes(found.allocated_peak), ""),
        ("reserved", format_bytes(found.reserved_peak), format_bytes(found.replayed_peak)),
    ]
    if report is not None:
        gpu = report.per_gpu
        columns.append(Column("estimated", right=True))
        figures = gpu.allocated_bytes, gpu.reserved_bytes.expected
        rows = [(*row, format_bytes(figure)) for row, figure in zip(rows, figures, strict=True)]
    yield Table(tuple(columns), tuple(rows))
    yield Prose(_agreement(found), "dim")
    if snapshot.failure is not None:
        asked, free, place = snapshot.failure
        where = f" in {place}" if place else ""
        yield Prose(f"Out of memory: {format_bytes(asked)} asked for{where}, with {format_bytes(free)} free.", "bad")
    yield from _held(found)
    if report is not None:
        yield Heading(f"Estimated at the peak ({report.per_gpu.peak_instant})")
        yield _rows(found, report)
        yield from _explained(found)


def _held(found: Explained) -> Iterator[Block]:
    """What the program's places have at the peak."""
    yield Heading("At the measured peak, by where it was asked for")
    shown, rest = found.held[:SHOWN], found.held[SHOWN:]
    rows: list[tuple[Cell, ...]] = [(format_bytes(size), str(count), place or UNNAMED) for place, size, count in shown]
    if rest:
        size, count = sum(each.bytes for each in rest), sum(each.number for each in rest)
        rows.append((format_bytes(size), str(count), f"{len(rest)} other places"))
    yield Table(columns_of("bytes > | storages > | ~"), tuple(rows))


UNNAMED = "before the recording began, or without frames"


def _rows(found: Explained, report: Report) -> Table:
    """The ledger's categories at its peak, and how much of each was measured storage by storage."""
    columns = [Column("category"), Column("estimated", right=True)]
    sizes = report.per_gpu.by_category
    names = dict.fromkeys((*sizes, *found.by_category))
    rows: list[tuple[Cell, ...]] = [(category_title(name), format_bytes(sizes.get(name, 0))) for name in names]
    if found.played_peak:
        columns.append(Column("also measured", right=True))
        rows = [(*row, format_bytes(found.by_category.get(name, 0))) for row, name in zip(rows, names, strict=True)]
    return Table(tuple(columns), tuple(rows))


def _agreement(found: Explained) -> str:
    if not found.differences:
        return "Replayed through the allocator's rules, reserved agrees after every request."
    return f"Replayed through the allocator's rules, reserved differs after {found.differences:,} requests."


def _explained(found: Explained) -> Iterator[Block]:
    """What only one side has, storage by storage."""
    if not found.played_peak:
        yield Prose("The job's step is not played yet: storages cannot be compared one by one.", "dim")
        return
    share = found.explained_bytes / found.allocated_peak if found.allocated_peak else 0
    yield Heading("Storage by storage, at the peaks")
    yield Prose(
        f"{format_bytes(found.explained_bytes)} of {format_bytes(found.allocated_peak)} measured ({100 * share:.1f} %) "
        "are storages that the played step has too."
    )
    yield from _left("Nobody accounts for", found.unaccounted)
    yield from _left("Played, and not measured", found.missing)


def _left(title: str, rows: Sequence[Left]) -> Iterator[Block]:
    if not rows:
        return
    yield Heading(f"{title}: {format_bytes(sum(row.bytes for row in rows))}")
    body: list[tuple[Cell, ...]] = [(str(row.number), format_bytes(row.size), row.place) for row in rows[:SHOWN]]
    rest = rows[SHOWN:]
    if rest:
        total = format_bytes(sum(row.bytes for row in rest))
        body.append((str(sum(row.number for row in rest)), total, "together, of other sizes"))
    yield Table(columns_of("> | each > | asked for in ~"), tuple(body))
