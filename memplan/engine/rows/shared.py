"""Rows of what crosses layers: each from the first instant of the pass at which it is alive to the last."""

from collections import Counter
from collections.abc import Iterator

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.sharding import KeptGradients
from memplan.engine.passes import Step, TracedPass
from memplan.engine.rows.embedding import table_behind_tower
from memplan.engine.tape.tags import Tag
from memplan.engine.traces import AFTER, BACKWARD, END, FORWARD, OUTSIDE, REDUCED, TAIL, TURN, Moment, Shared, Stack
from memplan.spec.recipe import Recipe

SOURCE = "torch 2.13 autograd and transformers 5.23, the layers of a pass replayed on one tape"


def instants_of(ledger: Ledger, traced: TracedPass, stack: Stack) -> Iterator[tuple[str, int]]:
    """The instants of a pass whose moments are known, in order."""
    name, count = traced.plan.name, len(traced.layers)
    moments: list[tuple[str, Moment]] = [(f"{name}.layer-forward", (FORWARD, traced.forward_layer, ""))]
    back = ("loss-backward", "head-backward", "final-norm-backward", "tail-reduce")
    moments += [(f"{name}.{point}", (TAIL, count, "")) for point in ("forward", "loss")]
    moments += [(f"{name}.{point}", (TURN, count, "")) for point in back]
    for i in traced.backward_layers:
        for instant, _ in traced.layer_instants(i):
            points = {"last-layer": "feed-forward", "attention": "attention"}
            point = points.get(instant.split(".")[1].removesuffix("-backward"), traced.worst_point(i))
            moments.append((instant, (BACKWARD, i, point)))
        moments.append((traced.end_of(i), (REDUCED, i, "")))
    moments += [(f"{name}.inputs-backward", (AFTER, OUTSIDE, "")), (f"{name}.vision-backward", (END, OUTSIDE, ""))]
    moments.append((f"{name}.embedding-backward", (END, OUTSIDE, "")))
    last = ""
    for instant, moment in moments:
        if instant in ledger.index and instant != last:
            yield instant, stack.places.get(moment, -1)
        last = instant


def enter_crossing(ledger: Ledger, recipe: Recipe, traced: TracedPass, step: Step) -> None:
    """A row for each tag and life. ``step``: the passes of the step that an evaluation comes after."""
    stack, rows = traced.stack, Counter[tuple[Tag, str, str, str]]()
    if stack is None:
        return
    instants = list(instants_of(ledger, traced, stack))
    for each in _found(traced, stack, step):
        alive = [instant for instant, place in instants if each.first <= place <= each.last]
        if each.first < 0:
            alive = _from_before(ledger, recipe, instants[0][0], alive)
        if each.last == len(stack.places):
            alive.append(ledger.schedule[-1])
        if alive:
            rows[each.tag, alive[0], alive[-1], _life(each, len(traced.layers), len(stack.places))] += each.size
    for (tag, born, dies, life), size in rows.items():
        count = max(1, round(size / (tag.elements * tag.itemsize)))
        ledger.add(f"{tag.label}, {life}", tag.category, size, born, dies).formula(
            f"tensors × bytes × {tag.symbol}", count, tag.itemsize, tag.elements
        ).since("made in one layer or before all of them, and alive while others run", SOURCE)


def _found(traced: TracedPass, stack: Stack, step: Step) -> Iterator[Shared]:
    """What is shared. An evaluation finds what a pass that trains has left, and lets go of it as of what is its own."""
    own = sorted({each.last for each in stack.shared if each.first < 0})
    before = [each.stack for each, _ in step() if each.plan.name == traced.plan.name and each.stack] if own else []
    left = [each for each in before[-1].shared if each.first < 0] if before else []
    ends = dict(zip(sorted({each.last for each in left}), own, strict=False))
    yield from (each._replace(last=ends[each.last]) for each in left if each.last in ends)
    yield from (each for each in stack.shared if each.first >= 0 or not left)


def _from_before(ledger: Ledger, recipe: Recipe, first: str, alive: list[str]) -> list[str]:
    """The instants of what the step before has left, until this pass lets go of it, or an earlier one of the model."""
    start = ledger.schedule[0]
    pass_of, own = start.split(".")[0], first.split(".", maxsplit=1)[0]
    if pass_of != own and not any(model.role == pass_of for model in recipe.others.residents):
        return [start]
    return [start, *alive] if start != first and alive else [start, ledger.before(first)] if start != first else alive


def _life(each: Shared, tail: int, end: int) -> str:
    """Why it is there, in a few words."""
    if each.first < 0:
        return "left by the step before"
    if each.last == end:
        return "left to the next step"
    if each.last < tail:
        return "held by the model's forward"
    return "kept for other layers" if each.first <= tail else "while other layers run back"


def enter_outside(ledger: Ledger, traced: TracedPass, kept: KeptGradients) -> None:
    """The backward of what was made before the first layer, and the gradients that it leaves."""
    stack, plan = traced.stack, traced.plan
    instant = f"{plan.name}.inputs-backward"
    if stack is None or instant not in ledger.index:
        return
    later = table_behind_tower(ledger, traced)
    for tag, size in stack.after.tags.items():
        if tag.elements == later:
            continue
        ledger.add(f"{tag.label}, before the first layer", tag.category, size, at=instant).formula(
            f"tensors × bytes × {tag.symbol}",
            max(1, round(size / (tag.elements * tag.itemsize))),
            tag.itemsize,
            tag.elements,
        ).since("what was made before the first layer runs back after it", SOURCE)
    itemsize, last = plan.mode.numerics.itemsize, f"{plan.name}.embedding-backward"
    whole = plan.gradients == "keep" and kept.root
    of_table = later * itemsize
    for size, born in ((stack.gradients - of_table, ledger.after(instant)), (of_table, last)):
        ledger.add(
            "gradients of what all layers share",
            "gradients",
            size,
            born,
            kept.last(ledger, plan.name) if whole else born,
        ).told(size // itemsize, itemsize)
