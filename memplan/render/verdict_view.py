"""Whether a job fits its card, by how much and on which meter; and what to change where it does not."""

from collections.abc import Iterator, Sequence

from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, columns_of
from memplan.render.instants import moment_words
from memplan.render.rollout_view import apart_words, fullest, stands_apart, verdict_words
from memplan.report import Moment, Remedy, Report, Verdict
from memplan.tables.choices import options_of_hint
from memplan.tables.generation import generation_of
from memplan.units import format_bytes

ROOMY = 120
"""From this width on there is a column for what a change frees, beside the new total."""
STYLES = {"yes": "good", "tight": "warn", "no": "bad", "unclear": "warn"}


def verdict_blocks(report: Report, width: int) -> Iterator[Block]:
    """The verdict on the named card; nothing without one, but for what makes it unclear."""
    verdict = report.verdict
    if report.unclear:
        yield Heading(f"Unclear: {report.unclear}", STYLES["unclear"])
        device = format_bytes(report.per_gpu.device_bytes.expected)
        usable = f" of {format_bytes(verdict.usable_bytes)} usable on {verdict.gpu}" if verdict else ""
        yield Prose(f"Without that: {device}{usable}")
        if verdict is not None and report.remedies:
            yield from _changes(report, verdict, width)
        return
    if verdict is None:
        return
    if report.host.fits is False:
        yield from _short_host(report)
        yield from _changes(report, verdict, width)
        return
    if verdict.fits == "tight" and not verdict.missing_bytes and report.host.crowded:
        yield from _crowded_host(report)
    else:
        yield Heading(verdict_words(report, verdict) or verdict_line(verdict), STYLES[verdict.fits])
    if report.engine is not None and report.engine.hint and not report.engine.starts:
        if not any(remedy.fits == "yes" for remedy in report.remedies):  # below stand changes with which all fits
            yield Prose(f"To start at all: {options_of_hint(report.engine.hint)}")
    elif report.engine is not None and stands_apart(report):
        yield Prose(apart_words(report.engine, (report.job.get("rollout") or {}).get("num_gpus")), "dim")
    yield Prose(_reason(report, verdict), "dim")
    if report.lengths is not None:
        yield Prose(f"{report.lengths.words[:1].upper()}{report.lengths.words[1:]}.")
    crossing = report.per_gpu.first_crossing
    if crossing is not None:
        held = format_bytes(crossing.device_bytes)
        yield Prose(
            f"It runs out first in {crossing.phase}, at {crossing.instant} ({moment_words(crossing.instant)}), "
            f"with {held} in use."
        )
    yield from _changes(report, verdict, width)


def _changes(report: Report, verdict: Verdict, width: int) -> Iterator[Block]:
    """What makes it fit; where nothing does, what comes nearest."""
    if verdict.fits == "yes":
        return
    remedies = tuple(report.remedies)
    if any(remedy.fits == "yes" for remedy in remedies):
        heads = {"no": "Cheapest changes:", "unclear": "Counted from above it fits with, cheapest first:"}
        tight = "To keep the margin, cheapest changes:" if verdict.missing_bytes else "To be sure, cheapest changes:"
        yield Prose(heads.get(verdict.fits, tight))
    else:
        count = report.job.get("num_gpus", 1)
        nearest = " Nearest comes:" if remedies else " More GPUs or larger ones may be needed."
        here = f"{count} × {verdict.gpu}: memplan plan looks through every layout."
        yield Prose(f"No change around this job makes it fit on {here}{nearest}")
    if remedies:
        yield from remedies_table(remedies, width, report.host.bytes_per_node)
        yield Prose("Speeds are rough estimates, good for ranking.", "dim")


def _less_on_host(report: Report) -> Iterator[Block]:
    """What of an RL step could be taken from there."""
    of = report.recipe.generator if report.recipe is not None else None
    if "rollout" not in report.host.phases or report.recipe is None or of is None:
        return
    row = generation_of(report.recipe.trainer.name, str(report.job.get("trainer_version") or ""))
    ways = ["--set rollout.sleep=2"] if of.sleep == 1 and row.levels else []
    ways += ["less of --trainer-offload"] if any(of.away) and not of.away.whole else []
    if ways:
        yield Prose(f"Less there: {', or '.join(ways)}")


def _short_host(report: Report) -> Iterator[Block]:
    """The node's own memory is what is short."""
    host = report.host
    there, (most, size) = host.memory_bytes or 0, host.fullest
    yield Heading(f"Does not fit the nodes: their memory is short by {format_bytes(size - there)}", "bad")
    usable = f"Ray lets {format_bytes(there)} be used" if host.store_bytes else f"it has {format_bytes(there)}"
    yield Prose(f"{format_bytes(size)} on each node for {most}; {usable}.", "dim")
    yield from _less_on_host(report)


def _crowded_host(report: Report) -> Iterator[Block]:
    """The node holds what the job puts there, and not what Ray and the processes themselves may take beside it."""
    host = report.host
    there, (most, size) = format_bytes(host.memory_bytes or 0), host.fullest
    more, whose = format_bytes(host.store_bytes + host.process_bytes), "Ray and " if host.store_bytes else ""
    held = f"{format_bytes(size)} for {most}, up to {more} for {whose}the processes"
    yield Heading(f"Tight on the nodes: {held}, of {there}", "warn")
    yield from _less_on_host(report)


def verdict_line(verdict: Verdict) -> str:
    """One line: fits or not, and by how much."""
    if verdict.fits == "yes":
        return f"Fits {verdict.gpu} with {format_bytes(verdict.headroom_bytes)} to spare"
    if verdict.fits == "tight":
        spare = format_bytes(verdict.headroom_bytes)
        return f"Tight on {verdict.gpu}: {spare} to spare as expected, none at worst"
    return f"Does not fit {verdict.gpu}: short by {format_bytes(verdict.missing_bytes)}"


def _reason(report: Report, verdict: Verdict) -> str:
    """The figures that decided, and the meter they are of."""
    margin = report.job.get("margin", 0)
    usable, allowed = format_bytes(verdict.usable_bytes), format_bytes(verdict.usable_bytes * (1 - margin))
    figures = f"{_needed(report, verdict)}; {usable} usable, {allowed} after the {100 * margin:g} % margin"
    if not verdict.missing_bytes:
        return f"{figures}: the margin stays free."
    return f"{figures}: up to {format_bytes(verdict.missing_bytes)} too much."


def _fuller(report: Report) -> Moment | None:
    """The phase beside the step that decides; none is written where none allocates as much as the step."""
    gpu = report.per_gpu
    if not any(size > gpu.allocated_bytes for size in gpu.phases.values()):
        return None
    fullest = max(gpu.moments, key=lambda each: each.device_bytes.high, default=None)
    return fullest if fullest and fullest.device_bytes.high > gpu.device_bytes.high else None


def _needed(report: Report, verdict: Verdict) -> str:
    """What has to fit: the device's figures, or what is needed of them, where that was looked for."""
    worst = fullest(report)
    if worst is not None and not _fuller(report):
        needed = verdict.usable_bytes - verdict.headroom_bytes
        if needed < worst.device_bytes and report.per_gpu.reserved_bytes.needs_sought:
            held = format_bytes(worst.device_bytes)
            return f"device memory: {format_bytes(needed)} needed, {held} held at {worst.name} with the trainer's cache"
        return f"device memory at {worst.name}: {format_bytes(needed)} expected, up to {_most(report, verdict)}"
    device, fuller = report.per_gpu.device_bytes, _fuller(report)
    if fuller is not None:
        expected, most = format_bytes(fuller.device_bytes.expected), format_bytes(fuller.device_bytes.high)
        return f"device memory in {fuller.name}: {expected} expected, up to {most}"
    if device.high <= words.needs_high(report.per_gpu):
        return f"device memory: {format_bytes(device.expected)} expected, up to {_most(report, verdict)}"
    needs = format_bytes(verdict.usable_bytes - verdict.headroom_bytes)
    return f"device memory: {needs} needed, up to {_most(report, verdict)}, with PyTorch's unused cache freed"


def _most(report: Report, verdict: Verdict) -> str:
    """The high figure that decides, and the phase that has it where that is not the step."""
    high = verdict.high_bytes
    where = next((each.name for each in report.per_gpu.moments if each.device_bytes.high == high), "")
    return format_bytes(high) + (f" in {where}" if where else "")


def remedies_table(remedies: Sequence[Remedy], width: int, host: int = 0) -> Iterator[Table]:
    """Each change with the new total, whether it then fits and what it costs; what to type, below it or in a list.
    ``host``: of a node's memory, for the job as it is."""
    columns = columns_of("> | change ~ | frees > | then needs > | fits | costs ~")
    rows: list[tuple[Cell, ...]] = []
    typed: list[tuple[Cell, ...]] = []
    for number, remedy in enumerate(remedies, start=1):
        figures = (format_bytes(remedy.frees_bytes), format_bytes(remedy.device_bytes))
        fits = Span(remedy.fits, STYLES[remedy.fits])
        rows.append((str(number), remedy.title, *figures, fits, words.remedy_cost(remedy, host)))
        lines = [Span(line, "dim") for line in words.to_type(remedy)]
        typed += [(str(number) if line is lines[0] else "", line) for line in lines]
        if width >= ROOMY:
            rows += [("", line, "", "", "", "") for line in lines]
    if width >= ROOMY:
        yield Table(columns, tuple(rows))
        return
    yield Table((*columns[:2], *columns[3:]), tuple((*row[:2], *row[3:]) for row in rows))
    yield Table((Column(right=True), Column("to type", wrap=True)), tuple(typed))
