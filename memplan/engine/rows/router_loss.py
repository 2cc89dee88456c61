"""Rows of the routers' load-balancing loss: recorded logits from layer to tail, their gradients from tail to layer."""

from memplan.engine.layers.moe.load_balancing_loss import handing, logits_itemsize
from memplan.engine.ledger import Ledger
from memplan.engine.passes import TracedPass

SOURCE = "transformers 5.23 models/mixtral/modeling_mixtral.py: load_balancing_loss_func; utils/output_capturing.py"


def enter_router_forward(ledger: Ledger, traced: TracedPass) -> None:
    """The logits of the layers before the one that makes the peak; the tail's own tape has those of all layers."""
    if not traced.plan.mode.router.how:
        return
    first = traced.forward_layer if traced.plan.style != "no-grad" else len(traced.layers) - 1
    sizes = [size for i, size in enumerate(logits_of(traced)[:first]) if not traced.layers[i].keeps_logits]
    instant = f"{traced.plan.name}.layer-forward"
    ledger.add("router logits, recorded", "activations", sum(sizes), at=instant).formula(
        "layers × T × E × bytes", len(sizes), max(sizes, default=0)
    ).since("the model's outputs hold the logits of every router until the loss is made", SOURCE)


def enter_router_backward(ledger: Ledger, traced: TracedPass) -> None:
    """Gradients of the logits of layers that have not run back yet: the loss left all of them at once."""
    plan = traced.plan
    if plan.mode.router.how != "read":
        return
    sizes = [0 if plan.style_of(i) == "reentrant" else size for i, size in enumerate(logits_of(traced))]
    born = ledger.after(f"{plan.name}.final-norm-backward")
    chosen = traced.backward_layers
    if plan.mode.router.stacked:
        _enter(
            ledger,
            range(len(sizes)),
            sum(sizes),
            born,
            traced.end_of(0),
            "views of one, which waits for the first layer",
        )
        return
    for position, i in enumerate(chosen):
        first = next(traced.layer_instants(i))[0]
        below = chosen[position + 1] if position + 1 < len(chosen) else -1
        for layers, dies in ((range(i, i + 1), ledger.before(first)), (range(below + 1, i), traced.end_of(i))):
            size = sum(sizes[j] for j in layers)
            if not size or (position == 0 and len(layers) == 1 and ledger.index[born] > ledger.index[dies]):
                continue
            _enter(ledger, layers, size, born, dies, "the load-balancing loss runs back before the layers do")


def _enter(ledger: Ledger, layers: range, size: int, born: str, dies: str, why: str) -> None:
    """A row of gradients that wait for these layers."""
    ledger.add(f"gradients of router logits, {_named(layers)}", "temporaries", size, born, dies).formula(
        "layers × T × E × bytes", len(layers), size // len(layers)
    ).since(why, SOURCE)


def _named(layers: range) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"


def logits_of(traced: TracedPass) -> list[int]:
    """Bytes of the recorded logits of each layer; 0 without experts."""
    plan, sizes = traced.plan, []
    for run in plan.spec.runs:
        experts = handing(run.layer)
        size = plan.rows * plan.length * experts.count * logits_itemsize(experts, plan.mode) if experts else 0
        sizes += [-(-size // 512) * 512] * run.count
    return sizes
