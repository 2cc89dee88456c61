"""What an approximation of compiled layers leaves open: a row with a high figure and nothing expected."""

from __future__ import annotations

from memplan.engine.ledger import Ledger
from memplan.engine.passes import TracedPass
from memplan.tables.kernels import NO_KERNELS


def enter_compiled(book: Ledger, traced: TracedPass) -> None:
    """At most the layers and the loss run as they would without the compiler, where graphs break or nobody compiles the
    loss: what their nodes save then, and the larger transients.
    """
    plan = traced.plan
    if not plan.mode.kernels.compiled or plan.style == "no-grad":
        return
    program = plan.head.program.replace("compiled-", "")
    eager = TracedPass(
        plan._replace(mode=plan.mode._replace(kernels=NO_KERNELS), head=plan.head._replace(program=program))
    )
    more = eager.saved_before[-1] - traced.saved_before[-1]
    transients = max(layer.forward.size for layer in eager.layers) - max(layer.forward.size for layer in traced.layers)
    loss = _most(eager) - _most(traced)
    book.add(
        "intermediates that are not fused",
        "activations",
        0,
        f"{plan.name}.layer-forward",
        f"{plan.name}.embedding-backward",
        template="0 to what eager layers save more",
        why="graph breaks and the partitioner's choices decide which intermediates outlive their kernel",
        source="torch 2.13 _functorch/partitioners.py: min_cut_rematerialization_partition",
        high=max(more, 0) + max(transients, loss, 0),
    )


def _most(traced: TracedPass) -> int:
    """The most within the tail, forward or backward."""
    tail = traced.tail
    return max(alive.size for alive in (*tail.forward.values(), *tail.backward.values()))
