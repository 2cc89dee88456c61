"""The ledger, row by row: what ``--explain`` prints. Rows alive at the peak come first, largest first."""

from collections.abc import Iterable, Iterator

from memplan.engine.phases.first_step import FIRST
from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table
from memplan.render.instants import instant_words
from memplan.report import LedgerRow, Report
from memplan.units import format_bytes


def ledger_blocks(report: Report, categories: Iterable[str] | None = None) -> list[Block]:
    """Every row of the report, or those of some categories, with formula, lifetime, reason and source."""
    wanted = None if categories is None else set(categories)
    rows = [row for row in report.per_gpu.ledger if wanted is None or row.category in wanted]
    if not rows:
        return [Prose("No row of this job's ledger is of this kind.")]
    position = {instant.name: number for number, instant in enumerate(report.per_gpu.instants)}
    peak = position[report.per_gpu.peak_instant]
    alive = [row for row in rows if is_alive(row, position, peak)]
    others = [row for row in rows if not is_alive(row, position, peak)]
    outside = [row for row in others if row.meter != "allocated"]
    elsewhen = [row for row in others if row.meter == "allocated"]
    at = instant_words(report.per_gpu.peak_instant)[0]
    return [
        *_section(f"Allocated at the peak, {at}", alive, report),
        *_section("Outside torch's allocator", outside, report),
        *_section("Allocated at other instants", elsewhen, report),
        *_beside(report, wanted),
    ]


def _beside(report: Report, wanted: set[str] | None) -> Iterator[Block]:
    """The rows that phases beside the step have of their own."""
    known = {row.name for row in report.per_gpu.ledger}
    for moment in report.per_gpu.moments:
        rows = [row for row in moment.ledger if wanted is None or row.category in wanted]
        own = [row for row in rows if row.name not in known and not row.born.startswith(f"{FIRST}-")]
        yield from _section(f"Beside the step, in {moment.name}", own, report)


def is_alive(row: LedgerRow, position: dict[str, int], instant: int) -> bool:
    """Whether the allocated total at this instant counts the row."""
    lives = position[row.born] <= instant <= position[row.dies]
    return lives and row.meter == "allocated" and row.place == "gpu"


def _section(title: str, rows: list[LedgerRow], report: Report) -> Iterator[Block]:
    if not rows:
        return
    total = sum(row.bytes for row in rows)
    is_sum = rows[0].meter == "device" or title.startswith("Allocated at the peak")
    yield Heading(f"{title}: {len(rows)} rows" + (f", {format_bytes(total)}" if is_sum else ", not all alive at once"))
    ranked = sorted(rows, key=lambda row: -row.bytes)
    cells = tuple(line for row in ranked for line in _row(row, report))
    yield Table((Column(right=True, style="strong"), Column(wrap=True)), cells)


def _row(row: LedgerRow, report: Report) -> list[tuple[Cell, Cell]]:
    """The size and the name; below them everything that says why."""
    name = f"{row.name} ({words.category_title(row.category)})"
    below: list[Cell] = [row.formula] if row.formula else []
    if row.low != row.high:
        below.append(f"between {format_bytes(row.low)} and {format_bytes(row.high)}")
    below.append(Span(_lifetime(row, report), "dim"))
    if row.why:
        below.append(Span(f"why: {row.why}", "dim"))
    if row.source:
        below.append(Span(f"source: {row.source}", "dim"))
    return [(format_bytes(row.bytes), Span(name, "strong")), *(("", cell) for cell in below)]


def _lifetime(row: LedgerRow, report: Report) -> str:
    """From birth to death in words of the schedule."""
    instants = report.per_gpu.instants
    place = {"gpu": "", "nvme": ", on NVMe", "node": ", once in a node's memory"}.get(
        row.place, f", in the memory of the {row.place}"
    )
    if row.born == instants[0].name and row.dies == instants[-1].name:
        return f"alive throughout the step{place}"
    if row.born == row.dies:
        return f"alive at {row.born}{place}"
    return f"alive from {row.born} to {row.dies}{place}"
