"""Routers as programs on the tape: from hidden states to the weights and the indices of the chosen experts.
By softmax (Mixtral, Qwen3-MoE, OLMoE), sigmoid and groups (DeepSeek-V3, GLM-4-MoE), or of the chosen alone (GPT-OSS).

Variables live as long as in ``modeling_<type>.py`` (transformers 5.23): groups and masks until the router returns, the
logits until the block does."""

from collections.abc import Callable
from typing import NamedTuple

from memplan.engine.layers.lora import merged_stack, stack_sides
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.shared_inputs import ROUTER_LOGITS
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Tensor
from memplan.spec.parts import Experts, Norm

"""Where they stand in ``Pass.shared`` when the model's forward hands them out."""


class Choice(NamedTuple):
    """What a router returns."""

    logits: Tensor
    weights: Tensor
    chosen: Tensor
    """Indices of the experts."""


def route(p: Pass, spec: Experts, x: Tensor) -> Choice:
    """Run the router."""
    choice = ROUTERS[spec.routing.program](p, spec, x)
    if p.mode.router.how:
        p.shared[ROUTER_LOGITS] = choice.logits
    return choice


def product(p: Pass, spec: Experts, x: Tensor) -> Tensor:
    """The logits: in the model's dtype, or of copies in fp32 of hidden states and weight."""
    tape, routing, out = p.tape, spec.routing, p.dim("E", spec.count)
    adapter = p.mode.adapter
    if adapter and adapter.router:
        name, shape = spec.router.name, (spec.count, spec.router.inputs)
        weight = merged_stack(p, name, shape, stack_sides(p, name, shape, adapter.rank))
    else:
        weight = p.param(spec.router.name, spec.count * spec.router.inputs, routing.stored_itemsize)
    bias = p.param(spec.router.name + ".bias", spec.count) if spec.router.bias else None
    if routing.product == "own":
        return ops.linear(tape, x, weight, out, "router logits", bias)
    autocast = tape.autocast
    if routing.product == "fp32-always":
        tape.autocast = 0
    wide = ops.cast(tape, x, ops.FP32, "router inputs in fp32")
    if weight.itemsize == ops.FP32:
        logits = ops.linear(tape, wide, weight, out, "router logits", bias)
    else:
        logits = ops.matmul(tape, wide, ops.cast(tape, weight, ops.FP32, "router weights"), out, "router logits")
    tape.autocast = autocast
    return logits


def choose(p: Pass, spec: Experts, x: Tensor) -> Choice:
    """Scores over all experts, then the best ``active`` of them (or of those in the best groups)."""
    tape, routing, before = p.tape, spec.routing, x.itemsize
    logits = product(p, spec, x)
    chosen = p.dim("k", spec.active)
    if routing.scores == "logits":
        return _softmax_of_chosen(p, spec, logits, before)
    scores = _scores(p, spec, logits)
    if routing.hashed:
        return _of_token(p, spec, logits, scores)
    pool = scores
    if routing.corrected:
        pool = ops.add(tape, scores, Tensor(scores.dim, ops.FP32, None), "corrected scores")
    held: list[Tensor] = []
    if routing.groups:
        pool = _within_groups(p, spec, pool, held)
        scores = scores if routing.corrected else pool
    weights, index = routing_ops.top_k(tape, pool, chosen)
    del pool  # ``scores_for_choice`` is read by topk alone (DeepseekV3TopkRouter.forward)
    if routing.corrected:
        del weights  # ``torch.topk(…)[1]``: values go, ``scores.gather`` makes the weights
        weights = routing_ops.gather(tape, scores, index, chosen)
    weights = _normalised(p, spec, weights)
    if routing.scaled:
        weights = ops.scale(tape, weights, "routing weights")
    if routing.narrowed:
        width = logits.itemsize if routing.narrowed == "logits" else before
        weights = ops.cast(tape, weights, width, "routing weights")
    return Choice(logits, weights, index)


def _of_token(p: Pass, spec: Experts, logits: Tensor, scores: Tensor) -> Choice:
    """The experts of each token's id, by a table."""
    chosen = p.dim("k", spec.active)
    index = routing_ops.indices(p.tape, chosen)
    weights = _normalised(p, spec, routing_ops.gather(p.tape, scores, index, chosen))
    return Choice(logits, ops.scale(p.tape, weights, "routing weights"), index)


def _scores(p: Pass, spec: Experts, logits: Tensor) -> Tensor:
    """Softmax (in fp32) or sigmoid over all experts, whose result is saved."""
    tape, routing = p.tape, spec.routing
    if routing.scores == "softmax":
        source = logits
        if routing.widened or not p.mode.numerics.half_to_float:
            source = ops.cast(tape, logits, ops.FP32, "router logits")
        return _softmax(p, source)
    wide = routing.widened or (routing.scores == "square-root" and tape.autocast)
    source = ops.cast(tape, logits, ops.FP32, "router logits") if wide else logits
    if routing.scores == "square-root":
        source = ops.unary(tape, source, "router scores")
    return ops.unary(tape, source, "router scores", saves="result")


def _softmax(p: Pass, x: Tensor) -> Tensor:
    """``softmax(dtype=float32)``, which saves its result in fp32 whatever it reads."""
    tape, dim, itemsize = p.tape, x.dim, x.itemsize
    out = tape.new(dim, ops.FP32, "router probabilities")
    node = tape.node((x,), (out,), lambda t, g: (t.gradient((dim, itemsize)),))
    return Tensor(dim, ops.FP32, out.storage, node)


def _within_groups(p: Pass, spec: Experts, scores: Tensor, held: list[Tensor]) -> Tensor:
    """Scores with those outside the best groups masked out; what the router's locals hold goes into ``held``."""
    tape, routing = p.tape, spec.routing
    groups, all_experts = p.dim("G", routing.groups), p.dim("E", spec.count)
    if routing.group_score == "two":
        best, index = routing_ops.top_k(tape, scores, p.dim("2G", 2 * routing.groups))
        del index  # ``topk(2, dim=-1)[0]`` keeps the values alone (DeepseekV3TopkRouter.forward)
        worth = routing_ops.reduce(tape, best, groups, "group scores")
        del best  # a temporary of ``topk(2, dim=-1)[0].sum(dim=-1)``
    else:
        worth, index = routing_ops.top_k(tape, scores, groups)
        del index
    kept = routing_ops.indices(tape, p.dim("g", routing.kept_groups))
    mask = tape.new(groups, worth.itemsize, "group masks")
    held += [worth, kept, mask]
    if routing.groups > 1:
        held.append(tape.new(all_experts, worth.itemsize, "expert masks"))
    chosen = tape.new(all_experts, 1, "expert masks")
    others = tape.new(all_experts, 1, "expert masks")
    del chosen  # ``~score_mask.bool()``: the mask before it is negated is a temporary
    return routing_ops.masked_fill(tape, scores, others, "router scores")


def _normalised(p: Pass, spec: Experts, weights: Tensor) -> Tensor:
    """Weights over their sum."""
    tape, how = p.tape, spec.routing.normalize
    if how == "no":
        return weights
    total = routing_ops.reduce(tape, weights, p.dim("1", 1), "routing sums")
    if how.startswith("epsilon"):
        total = ops.scale(tape, total, "routing sums", shares_gradient=True)
    if how == "clamped":
        total = ops.unary(tape, total, "routing sums")
    return routing_ops.divide(tape, weights, total, in_place=how in ("in-place", "epsilon"))


def _softmax_of_chosen(p: Pass, spec: Experts, logits: Tensor, before: int) -> Choice:
    """Top-k of the logits, and a softmax over the chosen alone."""
    tape, routing = p.tape, spec.routing
    if routing.widened:
        logits = ops.cast(tape, logits, ops.FP32, "router logits")
    values, index = routing_ops.top_k(tape, logits, p.dim("k", spec.active))
    weights = ops.softmax(tape, values, "routing weights", to_fp32=routing.softmax_itemsize == ops.FP32)
    if routing.narrowed:
        weights = ops.cast(tape, weights, before, "routing weights")
    return Choice(logits, weights, index)


def scatter(p: Pass, spec: Experts, x: Tensor) -> Choice:
    """Llama 4: the chosen logits among minus infinity, through a sigmoid in fp32: a score for every expert."""
    tape, every = p.tape, p.dim("E", spec.count)
    logits = product(p, spec, x)
    values, index = routing_ops.top_k(tape, logits, p.dim("k", spec.active))
    filled = tape.new(every, logits.itemsize, "router scores")
    node = tape.node((values,), (index,), ops.own(values))
    filled = Tensor(every, logits.itemsize, filled.storage, node)
    scores = ops.unary(tape, ops.cast(tape, filled, ops.FP32, "router scores"), "router scores", saves="result")
    return Choice(logits, ops.cast(tape, scores, filled.itemsize, "router scores"), index)


def sparse_mixer(p: Pass, spec: Experts, x: Tensor) -> Choice:
    """PhiMoE: two experts, one after the other, each the largest of what a threshold leaves, with noise."""
    tape, every, one = p.tape, p.dim("E", spec.count), p.dim("1", 1)
    logits = product(p, spec, x)
    first, first_index, held = _drawn(p, spec, logits, logits)
    dim, size = every, logits.itemsize
    masked = tape.new(dim, size, "router scores")
    node = tape.node((logits,), (first_index,), lambda t, g: (t.gradient((dim, size)),))
    masked = Tensor(dim, size, masked.storage, node)
    second, _, more = _drawn(p, spec, logits, masked)
    weights = ops.concatenate(tape, (first, second), p.dim("k", 2), "routing weights")
    index = routing_ops.indices(tape, p.dim("k", 2))
    del held, more, one  # locals of ``sparsemixer`` (transformers phimoe)
    return Choice(logits, weights, index)


def _drawn(p: Pass, spec: Experts, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The expert drawn, its weight, and what the router's locals hold of it until the end.

    ``PhimoeMultiplier`` saves the weight before, the index, the softmax and a mask."""
    tape, every, one, size = p.tape, p.dim("E", spec.count), p.dim("1", 1), logits.itemsize
    wide = ops.FP32 if tape.autocast else size
    threshold = [tape.new(every, size, "router thresholds"), tape.new(every, 1, "expert masks")]
    factor = threshold.pop(0)
    masked = routing_ops.masked_fill(tape, scores, threshold[0], "router scores")
    index = routing_ops.indices(tape, one)
    gates = ops.softmax(tape, masked, "router probabilities", to_fp32=wide != size)
    del masked  # ``masked_gates = logits.masked_fill(…)`` is rebound by its softmax
    weight = routing_ops.gather(tape, gates, index, one)
    heun = tape.new(one, gates.itemsize, "routing weights")
    dim, itemsize = gates.dim, gates.itemsize
    out = tape.new(one, itemsize, "routing weights")
    node = tape.node(
        (logits, weight),
        (weight, index, gates, heun),
        lambda t, g: (t.gradient((dim, itemsize)), t.gradient((one, itemsize))),
    )
    return Tensor(one, itemsize, out.storage, node), index, [factor, threshold[0], gates, weight, heun]


def normed(p: Pass, spec: Experts, x: Tensor) -> Choice:
    """Gemma 4: a norm without weights, a scale of each channel and a number, a softmax over all in fp32, the best over
    their sum, times a scale of each expert. Probabilities are what the layer still names."""
    tape, chosen, hidden = p.tape, p.dim("k", spec.active), spec.router.inputs
    bare = Norm(name="norm", width=hidden, kind="rms-power-bare")
    inputs = ops.mul(tape, norm(p, bare, x, "h"), p.param("router.scale", hidden), "scaled router inputs")
    inputs = ops.scale(tape, inputs, "scaled router inputs")
    logits = project(p, inputs, spec.router, "E", "router logits")
    source = logits if p.mode.numerics.half_to_float else ops.cast(tape, logits, ops.FP32, "router logits")
    probabilities = _softmax(p, source)
    del source  # ``softmax(router_logits, dtype=torch.float32)`` casts in itself: no local
    weights, index = routing_ops.top_k(tape, probabilities, chosen)
    weights = _normalised(p, spec, weights)
    scale = p.param("router.per_expert_scale", spec.count)
    scales = routing_ops.gather_rows(tape, scale, chosen, "expert scales", index)
    return Choice(probabilities, ops.mul(tape, weights, scales, "routing weights"), index)


ROUTERS: dict[str, Callable[[Pass, Experts, Tensor], Choice]] = {
    "top-k": choose,
    "scatter": scatter,
    "sparse-mixer": sparse_mixer,
    "noisy-mixer": sparse_mixer,
    "normed": normed,
}
"""A program for each value of ``Routing.program``."""
