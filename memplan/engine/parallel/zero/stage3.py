"""ZeRO-3's own rows: the reduction bucket and its copy, gradient partitions, whole weights while they are used.

deepspeed 0.19 runtime/zero/stage3.py, partitioned_param_coordinator.py."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp2.units import reads_head
from memplan.engine.parallel.zero.coordinator import Limits
from memplan.engine.parallel.zero.flat_groups import divided, groups_of, largest
from memplan.engine.parallel.zero.module_order import largest_module, order_of
from memplan.engine.parallel.zero.prefetch import Figures, Gathered, Half, gathered
from memplan.engine.passes import TracedPass
from memplan.engine.tape.watched import DONE, Uses
from memplan.engine.tensors import Weight
from memplan.engine.traces import NOTHING
from memplan.spec.groups import Quantised
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe

Stage = tuple[TracedPass, str]
"""A pass, and which half of it runs."""
ZERO = "deepspeed 0.19 runtime/zero"
FP64 = 8
NORM_PIECE = 250_000_000
"""Elements of which ``_constant_buffered_norm2`` takes the norm at once."""


def enter_lasting(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """What stage 3 allocates for gradients once, for the whole run."""
    zero, groups, own = recipe.sharding.deepspeed, groups_of(recipe, weights), recipe.sharding.deepspeed.communication
    if zero.contiguous_gradients:
        ledger.add("reduction bucket", "buffers", zero.reduce_bucket_size * own).formula(
            "reduce_bucket_size × bytes", zero.reduce_bucket_size, own
        ).since(
            "gradients are copied into a bucket and reduced together; allocated once, whole, for the whole run",
            f"{ZERO}/stage3.py: _setup_for_real_optimizer",
        )
    if not zero.optimizer:
        elements = sum(divided(group.weights, recipe.sharding.ranks) for group in groups)
        ledger.add("gradient partitions", "gradients", elements * zero.accumulation).formula(
            "Σ ⌈elements / ranks⌉ × bytes", elements, zero.accumulation
        ).since("a flat buffer, allocated once", f"{ZERO}/stage3.py: grad_partitions_flat_buffer")


def enter_zero3(ledger: Ledger, recipe: Recipe, weights: list[Weight], born: str, name: str) -> None:
    """Buffers beside those of ``reductions``; ``born``: when the first gradient of the pass ``name`` has come."""
    groups, bucket = groups_of(recipe, weights), recipe.sharding.deepspeed.reduce_bucket_size
    enter_lasting(ledger, recipe, weights)
    if recipe.several and groups and recipe.sharding.deepspeed.quantised_gradients:
        at_once = sum(group.elements for group in groups) > bucket
        end = f"{name}.reduce"
        _enter_quantised_reduction(ledger, recipe, max(map(largest, groups)), born if at_once else end, end)


def _enter_quantised_reduction(ledger: Ledger, recipe: Recipe, elements: int, born: str, end: str) -> None:
    """qgZ: the largest gradient in 4 bits, sent and received within the node; its sum over the node's ranks, sent and
    received between nodes, and dequantised. Ignored: scales, one for each row; gradients of one dimension, and those
    that 2·N does not divide, which are reduced as without it."""
    local = min(recipe.sharding.ranks, recipe.hardware.gpus_per_node)
    ledger.add(
        "quantised gradients on their way",
        "buffers",
        elements + elements // local * (1 + recipe.sharding.deepspeed.communication),
        born,
        end,
        low=0,
    ).formula(
        "n × (1/2 + 1/2) + n / GPUs of a node × (1/2 + 1/2 + bytes)",
        elements,
        local,
        recipe.sharding.deepspeed.communication,
    ).since(
        "zero_quantized_gradients: two all-to-alls in 4 bits in place of the reduce-scatter, a gradient at a time",
        "deepspeed 0.19 runtime/comm/coalesced_collectives.py: all_to_all_quant_reduce",
    )


def limits(recipe: Recipe) -> Limits:
    """The coordinator's settings."""
    zero = recipe.sharding.deepspeed
    return Limits(
        zero.prefetch_bucket_size,
        zero.max_live_parameters,
        zero.max_reuse_distance,
        zero.param_persistence_threshold,
        recipe.sharding.ranks,
        zero.allgather_sequential or zero.fetch_by_all_reduce or not recipe.several,
    )


def _stored(traced: TracedPass) -> tuple[ModelSpec, Adapter | None, Quantised | None, int]:
    """A pass's weights, as they are gathered."""
    plan = traced.plan
    return plan.spec, plan.mode.adapter, plan.mode.quantised, plan.mode.numerics.itemsize


def engine_of(recipe: Recipe, name: str) -> str:
    """Whose modules a pass runs: a model beside the policy has an engine, and a coordinator, of its own."""
    beside = {model.role for model in recipe.others.residents} | {CRITIC}
    return name if name in beside else ""


def figures_of(recipe: Recipe, passes: Sequence[Stage], before: Sequence[Stage]) -> Figures:
    """What each pass has gathered."""
    found, own = Figures(), limits(recipe)
    for engine in {engine_of(recipe, traced.plan.name): None for traced, _ in passes}:
        halves = [
            tuple(
                _half(*stage, recipe.adapter if not engine else None)
                for stage in each
                if stage[1] != "loss" and engine_of(recipe, stage[0].plan.name) == engine
            )
            for each in (before, passes)
        ]
        found |= gathered(halves[0] or halves[1], halves[1] if before else (), own)
    return found


def _half(traced: TracedPass, point: str, wraps: Adapter | None) -> Half:
    plan = traced.plan
    around = wraps if plan.mode.adapter is None else None
    back = (plan.style in ("checkpoint", "reentrant"), plan.embedding_trained) if point == "backward" else None
    watched = tuple(tuple(layer.uses[point == "backward"]) for layer in traced.layers)
    order = order_of(*_stored(traced), plan.images is not None, around, back, watched)
    return plan.name, point == "forward", order


@lru_cache(maxsize=4096)
def beside(uses: Uses, found: Gathered, peak: int, itemsize: int) -> int:
    """Elements that come to a layer's ``peak`` bytes: what is gathered when it holds the most with them. Where nobody
    watched when modules run, or this one, its most at the peak."""
    if not uses:
        return found.most
    total, waiting = uses[DONE].high + found.first * itemsize, 0
    for read, fetching, using, released in found.steps:
        known = sorted(uses[key] for name in read[1] if (key := (read[0], name)) in uses)
        waiting = max(waiting, fetching)
        if not known:
            continue
        until = max(*(use.high for use in known), *(use.later for use in known[:-1]), 0)
        held = found.most if any(use.again for use in known) else using
        total = max(total, known[0].live + waiting * itemsize, until + held * itemsize)
        total, waiting = max(total, known[-1].later + released * itemsize), released
    return max(0, total - peak) // itemsize


def _most_in_forward(traced: TracedPass, figures: Figures, itemsize: int) -> int:
    """Elements beside the layer that holds most, of the one that is fullest with them: ever more is fetched ahead."""
    name = traced.plan.name
    held = [saved + layer.forward.size for saved, layer in zip(traced.saved_before, traced.layers, strict=False)]
    most = max(
        held[i] + beside(layer.uses[0], figures[name, f"layer {i}"], layer.forward.size, itemsize) * itemsize
        for i, layer in enumerate(traced.layers)
    )
    return (most - held[traced.forward_layer]) // itemsize


def _beside_backward(traced: TracedPass, figures: Figures, i: int, peak: int, instant: int = -1) -> int:
    """Elements that come to ``peak`` bytes when a layer runs back, at the ``instant`` of one above it, where more is
    saved: they are fetched ahead in another measure."""
    layer, e = traced.layers[i], traced.plan.mode.numerics.itemsize
    less = traced.saved_before[instant] - traced.saved_before[i] if instant >= 0 else 0
    own = peak if instant in (-1, i) else layer.backward.get(traced.worst_point(i), NOTHING).size
    return beside(layer.uses[1], figures[traced.plan.name, f"layer {i} backward"], own, e) - (peak + less - own) // e


def _more_in_loss(traced: TracedPass) -> int:
    """Bytes by which a forward's loss holds more than its head and final norm."""
    forward = traced.tail.forward
    ends = max((forward[point].size for point in ("final-norm", "head") if point in forward), default=0)
    return max(0, forward["loss"].size - ends) if "loss" in forward else 0


def left_by(figures: Figures, traced: TracedPass, point: str) -> int:
    """Bytes that half a pass leaves gathered."""
    last = "embedding backward" if point == "backward" else "head"
    return figures[traced.plan.name, last].left * traced.plan.mode.numerics.itemsize


def enter_left(ledger: Ledger, size: int, traced: TracedPass) -> None:
    """What other models' engines have left gathered while this one runs forward."""
    e = traced.plan.mode.numerics.itemsize
    for instant in traced.forward_instants():
        if instant in ledger.index:
            ledger.add("weights left gathered", "gathered_parameters", size, at=instant, low=0).formula(
                "gathered elements × bytes", size // e, e
            ).since(
                "the backward uses them again within max_reuse_distance; another model's engine has its own",
                f"{ZERO}/partitioned_param_coordinator.py: __params_to_release",
            )


def enter_gathered(ledger: Ledger, recipe: Recipe, figures: Figures, traced: TracedPass, point: str) -> None:
    """Whole weights at the instants of half a pass."""
    plan, low = traced.plan, largest_module(*_stored(traced))
    name, e = plan.name, plan.mode.numerics.itemsize

    def enter(instant: str, elements: int) -> None:
        if instant in ledger.index:
            ahead = min(recipe.sharding.deepspeed.prefetch_bucket_size, elements)
            ledger.add(
                "gathered weights",
                "gathered_parameters",
                elements * e,
                at=instant,
                low=min(low, elements) * e,
                high=(elements + ahead * (1 + recipe.sharding.deepspeed.quantised_weights)) * e,
            ).formula("gathered elements × bytes", elements, e).since(
                "the module in use, what is fetched ahead, and what is used again within max_reuse_distance",
                f"{ZERO}/partitioned_param_coordinator.py",
            )

    head = figures[name, "head"]
    left = max(head.left, plan.spec.head.parameters * reads_head(recipe))  # the loss reads its weight, or follows it
    if point == "forward":
        ends = max(figures[name, "final-norm"].most, head.most)
        if plan.style == "no-grad":  # one instant
            ends = max(ends - _more_in_loss(traced) // e, left)
        instants = [each for each in traced.forward_instants() if not each.endswith("vision-forward")]
        active = _most_in_forward(traced, figures, e)
        for instant, elements in zip(instants, (active, ends, left), strict=False):
            enter(instant, elements)
        return
    if point == "loss":
        enter(f"{name}.loss", left)
        return
    enter(f"{name}.loss-backward", left)
    enter(f"{name}.head-backward", figures[name, "head backward"].most)
    enter(f"{name}.final-norm-backward", figures[name, "final-norm backward"].most)
    for i, below in pairwise((*traced.backward_layers, -1)):
        *first, last = traced.layer_instants(i)
        for instant, alive in first:
            enter(instant, _beside_backward(traced, figures, i, alive.size))
        enter(last[0], max(_beside_backward(traced, figures, j, last[1].size, i) for j in range(below + 1, i + 1)))
    enter(f"{name}.embedding-backward", figures[name, "embedding backward"].most)
