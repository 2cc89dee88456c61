"""Which cards of the catalogue hold a job, how many of the others do; and the shares that an engine could have."""

from collections.abc import Iterator, Sequence

from memplan.generated import Share
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, columns_of
from memplan.report import Card, Report
from memplan.units import format_bytes, format_count

SHOWN = 5
"""Cards with a line of their own: the smallest that do."""
NAMED = 3
"""Cards of a line that has several."""


def cards_blocks(report: Report) -> Iterator[Block]:
    """A dozen lines: the smallest cards that hold the job, then numbers of those that do not."""
    if not report.cards:
        return
    holding = [card for card in report.cards if card.fits == "yes" and not card.lacks]
    tight = [card for card in report.cards if card.fits == "tight" and not card.lacks]
    others = [card.gpu for card in report.cards if card.fits in ("yes", "tight") and card.lacks == "bf16"]
    each = "" if report.job.get("num_gpus", 1) == 1 else f", {report.job['num_gpus']} of each"
    yield Heading(f"Cards that hold it{each}" if holding else f"No card of the catalogue holds it{each}")
    if holding:
        yield _table(holding[:SHOWN])
    if len(holding) > SHOWN:
        yield Prose(f"and {len(holding) - SHOWN} larger ones; name one with --gpu for a verdict", "dim")
    if tight:
        yield Prose(f"Tight: {_some([card.gpu for card in tight])}")
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        yield Prose(f"Without bf16 matmuls (use dtype fp16): {', '.join(others[-NAMED:])}{more}", "dim")
    yield from _numbers([card for card in report.cards if not card.lacks])


def _table(cards: list[Card]) -> Table:
    columns = columns_of("card | usable > | to spare >")
    rows = tuple(
        (Span(card.gpu, "good"), format_bytes(card.usable_bytes), format_bytes(card.headroom_bytes)) for card in cards
    )
    return Table(columns, rows)


def _numbers(cards: Sequence[Card]) -> Iterator[Block]:
    """With ZeRO-3 over several: one line for each number of GPUs, the smallest cards named first."""
    groups: dict[int, list[str]] = {}
    for card in cards:
        if card.fits != "yes" and card.gpus_needed is not None:
            groups.setdefault(card.gpus_needed, []).append(card.gpu)
    if not groups:
        return
    yield Prose("Several with ZeRO-3 hold it:")
    rows = tuple((f"{count} ×", _some(names)) for count, names in sorted(groups.items())[:SHOWN])
    yield Table((Column(right=True), Column(wrap=True)), rows)


def _some(names: list[str]) -> str:
    """The largest cards of a group, and how many more."""
    shown = ", ".join(names[-NAMED:][::-1])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


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
