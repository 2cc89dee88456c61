"""The shares of a card that an engine could have, as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator

from memplan.generated import Share
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table
from memplan.report import Report
from memplan.units import format_bytes, format_count

WHY = {
    "least": "the least that starts",
    "every-sequence": "from here on every sequence runs",
    "largest": "the largest that fits",
    "own": "as it is",
}
FITS = {
    "yes": ("fits", "good"),
    "tight": ("tight", "warn"),
    "no": ("does not fit", "bad"),
    "unclear": ("unclear", "warn"),
}


def shares_blocks(report: Report) -> Iterator[Block]:
    """The table; nothing where no engine takes a share."""
    rows = tuple(report.shares)
    if not rows:
        return
    separate = report.recipe is not None and report.recipe.generator is not None and report.recipe.generator.separate
    yield Heading("The engine's share of its card" + ("" if separate else ", beside the trainer"))
    titles = ("KV tokens", "holds", "runs", "generation", "device, high")
    columns = (
        Column("share", right=True),
        *(Column(each, right=True) for each in titles),
        Column(""),
        Column("", wrap=True),
    )
    yield Table(columns, tuple(map(_row, rows)))
    yield Prose(
        "Holds: sequences of prompt and completion in its cache; runs: those it is given at once. Where it holds "
        "fewer, the others wait or are computed again: slow, and no error. Generation: of a step, by arithmetic.",
        "dim",
    )


def _row(row: Share) -> tuple[Cell, ...]:
    said = ", ".join(WHY[each] for each in row.why)
    if not row.starts:
        return f"{row.share:g}", "", "", f"{row.wanted:,}", "", "", Span("does not start", "bad"), said
    text, style = FITS.get(row.fits, ("", ""))
    return (
        f"{row.share:g}",
        format_count(row.kv_tokens),
        Span(f"{row.held:,.0f}" if row.held >= 10 else f"{row.held:.1f}", "warn" if row.preempts else ""),
        f"{row.wanted:,}",
        f"{row.generation_seconds:,.1f} s",
        format_bytes(row.device_bytes, 1),
        Span(text, style),
        said,
    )
