"""ZeRO-3's own rows: the reduction bucket and its copy, gradient partitions, whole weights while they are used.

deepspeed 0.19 runtime/zero/stage3.py, partitioned_param_coordinator.py."""

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp2.units import reads_head
from memplan.engine.parallel.zero.coordinator import Limits
from memplan.engine.parallel.zero.flat_groups import groups_of, largest
from memplan.engine.parallel.zero.module_order import Half, Model, half_of, largest_module, run_by
from memplan.engine.parallel.zero.prefetch import Figures, Gathered, Pass, gathered
from memplan.engine.passes import Stage, TracedPass
from memplan.engine.play.zero.visits import USES
from memplan.engine.tape.watched import Order, Uses
from memplan.engine.tensors import Weight
from memplan.engine.traces import NOTHING, LayerTrace
from memplan.spec.lora import Adapter
from memplan.spec.recipe import Recipe

FP64 = 8
NO_ORDER = Order()
ATTENTION = ("backward", "attention"), ("backward", "projections")
NORM_PIECE = 250_000_000
"""Elements of which ``_constant_buffered_norm2`` takes the norm at once."""


def enter_zero3(ledger: Ledger, recipe: Recipe, weights: list[Weight], born: str, name: str) -> None:
    """Buffers beside those of ``reductions``; ``born``: when the first gradient of the pass ``name`` has come."""
    groups, bucket = groups_of(recipe, weights), recipe.sharding.deepspeed.reduce_bucket_size
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
    ).told(elements, local, recipe.sharding.deepspeed.communication)


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


def engine_of(recipe: Recipe, name: str) -> str:
    """Whose modules a pass runs: a model beside the policy has an engine, and a coordinator, of its own."""
    beside = {model.role for model in recipe.others.residents} | {CRITIC}
    return name if name in beside else ""


def _model(traced: TracedPass, wraps: Adapter | None = None, reads: str = "") -> Model:
    """A pass's weights, as they are gathered; PEFT wraps them though adapters are switched off."""
    plan = traced.plan
    return Model(plan.spec, plan.mode.adapter or wraps, plan.mode.quantised, plan.mode.numerics.itemsize, reads)


Orders = dict[str, tuple[tuple[Pass, ...], tuple[Pass, ...]]]
"""By engine: the passes of the step, and those of an evaluation after it."""


def orders_of(recipe: Recipe, passes: Sequence[Stage], before: Sequence[Stage]) -> Orders:
    """In which each engine's modules run. ``before``: the passes of the step that an evaluation comes after, whose
    order its engine knows."""
    found = Orders()
    for engine in {engine_of(recipe, traced.plan.name): None for traced, _ in passes}:
        whose = (None, "") if engine else (recipe.adapter, recipe.model.head.name * reads_head(recipe))
        first, then = (
            passes_of([each for each in stages if engine_of(recipe, each[0].plan.name) == engine], *whose)
            for stages in (before, passes)
        )
        found[engine] = first or then, then if before else ()
    return found


def figures_of(recipe: Recipe, orders: Orders) -> Figures:
    """What each pass has gathered."""
    own = limits(recipe)
    return {key: figure for order in orders.values() for key, figure in gathered(*order, own).items()}


def passes_of(stages: Sequence[Stage], wraps: Adapter | None, reads: str = "") -> tuple[Pass, ...]:
    """Each forward, with all that runs until the next one begins."""
    found = list[tuple[Model, list[tuple[str, Half]]]]()
    for traced, point in stages:
        if point == "forward":
            found.append((_model(traced, wraps, reads), []))
        if point != "loss":
            found[-1][1].append((traced.plan.name, _half(traced, point, found[-1][0])))
    return tuple(Pass(run_by(model, tuple(half for _, half in halves)), tuple(halves)) for model, halves in found)


def _half(traced: TracedPass, point: str, model: Model) -> Half:
    plan, back = traced.plan, point == "backward"
    layers = tuple(_order(traced, layer, back=back) for layer in traced.layers)
    again = tuple(plan.style_of(i) in ("checkpoint", "reentrant") for i in range(len(layers)))
    tail, reached = traced.tail.uses[back].order, plan.embedding_trained if back else None
    adapts, sees = plan.mode.adapter is not None, plan.images is not None
    return half_of(model, adapts, sees, tail, layers, again, reached)


def _watched(traced: TracedPass, layer: LayerTrace) -> bool:
    """Whether it has noted when its modules run: quantised linears read no parameter."""
    return bool(layer.uses[0]) and traced.plan.mode.quantised is None


def _order(traced: TracedPass, layer: LayerTrace, *, back: bool) -> Order | None:
    """In which its modules run, or run back; None where nobody has noted it."""
    if back and not layer.backward:
        return NO_ORDER
    return layer.uses[back].order if _watched(traced, layer) else None


@lru_cache(maxsize=4096)
def fullest(uses: Uses, found: Gathered, itemsize: int) -> dict[tuple[str, str], int]:
    """The most bytes, with what is gathered then, by places of a tape."""
    most, held, steps = dict[tuple[str, str], int](), found.first * itemsize, iter(found.steps)
    for note, place, live, inside in uses:
        total = 0
        if note is not None:
            fetching, there = next(steps)
            held = there * itemsize
            total = live + fetching * itemsize if note.what in USES else 0
        if place[0]:  # else several turns are meant at once
            most[place] = max(most.get(place, 0), total, inside + held if inside else 0)
    return most


def _in_layer(traced: TracedPass, figures: Figures, i: int, *, back: bool, attention: bool | None = None) -> int:
    """The most bytes of a layer by itself with what is gathered; of its ``attention`` alone, or of all else."""
    layer, e, name = traced.layers[i], traced.plan.mode.numerics.itemsize, f"layer {i}{' backward' * back}"
    found, uses = figures[traced.plan.name, name], layer.uses[back]
    if not _watched(traced, layer):
        return (layer.backward.get(traced.worst_point(i), NOTHING) if back else layer.forward).size + found.most * e
    sizes = fullest(uses, found, e)
    return max((sizes[place] for place in sizes if attention in (None, place in ATTENTION)), default=0)


def _in_tail(traced: TracedPass, figures: Figures, points: Collection[str], *, back: bool = False) -> int:
    """Elements that come to the most that the tail itself holds at these points."""
    tail, e, phase = traced.tail, traced.plan.mode.numerics.itemsize, "backward" if back else "forward"
    found, alone = figures[traced.plan.name, f"tail{' backward' * back}"], tail.backward if back else tail.forward
    own = max((alone[point].size for point in points if point in alone), default=0)
    sizes = fullest(tail.uses[back], found, e)
    return max(0, *(sizes.get((phase, point), 0) - own for point in points)) // e


def _most_in_forward(traced: TracedPass, figures: Figures, itemsize: int) -> int:
    """Elements beside the layer that holds most, of the one that is fullest with them: ever more is fetched ahead, from
    the embedding on."""
    saved, active = traced.saved_before, traced.forward_layer
    most = max(saved[i] + _in_layer(traced, figures, i, back=False) for i in range(len(traced.layers)))
    most = max(most, figures[traced.plan.name, "embedding"].most * itemsize)
    return (most - saved[active] - traced.layers[active].forward.size) // itemsize


def _in_backward(traced: TracedPass, figures: Figures, i: int, below: int) -> Iterator[tuple[str, int]]:
    """(instant, elements that come to its bytes): of a layer, and at the last of them of those down to ``below``, of
    which less is saved: they are fetched ahead in another measure."""
    saved, e, instants = traced.saved_before, traced.plan.mode.numerics.itemsize, list(traced.layer_instants(i))
    for position, (instant, alive) in enumerate(instants):
        last = position + 1 == len(instants)
        attention = last if len(instants) > 1 else None
        others = (_in_layer(traced, figures, j, back=True) + saved[j] for j in range(below + 1, i if last else below))
        own = _in_layer(traced, figures, i, back=True, attention=attention) + saved[i]
        yield instant, max(0, max((own, *others)) - saved[i] - alive.size) // e


def left_by(figures: Figures, traced: TracedPass, point: str) -> int:
    """Bytes that half a pass leaves gathered."""
    last = "embedding backward" if point == "backward" else "tail"
    return figures[traced.plan.name, last].left * traced.plan.mode.numerics.itemsize


def enter_left(ledger: Ledger, size: int, traced: TracedPass) -> None:
    """What other models' engines have left gathered while this one runs forward."""
    e = traced.plan.mode.numerics.itemsize
    for instant in traced.forward_instants():
        if instant in ledger.index:
            ledger.add("weights left gathered", "gathered_parameters", size, at=instant, low=0).told(size // e, e)


def enter_gathered(ledger: Ledger, recipe: Recipe, figures: Figures, traced: TracedPass, point: str) -> None:
    """Whole weights at the instants of half a pass."""
    plan, low = traced.plan, largest_module(_model(traced))
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
            ).told(elements, e)

    if point == "forward":
        instants = [each for each in traced.forward_instants() if not each.endswith("vision-forward")]
        enter(instants[0], _most_in_forward(traced, figures, e))
        ends = ("final-norm", "head") if plan.style != "no-grad" else ("final-norm", "head", "loss")  # one instant
        enter(instants[1], _in_tail(traced, figures, ends))
    if point == ("loss" if plan.head.waits else "forward") and plan.style != "no-grad":
        enter(f"{name}.loss", max(_in_tail(traced, figures, ("loss",)), figures[name, "tail"].left))
    if point != "backward":
        return
    for part in ("loss", "head", "final-norm"):
        enter(f"{name}.{part}-backward", _in_tail(traced, figures, (part,), back=True))
    for i, below in pairwise((*traced.backward_layers, -1)):
        for instant, elements in _in_backward(traced, figures, i, below):
            enter(instant, elements)
    enter(f"{name}.embedding-backward", figures[name, "embedding backward"].most)
