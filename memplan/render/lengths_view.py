"""What the lengths of the data make of a job's steps, as a person reads it."""

from collections.abc import Iterator, Sequence

from memplan.drawn import Lengths, Played, share
from memplan.render.blocks import Block, Column, Heading, Prose, Table, bar
from memplan.report import Report
from memplan.units import format_bytes


def lengths_blocks(report: Report) -> Iterator[Block]:
    """Percentiles of the steps, whether a run dies and of what, the allocator's part; nothing without lengths."""
    found = report.lengths
    if found is None:
        return
    yield Heading("The lengths that come")
    yield Prose(f"{found.drawn}: {found.batches}. {found.runs:,} runs of {found.steps:,} steps drawn.", "dim")
    yield _steps(found)
    yield from _verdict(found, report)
    yield from _played(found)
    if found.cut_share:
        yield Prose(f"{share(found.cut_share)} of the sequences are cut at {report.job['sequence_length']:,} tokens.")
    yield from (Prose(note, "warn") for note in found.notes)


def _steps(found: Lengths) -> Table:
    """The steps that half, 99 of 100 and all do not exceed."""
    columns = [Column("step"), *(Column(name, right=True) for name in ("tokens", "allocated", "reserved", "device"))]
    rows = [
        (
            name,
            f"{step.rows} × {step.length:,}",
            *map(format_bytes, (step.allocated_bytes, step.reserved_bytes, step.device_bytes)),
        )
        for name, step in (("median", found.p50), ("99 of 100", found.p99), ("worst", found.worst))
    ]
    return Table(tuple(columns), tuple(rows))


def _verdict(found: Lengths, report: Report) -> Iterator[Block]:
    if found.p_oom is None or report.verdict is None:
        return
    low, high = share(found.p_oom_low or 0), share(found.p_oom_high or 0)
    if found.fatal_length is None:
        yield Prose(
            f"Every step that was drawn fits {report.verdict.gpu}: it dies in under {high} of such runs.", "good"
        )
        return
    if found.fatal_share == 1:
        yield Prose(f"Not even the shortest row fits {report.verdict.gpu}: every run dies.", "bad")
        return
    rare = "" if found.fatal_share is None else f", which {share(found.fatal_share)} of the sequences have,"
    text = f"A row of {found.fatal_length:,} tokens{rare} does not fit {report.verdict.gpu}"
    yield Prose(f"{text}: {share(found.p_oom)} of such runs die ({low} to {high}).", "bad" if found.p_oom else "warn")


def _played(found: Lengths) -> Iterator[Block]:
    if found.unplayed:
        yield Prose(f"{found.unplayed[:1].upper()}{found.unplayed[1:]}.", "dim")
    if found.played is not None:
        yield Prose(_run(found.played), "bad" if found.played.died else "")


def _run(run: Played) -> str:
    """One run through the allocator, in a sentence."""
    if not run.reserved_bytes:
        return "Played through the caching allocator, the first step does not fit."
    first, last = format_bytes(run.reserved_bytes[0]), format_bytes(run.reserved_bytes[-1])
    held = f"{first} reserved after the first step, {last} after {run.steps}"
    retries = f", the cache given back {run.retries} time{'s' if run.retries > 1 else ''}" if run.retries else ""
    end = "; then no room is left" if run.died else ""
    most = f"{format_bytes(run.allocated_bytes)} allocated at most"
    return f"One run played through the caching allocator: {held}, {most}{retries}{end}."


BARS = 12
"""Lines of a histogram."""


def histogram_blocks(lengths: Sequence[int], width: int) -> list[Block]:
    """Lengths in ascending order: how many, their percentiles, and how many there are of each size."""
    return [
        Table(
            (Column(), Column(right=True)), tuple((name, f"{value:,}") for name, value in percentiles(lengths).items())
        ),
        Table(
            (
                Column("tokens", right=True),
                Column("sequences", right=True),
                Column("share", right=True),
                Column(style="bar"),
            ),
            tuple(_bars(lengths, min(40, max(4, width - 44)))),
        ),
    ]


def percentiles(lengths: Sequence[int]) -> dict[str, int]:
    """Of lengths in ascending order, with the mean."""
    named = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    at = {name: lengths[min(int(each * len(lengths)), len(lengths) - 1)] for name, each in named.items()}
    return {"mean": round(sum(lengths) / len(lengths)), "min": lengths[0], **at, "max": lengths[-1]}


def _bars(lengths: Sequence[int], room: int) -> Iterator[tuple[str, ...]]:
    """A line for each of so many equal stretches up to the 99th percentile, and one for what is above."""
    low, top = lengths[0], lengths[min(int(0.99 * len(lengths)), len(lengths) - 1)]
    step = -(-(top - low + 1) // (BARS - 1))
    counts = [0] * BARS
    for length in lengths:
        counts[min((length - low) // step, BARS - 1)] += 1
    while not counts[-1]:
        counts.pop()
    for i, count in enumerate(counts):
        first, last = low + i * step, low + (i + 1) * step - 1
        name = f"≥ {first:,}" if i == BARS - 1 else f"{first:,}" if first == last else f"{first:,} – {last:,}"
        yield name, f"{count:,}", share(count / len(lengths)), bar(count / max(counts), room)
