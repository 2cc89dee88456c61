"""Mixtures of experts: router, dispatch, grouped matmuls of the local experts, combine (megatron-core 0.14
transformer/moe; TransformerEngine 2.11 pytorch/permutation.py, module/grouped_linear.py).

Letters: k experts of a token, E experts in all, D tokens that a rank sends, R those that its experts receive, f the
experts' width on this rank."""

from typing import NamedTuple

from memplan.engine.megatron import te
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import Held, Product, Step, Steps, made_again, summed
from memplan.engine.megatron.steps import kept as kept_by_adapter
from memplan.engine.megatron.te import activation
from memplan.spec.parts import Bare, Experts, FeedForward

ROUTER = "megatron-core 0.14 transformer/moe/router.py, moe_utils.py: topk_routing_with_score_function"
DISPATCHER = "megatron-core 0.14 transformer/moe/token_dispatcher.py: MoEAlltoAllTokenDispatcher"
GROUPED = "TransformerEngine 2.11 pytorch/module/grouped_linear.py: _GroupedLinear"
EXPERT_INPUT, ACTIVATED = "tokens of the experts", "input of the experts' second matmul"


class Routed(NamedTuple):
    """Tokens on their way."""

    sent: int
    """D: token copies that this rank sends."""
    received: int
    """R: token copies that its experts work on."""
    local_experts: int


def routed(s: Shape, experts: Experts) -> Routed:
    """Token copies of one micro-batch.

    Without a capacity, none is dropped: t·k are sent, and on average as many come back for each rank of the
    expert-tensor group; ``moe_expert_imbalance`` is how much more the fullest rank receives. With one, at most
    ⌈t·k/E·capacity⌉ go to each expert; padded to it, exactly so many."""
    capacity = s.settings.moe_expert_capacity_factor
    sent = s.local * experts.active
    if capacity is not None:
        of_each = ceil_div_float(s.local * experts.active * capacity / experts.count)
        cut = of_each * experts.count
        sent = cut if s.settings.moe_pad_expert_input_to_capacity else min(sent, cut)
    spread = (
        1.0 if capacity is not None and s.settings.moe_pad_expert_input_to_capacity else s.settings.moe_expert_imbalance
    )
    limit = sent * s.expert if capacity is None else of_each * experts.count
    received = min(int(sent * spread), limit) * s.expert_tensor
    return Routed(sent, received, max(1, experts.count // s.expert))


def halves(experts: Experts) -> tuple[tuple[Bare, ...], tuple[Bare, ...]]:
    """The stacked parameters of the first products, and of the second ones."""
    middle = ceil_div_float(len(experts.stacked) / 2)
    return experts.stacked[:middle], experts.stacked[middle:]


def ceil_div_float(value: float) -> int:
    """The next whole number."""
    whole = int(value)
    return whole + (value > whole)


def mixture(s: Shape, part: FeedForward, experts: Experts) -> Steps:
    """Norm, router, dispatch, shared experts, local experts, combine."""
    way = routed(s, experts)
    steps = (
        te.norm(s, "router-norm", "the feed-forward's norm"),
        _router(s, experts),
        _dispatch(s, way),
        *(_shared(s, part) if part.shared else ()),
        *_experts(s, experts, way),
        _combine(s, way),
    )
    return _recomputed(s, steps)


def _router(s: Shape, experts: Experts) -> Step:
    """Its input is kept, scores in fp32 and the map of choices; the dispatcher holds map and weights."""
    t, count, active = s.local, experts.count, experts.active
    scores = (
        Held("router's scores", "t·E·(4 + e + 1)", (t, count, 4 + s.itemsize + 1)),
        Held("router's choices", "t·k·12", (t, active, 12)),
        Held("places of the sent tokens", "t·(2·E + 1)·4", (t, 2 * count + 1, 4)),
    )
    return Step(
        "router",
        kept=(te.stream(s, "normalised input of the router and the experts"), *scores),
        backward=(
            te.stream(s, te.STREAM_GRADIENT),
            te.stream(s, "gradient of the router's input"),
            te.stream(s, "their sum"),
        ),
        source=ROUTER,
    )


def _sent(s: Shape, name: str, way: Routed) -> Held:
    return Held(name, "D·h·e", (way.sent, s.hidden, s.itemsize))


def _received(s: Shape, name: str, way: Routed) -> Held:
    return Held(name, "R·h·e", (way.received, s.hidden, s.itemsize))


def _crosses(s: Shape) -> bool:
    return s.expert > 1 or s.expert_tensor > 1


def _held_over_experts(s: Shape, way: Routed) -> tuple[Held, ...]:
    """The layer's local variables: tokens as they were sent, and as they came where they are sorted anew."""
    sent = _gathered(s) if s.settings.moe_token_dispatcher_type == "allgather" else _sent(s, "sent tokens", way)
    came = (_received(s, "received tokens, unsorted", way),) if _sorts(s, way) and _crosses(s) else ()
    return (sent, *came)


def _gathered(s: Shape) -> Held:
    ranks = s.expert * s.expert_tensor
    return Held("tokens of all ranks, gathered", "ranks·t·h·e", (ranks, s.local, s.hidden, s.itemsize))


def _sorts(s: Shape, way: Routed) -> bool:
    return way.local_experts > 1 and s.settings.moe_token_dispatcher_type == "alltoall"


def _dispatch(s: Shape, way: Routed) -> Step:
    gradients = [_received(s, "gradient of the received tokens", way), _sent(s, "gradient of the sent tokens", way)]
    return Step(
        "dispatch",
        forward=_held_over_experts(s, way),
        backward=(te.stream(s, te.STREAM_GRADIENT), *gradients),
        source=DISPATCHER,
    )


def _experts(s: Shape, experts: Experts, way: Routed) -> Steps:
    width, wide = experts.intermediate // s.expert_tensor, 2 if experts.gated else 1
    over, e = _held_over_experts(s, way), s.itemsize
    gradient = te.stream(s, te.STREAM_GRADIENT)
    up, down = (s.product(half, expert=True) for half in halves(experts))
    weight = Held("weights of the received tokens", "R·e", (way.received, e))
    inner = Held("gradient of the second matmul's input", "R·f·e", (way.received, width, e))
    both = Held("gradient of gate and up", "R·2·f·e" if experts.gated else "R·f·e", (way.received, wide * width, e))
    output, came = _received(s, "the experts' output", way), _received(s, "gradient of the experts' output", way)
    first = Step(
        "experts-fc1",
        kept=(*_input(up, Held(EXPERT_INPUT, "R·h·e", (way.received, s.hidden, s.saved), doubt=s.doubt)), weight),
        forward=(
            *over,
            *summed(up, both._replace(name="gate and up")),
            *te.entering(s, up, _received(s, "the experts' input", way)),
        ),
        backward=(
            gradient,
            both,
            *te.quantised(s, both),
            *(_received(s, "gradient of the experts' input", way),) * (2 if up.rank else 1),
            *(te.weight_gradient(s, width * wide, s.hidden) if up.whole else ()),
        ),
        source=GROUPED,
    )
    act = activation(s, way.received, width, experts.gated, "experts-activation", weighted=True)
    act = act._replace(
        forward=over,
        kept=tuple(
            each._replace(name="gate and up of the experts", template="R·2·f·e" if experts.gated else "R·f·e")
            for each in act.kept
        ),
    )
    act = act._replace(backward=(gradient, inner, both))
    second = Step(
        "experts-fc2",
        kept=_input(down, Held(ACTIVATED, "R·f·e", (way.received, width, s.saved), doubt=s.doubt)),
        forward=(*over, *(summed(down, output) or (output,)), *te.entering(s, down, inner)),
        backward=(
            gradient,
            came,
            *te.quantised(s, came),
            *(inner,) * (2 if down.rank else 1),
            *(te.weight_gradient(s, s.hidden, width) if down.whole else ()),
        ),
        source=GROUPED,
    )
    return first, act, second


def _input(product: Product, source: Held) -> tuple[Held, ...]:
    """What goes into grouped products, where their weights are trained or an adapter reads it."""
    return (source,) if product.whole else kept_by_adapter(product, source, int(source.factors[0]))


def _combine(s: Shape, way: Routed) -> Step:
    """Outputs are sorted back, sent back and summed; expert by expert copies stand side by side meanwhile."""
    output, back = _received(s, "the experts' output", way), _received(s, "the experts' output, sorted back", way)
    sent = _sent(s, "output that was sent back", way)
    sorting = (output, back) if _sorts(s, way) else (output,)
    sending = (back, sent) if _crosses(s) else (output,)
    fullest = max(sorting, sending, key=lambda held: sum(each.bytes for each in held))
    first = _sent(s, "gradient of what was sent back", way)
    gradients = [first, _received(s, "gradient of the experts' output, unsorted", way)] if _crosses(s) else [first]
    if _sorts(s, way) and 2 * output.bytes > sum(each.bytes for each in gradients):
        gradients = [
            output._replace(name="gradient of the experts' output, unsorted"),
            output._replace(name="gradient of the experts' output"),
        ]
    return Step(
        "combine",
        forward=(*_held_over_experts(s, way), *fullest, te.stream(s, "shared experts' or summed output")),
        backward=(te.stream(s, te.STREAM_GRADIENT), *gradients),
        source=DISPATCHER,
    )


def _shared(s: Shape, part: FeedForward) -> Steps:
    """Shared experts: a feed-forward whose norm is the mixture's own."""
    down = next(linear for linear in part.shared if linear.name.endswith("down_proj"))
    gated = any(linear.name.endswith("gate_proj") for linear in part.shared)
    width = down.inputs // s.tensor
    whole = Held("gathered input of the shared experts", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    *inputs, last = (linear for linear in part.shared if linear.outputs != 1)
    up, below = s.product(inputs), s.product([last])
    normed = te.stream(s, "normalised input of the shared experts")
    branch = kept_by_adapter(up, whole if up.gathers and s.gathers else normed, s.tokens if up.gathers else s.local)
    narrow = f"input of the shared experts in {s.fp8.name}" if s.fp8 else ""
    own = (Held(narrow, "t·h·e", (s.local, s.hidden, s.saved)),) if narrow else ()
    branch = branch if up.dropout or (up.gathers and s.gathers) else branch[1:]
    keeps = s.gathers and s.settings.moe_shared_expert_overlap and up.whole
    first = Step(
        "shared-fc1",
        kept=branch if not up.whole else (whole,) if keeps else own,
        forward=(Held("input gathered along the sequence", "T·h·e", (s.tokens, s.hidden, s.itemsize)),)
        if s.gathers
        else (),
        backward=(
            te.stream(s, te.STREAM_GRADIENT),
            te.of_tokens(s, "gradient of gate and up", width * (2 if gated else 1)),
            *(2 if s.gathers else 1)
            * (Held("gathered input, and its gradient", "T·h·e", (s.tokens, s.hidden, s.itemsize)),),
        ),
        source=te.LINEAR,
    )
    act = activation(s, s.tokens, width, gated, "shared-activation")
    act = act._replace(kept=tuple(each._replace(name=f"{each.name} of the shared experts") for each in act.kept))
    second = te.row_linear(s, "shared-fc2", "the shared experts' second matmul", width, product=below)
    extra = [linear for linear in part.shared if linear.outputs == 1]
    if extra:
        second = second._replace(kept=(*second.kept, te.stream(s, "shared experts' output before its gate")))
    return first, act, second


def _recomputed(s: Shape, steps: Steps) -> Steps:
    modules = s.recomputed
    if "moe" in modules:
        inner = [each.name for step in steps[1:] for each in step.kept]
        kept = "normalised input of the router and the experts"
        return made_again(steps, [name for name in inner if name != kept], "combine")
    if "shared_experts" in modules:
        inner = [each.name for step in steps if step.name.startswith("shared") for each in step.kept]
        steps = made_again(steps, inner, "shared-fc2")
    if "moe_act" in modules:
        steps = made_again(steps, (ACTIVATED,), "experts-fc2")
    if "layernorm" in modules:
        names = ("normalised input of the router and the experts", "statistics of the feed-forward's norm")
        steps = made_again(steps, names, "combine")
    return steps
