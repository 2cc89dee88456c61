"""A budget as text: what is made again, its peak and its speed, budgets around it, and the lines to write."""

from typing import TYPE_CHECKING

from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Table, columns_of, definitions
from memplan.render.instants import instant_title
from memplan.tables.texts import texts_by_name
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.planner import Plans
    from memplan.planner.result import Budget, Row

METERS = {"device": "in nvidia-smi", "allocated": "allocated (torch.cuda.max_memory_allocated)"}
BELOW = "Each is the fastest that allocates no more; nvidia-smi: the most it may show. Speeds are rough estimates."
KINDS = texts_by_name(__file__)
"""What a trainer may be told to make again."""


def budget_blocks(found: "Plans") -> list[Block]:
    """All of it."""
    of = found.budget
    assert of is not None
    blocks: list[Block] = [Heading(_title(found, of), "strong" if found.plans else "bad")]
    if found.plans:
        report = found.plans[0].report
        told: list[tuple[Cell, Cell]] = [
            ("model", words.model_words(report)),
            ("method", words.method_words(report.job)),
            ("GPUs", words.cards_words(report)),
        ]
        blocks.append(definitions(told))
    blocks += [Heading("Within the budget" if found.plans else "The least"), definitions(_chosen(found, of))]
    blocks += [Heading("Budgets"), _rows(of), Prose(BELOW, "dim")]
    blocks += [Heading("What to write"), Prose(f"in {of.where}:"), _lines(of)]
    if found.assumptions:
        blocks += [Heading("Assumed"), *(Prose(line, "dim") for line in found.assumptions)]
    return blocks


def _title(found: "Plans", of: "Budget") -> str:
    size, meter = format_bytes(of.bytes, 1), METERS[of.meter]
    if not found.plans:
        return f"Nothing stays within {size} {meter}; the least is {format_bytes(_peak(of), 1)}"
    name = found.plans[0].report.model.name
    counts = f"{found.considered:,} ways considered, {found.priced:,} priced"
    if of.all_kept:
        return f"{name}: within {size} {meter} all is kept: nothing need be made again; {counts}"
    return f"{name}: the fastest way within {size} {meter}; {counts}"


def _peak(of: "Budget") -> int:
    return of.chosen.device_bytes if of.meter == "device" else of.chosen.allocated_bytes


def _chosen(found: "Plans", of: "Budget") -> list[tuple[Cell, Cell]]:
    row = of.chosen
    allocated, device = format_bytes(row.allocated_bytes), format_bytes(row.device_bytes)
    rows: list[tuple[Cell, Cell]] = [
        ("made again", row.name),
        ("peak", f"{allocated} allocated, at most {device} in nvidia-smi"),
        ("speed", f"{row.tokens_per_second:,.0f} tokens/s{_against(of)}"),
    ]
    if found.plans:
        rows.append(("memory", f"peaks at {instant_title(found.plans[0].memory_limit)}"))
    return [*rows, ("choices", f"what the trainer can be told: {', '.join(KINDS[kind] for kind in of.choices)}")]


def _against(of: "Budget") -> str:
    parts = [] if of.all_kept else [f"{_percent(of.chosen.relative_speed)} against nothing made again"]
    if of.against_full is not None:
        parts.append(f"{_percent(of.against_full)} against all of it")
    return f": {', '.join(parts)}" if parts else ""


def _percent(ratio: float) -> str:
    change = round(100 * (ratio - 1))
    return f"{'+' if change > 0 else '−' if change < 0 else ''}{abs(change)} %"


def _rows(of: "Budget") -> Table:
    columns = columns_of("made again ~ | nvidia-smi > | allocated > | tokens/s > | speed >")
    return Table(columns, tuple(_cells(row) for row in of.rows))


def _cells(row: "Row") -> tuple[Cell, ...]:
    sizes = format_bytes(row.device_bytes, 1), format_bytes(row.allocated_bytes, 1)
    return row.name, *sizes, f"{row.tokens_per_second:,.0f}", _percent(row.relative_speed)


def _lines(of: "Budget") -> Table:
    """As they are: never wrapped."""
    return Table((Column(""),), tuple((f"  {line}",) for line in of.lines))
