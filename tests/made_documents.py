"""The parts of the documents that are made, not written: the tables of terms, and every figure that names its job.

Between the marks ``<!-- terms:begin -->`` and ``<!-- terms:end -->`` stand the tables of ``memplan/tables/terms.py``.
A comment ``<!-- figures: allocated, peak -->`` stands before a table whose second column holds changes to the job of
the fenced ``yaml`` block above it; the columns after that are computed from it.

``python tests/made_documents.py FILE…`` names the documents that are not up to date; ``--write`` brings them up to
date. A document whose name ends in ``.zh.md`` is Chinese.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.errors import UsageError, did_you_mean
from memplan.tables.terms import TERMS, Term
from memplan.units import GiB

if TYPE_CHECKING:
    from memplan.report import Report

FIGURES = re.compile(r"<!-- figures: ([^>]*?) -->")
DOCUMENTS = (
    "MEMORY_ESTIMATION.md",
    "MEMORY_ESTIMATION.zh.md",
    "docs/memory_estimation_guide.md",
    "docs/memory_estimation_guide.zh.md",
)
"""Relative to the root of a checkout."""

_HEADINGS = {
    "en": (("term", "formula", "alive", "divided by", "source"), ("concept", "rule", "source"), "memory", "concepts"),
    "zh": (("项", "公式", "存活期", "由什么切分", "来源"), ("概念", "规则", "来源"), "显存项", "概念"),
}


def reference_table(language: str) -> str:
    """The two tables of terms, ``en`` or ``zh``, as Markdown: kinds of memory, then concepts."""
    memory, concepts, memory_title, concepts_title = _HEADINGS[language]
    kinds = [_memory_row(term, language) for term in TERMS.values() if term.categories]
    others = [_concept_row(term, language) for term in TERMS.values() if not term.categories]
    return "\n\n".join(
        (f"**{memory_title}**", _table(memory, kinds), f"**{concepts_title}**", _table(concepts, others))
    )


def _memory_row(term: Term, language: str) -> tuple[str, ...]:
    zh = language == "zh"
    lifetime, shards = (term.zh.lifetime, term.zh.shards) if zh else (term.lifetime, term.shards)
    return (_link(term, zh), _formula(term, zh), lifetime, shards, term.source)


def _concept_row(term: Term, language: str) -> tuple[str, ...]:
    zh = language == "zh"
    return (_link(term, zh), _formula(term, zh), term.source)


def _link(term: Term, zh: bool) -> str:
    return f"[{term.zh.title if zh else term.title}](#{term.section})"


def _formula(term: Term, zh: bool) -> str:
    return (term.zh.formula if zh else "") or term.formula


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# -- figures ---------------------------------------------------------------------------------------------------------


def refresh(text: str, language: str) -> str:
    """The document with its tables and figures as they are now."""
    before, begin, rest = text.partition("<!-- terms:begin -->")
    _, end, after = rest.partition("<!-- terms:end -->")
    if end:
        text = f"{before}{begin}\n\n{reference_table(language)}\n\n{end}{after}"
    return _refresh_figures(text.split("\n"))


def _refresh_figures(lines: list[str]) -> str:
    base, columns = "", list[str]()
    inside: list[str] | None = None
    for number, line in enumerate(lines):
        if inside is not None:
            if line.startswith("```"):
                base, inside = "\n".join(inside), None
            else:
                inside.append(line)
        elif line.startswith("```yaml"):
            inside = []
        elif mark := FIGURES.fullmatch(line):
            columns = [column.strip() for column in mark.group(1).split(",")]
        elif not line.startswith("|"):
            columns = []
        elif columns and "`{" in line:
            lines[number] = _figure_row(line, base, columns)
    return "\n".join(lines)


def _figure_row(line: str, base: str, columns: list[str]) -> str:
    """A row of a figure table, computed: label, changes, then a cell for each column."""
    label, changes = (cell.strip() for cell in line.strip().strip("|").split("|")[:2])
    cells = job_figures(job_of(base, changes.strip("`")), columns)
    return "| " + " | ".join((label, changes, *cells)) + " |"


def job_of(base: str, changes: str) -> dict[str, Any]:
    """The job of a YAML block with the changes of a flow mapping; a change to null takes the key away."""
    import yaml

    job = {**(yaml.safe_load(base) or {}), **(yaml.safe_load(changes) or {})}
    return {key: value for key, value in job.items() if value is not None}


def job_figures(job: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """The cells of one job: a column is a key of ``COLUMNS``, or a category, whose bytes at the peak it shows.

    Raises UsageError for a column that is neither."""
    from memplan.reporting import build_report
    from memplan.resolve import resolve
    from memplan.spec.reading import read_job

    report = build_report(resolve(read_job(job)))
    return [COLUMNS[name](report) if name in COLUMNS else _category(name, report) for name in columns]


def _category(name: str, report: Report) -> str:
    known = {category for term in TERMS.values() for category in term.categories}
    if name not in known:
        raise UsageError(f"no column {name!r} of figures", did_you_mean(name, [*COLUMNS, *known]))
    return _gib(report.per_gpu.by_category.get(name, 0))


def _gib(size: int) -> str:
    """One unit for a whole column."""
    return f"{size / GiB:.2f} GiB"


def _rule(report: Report) -> str:
    from memplan.render.thumb_view import rule_terms
    from memplan.rule_of_thumb import subtotal

    return _gib(subtotal(rule_terms(report)))


COLUMNS: dict[str, Callable[[Report], str]] = {
    "allocated": lambda report: _gib(report.per_gpu.allocated_bytes),
    "gb": lambda report: f"{report.per_gpu.allocated_bytes / 1e9:.1f} GB",
    "device": lambda report: _gib(report.per_gpu.device_bytes.expected),
    "peak": lambda report: f"`{report.per_gpu.peak_instant}`",
    "rule": _rule,
}
"""Columns beside categories: the allocated peak, the same in GB, the device meter as expected, the peak's instant, the
rule of thumb without its margin."""


def language_of(name: str) -> str:
    """``zh`` for the name of a Chinese document, else ``en``."""
    return "zh" if name.endswith(".zh.md") else "en"


def main(arguments: Sequence[str]) -> int:
    """Check the documents named, or all of them; with ``--write`` bring them up to date. 1 when one was not."""
    write, names = "--write" in arguments, [name for name in arguments if name != "--write"]
    stale = 0
    for path in map(Path, names or DOCUMENTS):
        text = path.read_text(encoding="utf-8")
        fresh = refresh(text, language_of(path.name))
        if fresh != text:
            stale = 1
            sys.stderr.write(f"{path}: {'brought up to date' if write else 'not up to date'}\n")
            if write:
                path.write_text(fresh, encoding="utf-8")
    return 0 if write else stale


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
