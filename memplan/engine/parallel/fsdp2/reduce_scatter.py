"""What FSDP2's reductions hold over one pass: inputs of reduce-scatters, their outputs, and what waits for the last."""

from collections.abc import Iterator
from itertools import pairwise

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp2.frame import Frame, Unit
from memplan.engine.parallel.fsdp2.units import adds_in_place, waits_for_reduction
from memplan.engine.passes import TracedPass
from memplan.spec.recipe import Recipe

SOURCE = "torch 2.13 distributed/fsdp/_fully_shard"


def gathered(ledger: Ledger, label: str, size: int, instant: str, why: str, dies: str = "") -> None:
    """A row of whole weights, at one instant or from one to another."""
    template = "padded elements × bytes"
    ledger.add(label, "gathered_parameters", size, instant, dies or instant).formula(template).since(why, SOURCE)


def reduction(ledger: Ledger, label: str, size: int, instant: str, why: str = "kept until the next unit's") -> None:
    """A row of a reduce-scatter."""
    ledger.add(label, "buffers", size, at=instant).formula("padded elements × reduce bytes").since(
        why, f"{SOURCE}/_fsdp_param_group.py: post_backward"
    )


def reductions(
    own: Frame, traced: TracedPass, tail: str = "the tail", first: str = "the embedding"
) -> Iterator[tuple[str, list[Unit], str]]:
    """What a backward reduces, in order: its name, its units, and the point by which it is reduced."""
    if not own.opens:
        yield tail, [own.tail], "tail-reduce"
    for i, below in pairwise((*traced.backward_layers, -1)):
        point = traced.end_of(i).removeprefix(f"{traced.plan.name}.")
        yield f"layers {below + 1}-{i}", own.layers[below + 1 : i + 1], point
    ends = ("the root", own.root), (first, own.first), (tail, own.tail), ("the tower's blocks", own.blocks)
    for label, unit in ends:
        if unit is not own.tail or own.opens:
            yield label, [unit], "reduce"


def enter_tail_reduction(ledger: Ledger, tail: Unit, instant: str, reduces: bool, late: bool) -> None:
    """Its input beside its gradients, which are rows of their own; then its output in their place. New gradients are
    added to those that waited, and gone when the input comes."""
    if reduces:
        size = max(0, tail.reduced - tail.gradients) if late else tail.reduced
        reduction(ledger, "reduce-scatter input of the tail", size, instant)
        beyond = max(0, tail.scattered + tail.last - tail.gradients)
        reduction(ledger, "reduce-scatter output of the tail", 0 if late else beyond, instant)


def enter_reduction(
    ledger: Ledger, recipe: Recipe, own: Frame, unit: Unit, below: Unit, instant: str, label: str, reduces: bool
) -> None:
    """Its input stands beside the whole gradients; then beside its output, or the next copy-out."""
    out = below.gathered if own.reshards else 0
    if not reduces:
        first = not recipe.accumulates and recipe.storage.reduce_itemsize != recipe.numerics.itemsize
        ledger.add(
            f"whole gradients of {label}", "gradients", max(unit.waiting if first else unit.gradients, out), at=instant
        ).formula("elements × bytes").since(
            "cast and added to those that wait", f"{SOURCE}/_fsdp_param.py: to_accumulated_grad_if_needed"
        )
        return
    scattered = unit.scattered + unit.last
    if waits_for_reduction(recipe):  # gradients that wait are rows of their own, to which new ones are added first
        new = 0 if adds_in_place(recipe) else unit.gradients
        after = unit.reduced + max(0, scattered - unit.waiting, out + unit.shard - unit.waiting)
        reduction(ledger, f"reduce-scatter input of {label}", max(new, after), instant)
        return
    reduction(ledger, f"reduce-scatter input of {label}", unit.reduced, instant)
    if max(unit.gradients, scattered) >= out + unit.shard:
        why = "copied into the input, and freed; then its output comes"
        reduction(ledger, f"whole gradients of {label}", max(unit.gradients, scattered), instant, why)
        return
    gathered(ledger, f"copy-out below {label}", out + unit.shard, instant, "its all-gather's output is there still")


def enter_last_step(ledger: Ledger, own: Frame, i: int, traced: TracedPass) -> None:
    """The last micro-step reduces what has waited: an input comes, and what is reduced is gone."""
    unit = own.layers[i]
    more = unit.reduced - gone(own, i) - max(unit.gradients, own.layers[i - 1].gathered if i and own.reshards else 0)
    reduction(ledger, f"reduce-scatter input of layer {i}, last micro-step", max(0, more), traced.end_of(i))


def gone(own: Frame, i: int) -> int:
    """What the last micro-step's reductions have freed when layer ``i`` begins."""
    gone = sum(unit.waiting - unit.shard for unit in own.layers[i + 1 :])
    return gone + (own.tail.waiting - own.tail.shard if not own.opens else 0)


def enter_root_reduction(ledger: Ledger, recipe: Recipe, own: Frame, instant: str, late: bool) -> None:
    """The root's gradients as the input of its reduction, and then its output in their place.

    Gradients that have waited are added to first, and the new ones freed. Units are reduced one after another: an
    embedding that is one after the root, gathered until then. Of micro-steps that reduce nothing but in the last, what
    this takes beyond what the layers' reductions have freed."""
    if own.opens or not own.root.reduced:
        unit = max(own.root, own.tail if own.opens else own.first, key=lambda unit: unit.reduced)
        size, beyond, whole = *_reduced_alone(unit, late), 0
    else:
        size, beyond, whole = *_reduced_alone(own.root, late), own.first.gathered
        then = own.first.gathered + own.root.gradients + (own.root.waiting if late else 0) - own.root.shard
        beyond = max(beyond, sum(_reduced_alone(own.first, late)) - size - then)
    if late and recipe.accumulates:
        size, beyond, whole = max(0, size + beyond + whole - gone(own, -1)), 0, 0
    why = "reduced after the root"
    gathered(ledger, "embedding, gathered until its own reduction", whole, instant, why)
    reduction(ledger, "reduce-scatter input of the root", size, instant)
    reduction(ledger, "reduce-scatter output of the root", beyond, instant)


def _reduced_alone(unit: Unit, late: bool) -> tuple[int, int]:
    """The input of a reduction at the end of backward, and what its output takes beyond the gradients it replaces."""
    waiting = unit.waiting if late else unit.gradients
    last = unit.last * waiting // max(unit.gradients, 1)
    new = unit.gradients if late else 0
    return unit.reduced - new, max(0, unit.scattered + last - waiting)
