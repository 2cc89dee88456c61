"""DeepSpeed's ZeRO, put together: when gradients leave the rank, and the rows of each backward (deepspeed 0.19).

States are in ``zero_states``, what waits on the host in ``zero_offload``, the step in ``zero_step``, buffers of stages
0 to 2 in ``zero_buffers``, those of stage 3 in ``zero3``, its whole weights in ``zero_fetch``.
"""

from collections.abc import Iterable

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.sharding import takes_gradients
from memplan.engine.parallel.zero.buckets import enter_buffers_of_zero
from memplan.engine.parallel.zero.selective import enter_selected
from memplan.engine.parallel.zero.stage3 import enter_gathered, enter_left, enter_zero3
from memplan.engine.passes import TracedPass
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

Stage = tuple[TracedPass, str]


def enter_zero(ledger: Ledger, recipe: Recipe, weights: list[Weight], name: str, first: str) -> None:
    """The rows of the reductions in backward, from the pass ``first`` to ``name``, of the engine that holds
    ``weights``."""
    born, end = first_gradient(ledger, weights, first), f"{name}.reduce"
    end = end if end in ledger.index else f"{name}.embedding-backward"
    if recipe.zero_stage == 3:
        enter_zero3(ledger, recipe, weights, born, name)
    else:
        enter_buffers_of_zero(ledger, recipe, weights, born, end, takes_gradients(recipe))
        enter_selected(ledger, recipe, weights, born)


def enter_whole_weights(ledger: Ledger, recipe: Recipe, passes: Iterable[Stage]) -> None:
    """Stage 3: weights that are gathered, pass by pass; of other models, where they are divided too."""
    sharded = {model.role for model in recipe.others.residents if model.sharded}
    stages = list(passes)
    backwards = {traced.plan.name for traced, point in stages if point == "backward"}
    beside = {model.role for model in recipe.others.residents}
    waiting: TracedPass | None = None
    for traced, point in stages:
        name = traced.plan.name
        if name in beside and waiting is not None:
            enter_left(ledger, recipe, waiting, traced.forward_instants())
        elif name in backwards:
            waiting = traced if point == "forward" else None
        if name not in beside or name in sharded:
            enter_gathered(ledger, recipe, traced, point, name in backwards)


def first_gradient(ledger: Ledger, weights: list[Weight], name: str) -> str:
    """The instant from which on a gradient has come: after the head's backward, or within the last layer's."""
    outer = any(weight.trained and weight.unit in ("head", "norm") for weight in weights)
    last = f"{name}.last-layer-backward"
    layer = last if last in ledger.index else ledger.after(f"{name}.final-norm-backward")
    return ledger.after(f"{name}.head-backward") if outer else layer
