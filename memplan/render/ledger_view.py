"""What ``--explain`` prints: the ledger, row by row, those alive at the peak first, largest first; and where each value
of a job came from, where a file or a framework said it.

What a term is, from the table of terms; and a job's own rows of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from memplan.engine.phases.first_step import FIRST
from memplan.lang import Name, language
from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, columns_of, definitions
from memplan.render.instants import instant_words
from memplan.report import LedgerRow, Report, plain
from memplan.tables.terms import Term
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


WORDS = {"option": "an option", "file": "the job file", "trainer": "the trainer's default", "default": "assumed"}
"""Where there is no more to say than the kind of source."""
WIDE = 28
"""Characters of a value that are shown."""


def origins_blocks(report: Report) -> list[Block]:
    """A line for each key that somebody said or assumed; the rest, at memplan's own defaults, in one sentence."""
    keys = [key for key, value in report.job.items() if value is not None and _is_said(report, key)]
    if not keys:
        return []
    rows = tuple((key, shown(report.job[key]), Span(origin(report, key), "dim")) for key in keys)
    left = [key for key, value in report.job.items() if value not in (None, {}, [], ()) and key not in keys]
    rest = [Prose(f"memplan's defaults: {', '.join(left)}.", "dim")] if left else []
    return [Heading("Where each value came from"), Table(columns_of("key | value | from ~"), rows), *rest]


def _is_said(report: Report, key: str) -> bool:
    return key in report.origins or report.sources.get(key, "default") != "default"


def origin(report: Report, key: str) -> str:
    """'train.yaml, line 3: max_length', 'TRL 1.16: …', 'an option', or 'assumed: why'."""
    source, text = report.sources.get(key, "default"), report.origins.get(key, "")
    return f"assumed: {text}" if text and source == "default" else text or WORDS[source]


def shown(value: Any) -> str:
    """A value in a cell: short, as YAML would have it."""
    if isinstance(value, dict):
        value = "{" + ", ".join(f"{key}: {shown(inner)}" for key, inner in value.items() if inner is not None) + "}"
    elif isinstance(value, (list, tuple)):
        value = f"[{', '.join(map(shown, value))}]"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= WIDE else f"{text[: WIDE - 1]}…"


REFERENCE = {"en": "MEMORY_ESTIMATION.md", "zh": "MEMORY_ESTIMATION.zh.md"}


def term_blocks(term: Term, report: Report | None) -> list[Block]:
    """The term, and with a report the rows of its categories."""
    term = _spoken(term)
    facts: list[tuple[Cell, Cell]] = [("formula", term.formula)]
    facts += [("alive", term.lifetime)] if term.lifetime else []
    facts += [("divided by", term.shards)] if term.shards else []
    facts += [("categories", ", ".join(map(words.category_title, term.categories)))] if term.categories else []
    facts += [("source", term.source), ("section", f"{REFERENCE[language()]}#{term.section}")]
    facts += [("see also", ", ".join(term.see))] if term.see else []
    blocks: list[Block] = [Heading(term.title, "strong"), Prose(term.what), definitions(facts)]
    if report is None:
        return blocks
    return [*blocks, *_of_job(term, report)]


def _spoken(term: Term) -> Term:
    """The term in the words of the language that is spoken, as its table has them."""
    if language() != "zh":
        return term
    own = {name: Name(getattr(term.zh, name)) for name in ("title", "formula", "lifetime", "shards")}
    return replace(term, **{name: text for name, text in own.items() if text})  # type: ignore[arg-type]


def _of_job(term: Term, report: Report) -> list[Block]:
    """The numbers of one job."""
    if not term.categories:
        return [Prose("This is a concept, not a kind of memory: no row of a job's ledger is of it.", "dim")]
    size = sum(report.per_gpu.by_category.get(category, 0) for category in term.categories)
    total, at = report.per_gpu.allocated_bytes, instant_words(report.per_gpu.peak_instant)[0]
    line = f"{format_bytes(size)} of {format_bytes(total)} allocated at the peak, {at}, on {report.per_gpu.rank}."
    return [
        Heading(f"In {report.model.name}, {report.job['method']}"),
        Prose(line),
        *ledger_blocks(report, term.categories),
    ]


def term_data(term: Term, report: Report | None) -> dict[str, Any]:
    """The term for programs; with a report, its rows."""
    names = ("key", "title", "what", "formula", "lifetime", "shards", "categories", "source", "section", "see")
    data = {name: list(value) if isinstance(value := getattr(term, name), tuple) else value for name in names}
    if report is not None:
        data["peak_bytes"] = sum(report.per_gpu.by_category.get(category, 0) for category in term.categories)
        data["ledger"] = term_rows(term, report)
    return data


def term_rows(term: Term, report: Report) -> list[dict[str, Any]]:
    """The job's rows of a term."""
    rows: list[dict[str, Any]] = [plain(row) for row in report.per_gpu.ledger if row.category in term.categories]
    return rows
