"""A trace beside the estimate of the same job, phase by phase and term by term: how formulas get fixed."""

from dataclasses import dataclass
from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.ranks import ledger_of
from memplan.moments import phase_of
from memplan.report import plain
from memplan.spec.recipe import Recipe
from memplan.trace.result import Trace

TERMS = {
    "weights": ("parameters", "adapters", "reference"),
    "gathered weights": ("gathered_parameters",),
    "buffers": ("buffers",),
    "autocast copies": ("autocast_weights",),
    "optimizer states": ("optimizer_states", "master_weights"),
    "gradients": ("gradients",),
    "optimizer temporaries": ("optimizer_temporaries",),
    "activations, temporaries": ("activations", "recomputation", "temporaries"),
    "logits": ("logits",),
    "batch": ("batch",),
}
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
