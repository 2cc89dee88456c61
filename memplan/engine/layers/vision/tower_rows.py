"""Rows of a pass's tower: what its forward and backward hold, and what stays in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.ledger import Ledger
from memplan.engine.losses.heads import INSIDE
from memplan.engine.parallel.sharding import KeptGradients
from memplan.engine.passes import TracedPass
from memplan.engine.rows.outputs import loss_and_casts
from memplan.engine.traces import NOTHING

if TYPE_CHECKING:
    from memplan.spec.vision import Tower


def enter_tower_forward(ledger: Ledger, traced: TracedPass, keeps_outputs: bool) -> None:
    """The tower's forward, what it saves, and what the model's forward and outputs hold of it."""
    trace, name = traced.vision, traced.plan.name
    if not trace.forward:
        return
    inside = f"{name}.vision-forward"
    ledger.add("vision tower, forward", "activations", trace.forward, at=inside).told()
    first = f"{name}.layer-forward"
    if traced.plan.style != "no-grad":
        ledger.add(
            "saved in the vision tower", "activations", trace.saved, first, ledger.before(f"{name}.vision-backward")
        ).told()
    ledger.add(
        "states of the vision tower, held by the model's forward",
        "activations",
        trace.locals,
        first,
        f"{name}.loss" if loss_within(traced) else first,
    ).told()
    instants, until = traced.forward_instants()[1:], f"{name}.forward"
    if traced.plan.style != "no-grad":
        until = loss_and_casts(traced, NOTHING, instants)[1]
    ledger.add("autocast copies of weights, vision tower", "autocast_weights", trace.copies, first, until).told(
        2, trace.copies // 2
    )
    end = f"{name}.forward" if traced.plan.style == "no-grad" else f"{name}.loss"
    if keeps_outputs and traced.plan.style != "no-grad":
        end = f"{name}.embedding-backward"
    ledger.add("image tokens, held by the model's outputs", "activations", trace.outputs, first, end).told()
    if loss_within(traced) and traced.plan.style == "plain" and not traced.layers[0].keeps_input:
        ledger.add(
            "embedded sequence, held by the model's forward",
            "activations",
            traced.layers[0].boundary,
            at=f"{name}.loss",
        ).told(traced.layers[0].boundary)


def loss_within(traced: TracedPass) -> bool:
    """Whether the forward that embeds the images goes on to the loss, so that its locals live meanwhile."""
    plan = traced.plan
    return plan.style != "no-grad" and plan.head.program in INSIDE and tower_of(traced).loss_within


def tower_of(traced: TracedPass) -> Tower:
    """The tower that the pass runs."""
    tower = traced.plan.spec.tower
    assert tower is not None
    return tower


def enter_tower_backward(ledger: Ledger, traced: TracedPass, kept: KeptGradients) -> None:
    """The tower's backward and its gradients."""
    trace, name = traced.vision, traced.plan.name
    if not trace.backward:
        return
    inside, size = f"{name}.vision-backward", trace.backward
    if traced.plan.in_units:  # FSDP reduces its gradients block by block
        size = trace.alone or size
    ledger.add("vision tower, backward", "activations", size, at=inside).told()
    if traced.plan.gradients != "keep" or not kept.layers:
        return
    ledger.add(
        "gradients of the vision tower",
        "gradients",
        trace.gradients,
        f"{name}.embedding-backward",
        kept.last(ledger, name),
    ).told()
