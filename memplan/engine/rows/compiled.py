"""What fused and compiled layers leave open: a row with a high figure and nothing expected."""

from __future__ import annotations

from memplan.engine.ledger import Ledger
from memplan.engine.pass_plan import PassPlan
from memplan.engine.passes import TracedPass, traced_pass
from memplan.tables.kernels import NO_KERNELS

WHY_COMPILED = "graph breaks and the partitioner's choices decide which intermediates outlive their kernel"
PARTITIONER = "torch 2.13 _functorch/partitioners.py: min_cut_rematerialization_partition"
WHY_PATCHED = "trainers patch all of these kernels, some of them, or none for a class of their own"
PATCHES = "liger-kernel 0.8.5 transformers/monkey_patch.py: switches of each patch; fms-acceleration patches fewer"
WHY_UNSLOTH = "it patches what it knows of a version of transformers and PEFT, and was not measured"
UNSLOTH = "unsloth 2026.8 models/llama.py: patch_peft_model"


def enter_compiled(ledger: Ledger, traced: TracedPass) -> None:
    """At most the layers and the loss run as they would without kernels or the compiler, where a class is not patched,
    graphs break or nobody compiles the loss: what their nodes save then, and the larger transients.
    """
    plan, other = traced.plan, unfused(traced.plan)
    if other is None:
        return
    eager = traced_pass(other)
    more = eager.saved_before[-1] - traced.saved_before[-1]
    transients = _largest_layer(eager) - _largest_layer(traced)
    loss = _most(eager) - _most(traced)
    fused = plan.mode.operators.kernels.adapters == "fused"
    why, source = (WHY_UNSLOTH, UNSLOTH) if fused else (WHY_PATCHED, PATCHES)
    if plan.mode.operators.kernels.compiled:
        why, source = WHY_COMPILED, PARTITIONER
    ledger.add(
        "intermediates that are not fused",
        "activations",
        0,
        f"{plan.name}.layer-forward",
        f"{plan.name}.embedding-backward",
        template="0 to what eager layers save more",
        why=why,
        source=source,
        high=max(more, 0) + max(transients, loss, 0),
    )


def unfused(plan: PassPlan) -> PassPlan | None:
    """The same pass without kernels or the compiler; None where there are none, and without a graph."""
    operators = plan.mode.operators
    plain = NO_KERNELS._replace(float8=operators.kernels.float8)
    if operators.kernels == plain or plan.style == "no-grad":
        return None
    loss = plan.head.loss._replace(head=plan.head.program.replace("compiled-", ""))
    mode = plan.mode._replace(operators=operators._replace(kernels=plain))
    return plan._replace(mode=mode, head=plan.head._replace(loss=loss))


def _largest_layer(traced: TracedPass) -> int:
    """The most within a layer, forward or backward."""
    return max(alive.size for layer in traced.layers for alive in (layer.forward, *layer.backward.values()))


def _most(traced: TracedPass) -> int:
    """The most within the tail, forward or backward."""
    tail = traced.tail
    return max(alive.size for alive in (*tail.forward.values(), *tail.backward.values()))
