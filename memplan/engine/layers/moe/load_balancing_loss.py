"""The load-balancing loss of a mixture of experts as a program on the tape, and what of it layers and tail hand on.

``load_balancing_loss_func`` (transformers 5.23, models/mixtral/modeling_mixtral.py, the same in every class that has
one): layer by layer a softmax of the recorded logits, the chosen experts counted, probabilities summed in fp32. Its
sums of one number for each expert are not counted. Letters, per token: E experts, k experts of a token."""

from functools import lru_cache

from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Node, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Experts

LABEL = "router logits of all layers"
PROBABILITIES = "probabilities of the load-balancing loss"


def handing(layer: Layer) -> Experts | None:
    """The experts of a layer whose router hands out its logits: one that looks them up by the token's id does not."""
    experts: Experts | None = getattr(layer, "experts", None)  # a tower's blocks have none
    return None if experts is None or experts.routing.hashed else experts


@lru_cache(maxsize=64)
def logits_itemsize(experts: Experts, mode: Mode) -> int:
    """Bytes of an element of what the router records."""
    tape = Tape(mode.numerics.autocast)
    tape.grad_enabled = False
    p = Pass(tape, mode, 1, 1)
    x = tape.new(p.dim("h", experts.router.inputs), mode.residual_itemsize, "residual stream")
    from memplan.engine.layers.moe.routing import route

    return route(p, experts, x).logits.itemsize


def all_logits(p: Pass, spec: ModelSpec) -> list[Tensor]:
    """The recorded logits of every layer with experts, as the tail finds them. What a reentrant checkpoint recorded
    has no graph: its forward runs without one."""
    mode, found = p.mode, []
    for run in spec.runs if mode.router.how else ():
        experts = handing(run.layer)
        if experts is None:
            continue
        dim, itemsize = p.dim("E", experts.count), logits_itemsize(experts, mode)
        for _ in range(run.count):
            x = p.tape.new(dim, itemsize, LABEL)
            node = (
                Node(p.tape, [], (), lambda t, grads: ()) if p.tape.grad_enabled and not mode.router.detached else None
            )
            found.append(Tensor(dim, itemsize, x.storage, node))
    return found


def load_balancing_loss(p: Pass, spec: ModelSpec) -> Tensor:
    """``load_balancing_loss_func``: what of the last layer its locals name lives until it returns."""
    if p.mode.router.stacked:
        return _stacked(p, spec)
    tape, mode = p.tape, p.mode
    experts = next(filter(None, (handing(run.layer) for run in spec.runs)))
    every, chosen = Dim("E", experts.count), p.dim("k", experts.active)
    mask = tape.new(p.dim("1", 1), ops.FP32, "mask of the load-balancing loss") if mode.router.masked else None
    total: Tensor | None = None
    for logits in p.routers:
        weights = ops.softmax(
            tape, logits, PROBABILITIES, to_fp32=tape.autocast > 0, half_to_float=mode.numerics.half_to_float
        )
        best, index = routing_ops.top_k(tape, weights, chosen)
        counted = tape.new(chosen, 4, "routing indices")
        del counted  # a temporary of ``torch.histc(selected_experts.reshape(-1).to(histc_dtype), …)``
        wide = ops.cast(tape, weights, ops.FP32, PROBABILITIES)
        if mask is not None:
            wide = ops.with_constant(tape, wide, ops.FP32, PROBABILITIES, mask)
        of_layer = routing_ops.reduce(tape, wide, every, "sums of probabilities")
        del wide  # a temporary of ``routing_weights.float().sum(dim=0)``
        total = of_layer if total is None else ops.add(tape, total, of_layer, "sums of probabilities")
        del of_layer  # a temporary of ``router_prob_sum + …``
    assert total is not None
    # of the last layer ``routing_weights``, ``selected_experts`` and ``layer_gate`` are locals to the end
    del weights, best, index, logits
    return routing_ops.reduce(tape, total, Dim("1", 1), "loss")


def _stacked(p: Pass, spec: ModelSpec) -> Tensor:
    """The same over all layers at once, as transformers makes it up to 5.12: their logits are joined, so that their
    gradients are views of one; the chosen experts are a one-hot mask of int64, which is averaged in fp32. With padding,
    masks of the tokens have the sizes of both."""
    tape, mode, layers = p.tape, p.mode, len(p.routers)
    experts = next(filter(None, (handing(run.layer) for run in spec.runs)))
    every = Dim("Lm·T·E", layers * p.tokens * experts.count)
    hot = Dim("Lm·T·k·E", every.elements * experts.active)
    joined = ops.concatenate(tape, p.routers, every, LABEL)
    weights = ops.softmax(
        tape, joined, PROBABILITIES, to_fp32=tape.autocast > 0, half_to_float=mode.numerics.half_to_float
    )
    best, index = routing_ops.top_k(tape, weights, Dim("Lm·T·k", layers * p.tokens * experts.active))
    masks = [tape.new(hot, routing_ops.INDEX, "one-hot mask of chosen experts")]
    if mode.router.masked:
        masks.append(tape.new(hot, routing_ops.INDEX, "mask of tokens and experts"))
    averaged = [tape.new(hot, ops.FP32, "one-hot mask in fp32") for _ in masks]
    del averaged
    if mode.router.masked:
        masks.append(tape.new(every, routing_ops.INDEX, "mask of tokens and experts"))
        weights = ops.with_constant(tape, weights, weights.itemsize, PROBABILITIES, masks[-1])
    summed = routing_ops.reduce if mode.router.masked else routing_ops.sum_groups  # a mean divides its gradient
    sums = summed(tape, weights, Dim("E", experts.count), "sums of probabilities")
    del masks, best, index, joined, weights  # locals of load_balancing_loss_func up to 5.12
    return routing_ops.reduce(tape, sums, Dim("1", 1), "loss")
