"""A trace for a screen: a table of phases, what each peak consists of, and, where asked, the estimate beside it;
and a measurement: measured beside estimated, by phase and by meter.

A trace beside the estimate of the same job, phase by phase and term by term: how formulas get fixed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.ranks import ledger_of
from memplan.measurement import Measurement, errors_of
from memplan.moments import phase_of
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Table, columns_of
from memplan.report import plain
from memplan.spec.recipe import Recipe
from memplan.tables.texts import texts_by_name
from memplan.trace.result import Trace
from memplan.units import format_bytes, format_count, words_of

TERMS = {name: words_of(categories) for name, categories in texts_by_name(__file__).items()}
"""Categories by the term that both sides know: a trace cannot tell a recomputed activation from a temporary."""
NOT_TRACED = ("workspaces",)
"""What only a real card has: left out of the estimate here."""


@dataclass(slots=True, eq=False)
class TermRow:
    """One term at the peak of a phase, or the phase as a whole."""

    phase: str
    term: str
    """``total`` for the phase itself."""
    traced_bytes: int
    estimated_bytes: int

    @property
    def difference(self) -> float:
        """Estimated over traced, less one; of a term that the trace has not, infinite."""
        if self.traced_bytes:
            return self.estimated_bytes / self.traced_bytes - 1
        return float("inf") if self.estimated_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The JSON; no difference is given in terms of nothing."""
        share = self.difference if self.traced_bytes else None
        return {**plain(self), "difference": share}


def compare(trace: Trace, recipe: Recipe) -> list[TermRow]:
    """Every phase with its terms; each side at its own peak within the phase."""
    ledger = ledger_of(recipe)
    rows = []
    for phase in trace.phases:
        estimated = _at_peak(ledger, phase.name)
        rows.append(TermRow(phase.name, "total", phase.allocated_bytes, sum(estimated.values())))
        traced = dict(phase.by_category)
        for term, members in TERMS.items():
            pair = [sum(side.pop(member, 0) for member in members) for side in (traced, estimated)]
            if any(pair):
                rows.append(TermRow(phase.name, term, *pair))
        rest = sum(traced.values()), sum(estimated.values())
        if any(rest):
            rows.append(TermRow(phase.name, "rest", *rest))
    return rows


def _at_peak(ledger: Ledger, phase: str) -> dict[str, int]:
    """The ledger's categories at the largest instant of a phase."""
    totals = ledger.totals()
    at = max((i for i, instant in enumerate(ledger.schedule) if phase_of(instant) == phase), key=totals.__getitem__)
    found = dict(ledger.by_category(ledger.schedule[at]))
    for category in NOT_TRACED:
        found.pop(category, None)
    return found


ON_CPU = "storages tracked on the CPU: nothing is reserved there, and no driver counts"
NAMES = {"forward": "forward, loss", "backward": "backward", "step": "optimizer step", "evaluate": "evaluation"}
SMALLEST_SHARE = 0.001
"""Of a phase's peak: what is less is compared in bytes, as a share of next to nothing says nothing."""
CPU_REMARK = "fake CPU tensors with CUDA's choices: no compiler was found to make fake CUDA tensors with"


def trace_blocks(trace: Trace, compared: Sequence[TermRow] = ()) -> list[Block]:
    """Phases, categories, comparison, and what it was traced with."""
    job = trace.job
    title = f"trace: {job.get('method')} with {job.get('optimizer')}, {format_count(trace.parameters)} parameters"
    blocks: list[Block] = [Heading(title, "strong"), _phases(trace), Heading("At the peaks"), _categories(trace)]
    if compared:
        blocks += [Heading("Traced and estimated"), _comparison(compared)]
    versions = ", ".join(f"{name} {version}" for name, version in trace.versions.items())
    blocks += [Heading("How"), Prose(f"two steps on fake tensors, the second shown; {versions}; {trace.seconds:.0f} s")]
    if trace.device == "cpu":
        blocks.append(Prose(CPU_REMARK, "warn"))
    return blocks


def _phases(trace: Trace) -> Table:
    columns = columns_of("phase | allocated > | operation | module ~")
    rows: list[tuple[Cell, ...]] = [
        (NAMES[phase.name], format_bytes(phase.allocated_bytes), phase.operation, phase.module)
        for phase in trace.phases
    ]
    rows.append(("between steps", format_bytes(trace.steady_bytes), "", ""))
    return Table(columns, tuple(rows))


def _categories(trace: Trace) -> Table:
    """One column for each phase; the largest first."""
    names = dict.fromkeys(name for phase in trace.phases for name in phase.by_category)
    ordered = sorted(names, key=lambda name: -max(phase.by_category.get(name, 0) for phase in trace.phases))
    columns = (Column("category"), *(Column(phase.name, right=True) for phase in trace.phases))
    rows = [
        (name.replace("_", " "), *(_size(phase.by_category.get(name, 0)) for phase in trace.phases)) for name in ordered
    ]
    return Table(columns, tuple(rows))


def _size(count: int) -> str:
    return format_bytes(count) if count else "-"


def _difference(row: TermRow, peak: int) -> str:
    """A share of the term, or bytes where the term is next to nothing of the phase's peak."""
    if not row.traced_bytes:
        return "not traced"
    if row.traced_bytes >= SMALLEST_SHARE * peak:
        return f"{row.difference:+.3%}"
    more = row.estimated_bytes - row.traced_bytes
    return f"{'-' if more < 0 else '+'}{format_bytes(abs(more))}" if more else "none"


def _comparison(compared: Sequence[TermRow]) -> Table:
    columns = columns_of("phase | term | traced > | estimated > | difference >")
    peaks = {row.phase: row.traced_bytes for row in compared if row.term == "total"}
    rows = [
        (
            NAMES[row.phase] if row.term == "total" else "",
            row.term,
            _size(row.traced_bytes),
            _size(row.estimated_bytes),
            _difference(row, peaks[row.phase]),
        )
        for row in compared
    ]
    return Table(columns, tuple(rows))


def rows(found: Measurement) -> list[dict[str, Any]]:
    """One line for each phase and meter."""
    return [
        {"what": what, "measured_bytes": measured, "estimated_bytes": estimated}
        for what, (estimated, measured) in errors_of(found).items()
    ]


def blocks(found: Measurement) -> list[Block]:
    """What ran, what it took, on what."""
    shown: list[Block] = [Heading(f"measured: {found.id}", "strong")]
    if found.measured:
        shown.append(_table(found))
    if found.largest_batch_size is not None:
        shown.append(Prose(f"the largest batch_size that fits: {found.largest_batch_size}"))
    if found.out_of_memory is not None:
        lost = found.out_of_memory
        size = f" at batch_size {lost['batch_size']}"
        shown.append(Prose(f"out of memory in {lost['phase']}, step {lost['step']}{size}", "warn"))
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    weights = "random weights" if found.weights == "random" else f"weights of {found.weights}"
    device = found.hardware["device"]
    ran = f"step {found.steps} of {found.steps} on {device}, {weights}; {found.meter}; {versions}"
    shown += [Heading("How"), Prose(ran)]
    if device == "cpu":
        shown.append(Prose(ON_CPU))
    return shown


def _table(found: Measurement) -> Table:
    columns = columns_of("what | measured > | estimated > | difference >")
    lines: list[tuple[Cell, ...]] = [
        (NAMES.get(what, what), format_bytes(measured), format_bytes(estimated), f"{estimated / measured - 1:+.2%}")
        for what, (estimated, measured) in errors_of(found).items()
    ]
    return Table(columns, tuple(lines))
