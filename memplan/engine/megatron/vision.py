"""The vision tower before Megatron's layers: transformers' own module, whole on every rank of the first stage.

ms-swift 4 (megatron/model: the Hugging Face ``visual``), Megatron-Bridge 0.2 (models/qwen_vl: transformers' tower).
verl's mbridge has a tower of Megatron's layers, which tensor parallelism cuts: no less is counted. Its blocks are taken
as not recomputed, so that each micro-batch in flight keeps all that they save.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.ledger import Ledger
from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.engine.before_layers import TowerTrace

SOURCE = "torch 2.13 autograd and transformers 5.23, replayed by size; MEMORY_ESTIMATION.md, images"
FORWARD, BACKWARD = "policy.vision-forward", "policy.vision-backward"


def tower_trace(recipe: Recipe) -> TowerTrace | None:
    """The tower's pass over a micro-batch's images; None on later stages, and without images."""
    if recipe.model.tower is None or recipe.batch.images is None or not recipe.parallel.first:
        return None
    from memplan.engine.layers.vision.tower_trace import trace_tower
    from memplan.engine.micro_step import layers_plan

    plan = layers_plan(recipe, "policy", recipe.rows, "plain")
    tower = plan._replace(mode=plan.mode._replace(tensor=1, context=1, expert=1)).tower
    return trace_tower(tower) if tower is not None else None


def enter_vision(ledger: Ledger, trace: TowerTrace | None, in_flight: int) -> None:
    """What the tower holds of the micro-batch that runs, and keeps of each that is in flight."""
    if trace is None:
        return
    kept = trace.saved if trace.backward else 0
    ledger.add(
        "saved in the vision tower",
        "activations",
        kept * in_flight,
        f"{FORWARD}",
        BACKWARD if trace.backward else FORWARD,
        template="saved by its blocks × micro-batches in flight",
        numbers=(kept, in_flight),
        why="kept for the tower's backward, which comes after that of the layers",
        source=SOURCE,
    )
    for name, size, at in (
        ("vision tower, forward", max(0, trace.forward - kept), FORWARD),
        ("vision tower, backward", max(0, (trace.alone or trace.backward) - kept), BACKWARD),
    ):
        if size:
            ledger.add(name, "activations", size, at, at, why="the most within it", source=SOURCE)
    ledger.add(
        "image tokens, held by the model's outputs",
        "activations",
        trace.outputs + trace.locals,
        FORWARD,
        "policy.layer-forward",
        template="image tokens × h × bytes",
        why="until they are put into the embedded sequence",
        source=SOURCE,
    )
