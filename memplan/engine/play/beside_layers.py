"""What a model's forward makes beside the embedding's output before the first layer, for all layers to read: a copy of
it, inputs of every layer's own, tables of relative positions; and the streams that are stacked out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.layers.shared_inputs import EMBEDDED, LAYER_INPUTS
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor

if TYPE_CHECKING:
    from memplan.engine.play.model import PassRun


def beside_layers(run: PassRun, x: Tensor) -> Tensor:
    """The first layer's input, of the embedding's output; ``run.p.shared`` gets what layers read beside it."""
    spec, p = run.plan.spec, run.p
    forms = {layer_run.layer.form for layer_run in spec.runs}
    if "shared-block" in forms:
        p.shared[EMBEDDED] = ops.copy(p.tape, x, EMBEDDED)
    if spec.has_layer_inputs:
        from memplan.engine.layers.gemma4_layer import made_inputs

        own = next(layer_run.layer.own_input for layer_run in spec.runs if layer_run.layer.own_input)
        p.shared[LAYER_INPUTS] = made_inputs(p, spec, own, x)
    if any(mixer.kind == "disentangled" for mixer in spec.mixers):
        from memplan.engine.layers.attention.deberta import for_all_layers

        p.shared |= for_all_layers(p, spec)
        run.collects = True
    run.handed = list(p.shared)
    if "streams" not in forms:
        return x
    from memplan.engine.layers.gemma3n_layer import stacked

    made = [x]
    x = stacked(p, spec, made)
    run.forward_locals.append(made[1])
    run.streams = made[2:]
    return x
