"""A vision tower in a pass: from the batch's pixels to image tokens in the embedded sequence, block by block."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan.engine.layers.gemma4_layer import rows_of_table
from memplan.engine.layers.shared_inputs import CROSS_MASK, MEMORY, ROWS
from memplan.engine.layers.vision.mllama_tower import crossed
from memplan.engine.layers.vision.projector import Joint
from memplan.engine.layers.vision.tower_ends import TowerPlan, embedded_patches, joined, passes
from memplan.engine.layers.vision.tower_trace import CAPTURED
from memplan.engine.layers.vision.vit_block import block_mask, keeps_mask, rotary_tables
from memplan.engine.losses.heads import INSIDE
from memplan.engine.pass_plan import keys_of_images
from memplan.engine.play.weights import ModelPass
from memplan.engine.tape.graph import Node, Tensor, dissolve
from memplan.engine.tape.tags import Dim

if TYPE_CHECKING:
    from memplan.engine.play.model import PassRun


def read_images(run: PassRun) -> None:
    """What layers attend to, before anything is embedded, and the mask of texts against it."""
    tape, p, plan = run.tape, run.p, run.plan.tower
    assert plan is not None
    outputs, states = crossed(plan, partial(ModelPass, p.weights))
    (run.image_outputs if plan.tower.in_outputs else run.forward_locals).append(outputs)
    p.memory = keys_of_images(run.plan)
    pairs = Dim("T·s", p.tokens * p.memory)
    mask = tape.new(pairs, plan.mode.numerics.itemsize, CROSS_MASK, category="batch")
    p.shared = {MEMORY: states, CROSS_MASK: mask}


def with_images(run: PassRun, inputs: list[Tensor]) -> Tensor:
    """The embedded sequence, taken out of its list, with image tokens in it, which takes its name. ``run`` gets what
    the model's forward and its outputs name of images."""
    outer, plan = run.p, run.plan.tower
    assert plan is not None
    tower = plan.tower
    before = _beside(run, inputs[0])
    states, tokens, images = passes(plan, partial(ModelPass, outer.weights))
    states.enter(0)
    run.sharding.before_block(states.scope)
    found = [run.sharding.after_block(states.scope, embedded_patches(plan, states, images))]
    run.p = states
    unread = _through(run, plan, found)
    run.p = outer
    states.enter(tower.num_layers + 1)
    tokens.enter(tower.num_layers + 1)
    joint = Joint(states, tokens, tower, images, plan.images)
    projects = "projector" in tower.units
    inputs.append(run.sharding.before_block(states.scope, found[0]) or found[0] if projects else found[0])
    found.clear()
    out = joined(joint, inputs)
    out = run.sharding.after_block(states.scope, out) if projects else out
    states.held = None
    (joint.outputs if tower.in_outputs else joint.model_locals).extend(unread)
    run.image_outputs = joint.outputs
    named = [*before, *joint.model_locals]
    if tower.loss_within and run.plan.head.program in INSIDE:
        run.image_locals = [*named, out]
    else:
        run.forward_locals += named
    return out


def _beside(run: PassRun, x: Tensor) -> list[Tensor]:
    """Gemma 4: the embedding without images, and rows for the inputs of all layers, locals of the model's forward."""
    spec, p = run.plan.spec, run.p
    if not spec.has_layer_inputs:
        return []
    own = next(layers.layer.own_input for layers in spec.runs if layers.layer.own_input)
    embedded = run.tape.new(x.dim, x.itemsize, "embedding without images")
    p.shared[ROWS] = rows_of_table(p, spec, own)
    return [embedded, p.shared[ROWS]]


def _through(run: PassRun, plan: TowerPlan, found: list[Tensor]) -> list[Tensor]:
    """From the first block's input, in its list, to the states that are read; also what is made beyond these, and the
    states of all blocks where the model asks for them."""
    p, tower, tape, style = run.p, plan.tower, run.tape, plan.style
    mask = tape.new(Dim("T·T", block_mask(plan)), 1, "mask of blocks")
    tables = tape.new(Dim("T·d", rotary_tables(plan)), 1, "rotary tables of patches")
    arguments = [tables, mask] if style in ("checkpoint", "reentrant") else []
    x, states, number = found.pop(), list[Tensor](), 0
    found += [] if tower.runs else [x]
    for blocks in tower.runs:
        for _ in range(blocks.count):
            p.enter(number + 1)
            states += [x] if tower.projection in CAPTURED and style == "no-grad" else []
            x = run.sharding.before_block(p.scope, x) or x
            x = run.sharding.after_block(p.scope, run._layer(blocks.block, x, style, arguments))  # type: ignore[arg-type]
            tape.grad_enabled = style != "no-grad"
            number += 1
            if number == tower.used_blocks:
                found.append(x)
    if found[0].needs_grad and (style != "no-grad"):
        run.shared += [tables, *([mask] if keeps_mask(plan) else [])]
    return states + ([Unread(x, found[0].node)] if tower.used_blocks < number else [])


class Unread(Tensor):
    """The output of blocks behind the one that is read, whose graph goes with it."""

    __slots__ = ("below",)

    def __init__(self, x: Tensor, below: Node | None) -> None:
        super().__init__(x.dim, x.itemsize, x.storage, x.node, x.slot)
        self.below = below

    def __del__(self) -> None:
        if self.node is not None:
            dissolve(self.node, self.below)
