"""What an approximation of compiled layers leaves open: a row with a high figure and nothing expected."""

from __future__ import annotations

from memplan.engine.ledger import Ledger
from memplan.engine.passes import TracedPass
from memplan.tables.kernels import NO_KERNELS


def enter_compiled(book: Ledger, traced: TracedPass) -> None:
    """At most the layers run as they would without the compiler, where graphs break: what their nodes save then."""
    plan = traced.plan
    if not plan.mode.kernels.compiled or plan.style == "no-grad":
        return
    eager = TracedPass(plan._replace(mode=plan.mode._replace(kernels=NO_KERNELS)))
    more = eager.saved_before[-1] - traced.saved_before[-1]
    transients = max(layer.forward.size for layer in eager.layers) - max(layer.forward.size for layer in traced.layers)
    book.add(
        "intermediates that are not fused",
        "activations",
        0,
        f"{plan.name}.layer-forward",
        f"{plan.name}.embedding-backward",
        template="0 to what eager layers save more",
        why="graph breaks and the partitioner's choices decide which intermediates outlive their kernel",
        source="torch 2.13 _functorch/partitioners.py: min_cut_rematerialization_partition",
        high=max(more, 0) + max(transients, 0),
    )
