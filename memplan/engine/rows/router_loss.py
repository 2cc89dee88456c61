"""Rows of the routers' load-balancing loss: recorded logits from layer to tail, their gradients from tail to layer."""

from itertools import accumulate

from memplan.engine.layers.moe.load_balancing_loss import handing, logits_itemsize
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.held_rows import enter_held
from memplan.engine.passes import TracedPass

SOURCE = "transformers 5.23 models/mixtral/modeling_mixtral.py: load_balancing_loss_func; utils/output_capturing.py"
WAITING = "temporaries", "gradients of router logits"
WHY = "the load-balancing loss runs back before the layers do, and leaves all of them at once"


def enter_router_forward(ledger: Ledger, traced: TracedPass) -> None:
    """The logits of the layers before the one that makes the peak; the tail's own tape has those of all layers."""
    if not traced.plan.mode.router.how:
        return
    first = traced.forward_layer if traced.plan.style != "no-grad" else len(traced.layers) - 1
    sizes = [size for i, size in enumerate(logits_of(traced)[:first]) if not traced.layers[i].keeps_logits]
    instant = f"{traced.plan.name}.layer-forward"
    ledger.add("router logits, recorded", "activations", sum(sizes), at=instant).told(len(sizes), max(sizes, default=0))


def enter_router_backward(ledger: Ledger, traced: TracedPass) -> None:
    """Gradients of the logits of layers that have not run back yet; where they are views of one, all of it."""
    plan = traced.plan
    if plan.mode.router.how != "read":
        return
    sizes = (0 if plan.style_of(i) == "reentrant" else size for i, size in enumerate(logits_of(traced)))
    *below, every = accumulate(sizes, initial=0)
    held = {ledger.after(f"{plan.name}.final-norm-backward"): every}
    for i in traced.backward_layers:
        held |= dict.fromkeys(traced.all_instants(i), every if plan.mode.router.stacked else below[i])
    held[ledger.after(traced.end_of(0))] = 0
    things = {instant: {WAITING: size} if size else {} for instant, size in held.items()}
    enter_held(ledger, things, {WAITING[1]: ("layers that wait × T × E × bytes", WHY, SOURCE)})


def logits_of(traced: TracedPass) -> list[int]:
    """Bytes of the recorded logits of each layer; 0 without experts."""
    plan, sizes = traced.plan, []
    for run in plan.spec.runs:
        experts = handing(run.layer)
        size = plan.rows * plan.length * experts.count * logits_itemsize(experts, plan.mode) if experts else 0
        sizes += [-(-size // 512) * 512] * run.count
    return sizes
