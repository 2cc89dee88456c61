"""What FSDP1 holds longer than a layer needs it: gathered layers between micro-steps, inputs of frozen units."""

from memplan.engine.ledger import Ledger
from memplan.engine.passes import TracedPass
from memplan.spec.recipe import Recipe

RUN = "torch 2.13 distributed/fsdp/_runtime_utils.py"


def never_freed(recipe: Recipe, steps: int = 2) -> bool:
    """Whether micro-steps before the last leave all layers gathered (_runtime_utils.py: _should_free_in_backward), and
    there are so many: gradients wait beside them in a backward from the second on, which is the last of two."""
    return (
        recipe.sharding.fsdp.keeps_gathered
        and recipe.batch.accumulation >= steps
        and not recipe.sharding.sync_each_batch
    )


def enter_held_inputs(
    ledger: Ledger, recipe: Recipe, traced: TracedPass, i: int, instant: str, inside: bool = False
) -> None:
    """Inputs of the checkpoints of frozen units above, and their gradients.

    The hook that reshards a frozen unit hangs on its inputs (register_multi_grad_hook), and its closure holds their
    AccumulateGrad nodes: where the input is a checkpoint's own leaf, the leaf and its ``.grad`` with it, until the end
    of backward. ``inside`` the layer's backward: what comes in is such a ``.grad``."""
    if (
        recipe.adapter is None
        or not recipe.checkpointing.layers
        or not (recipe.sharding.fsdp.checkpoints_around and recipe.checkpointing.reentrant)
    ):
        return
    above = traced.layers[i + 1 :]
    size = 2 * sum(trace.boundary for trace in above)
    if inside and above:  # the gradient that the layer above has left is counted as this layer's own
        size -= above[0].boundary
    ledger.add(f"inputs of checkpoints above layer {i}, and their gradients", "activations", size, at=instant).formula(
        "layers × 2 × T × h × bytes", len(above), 2, traced.layers[i].boundary
    ).since(
        "held by the hooks that reshard frozen units",
        f"{RUN}: _register_post_backward_reshard_only_hook; torch.autograd.graph.register_multi_grad_hook",
    )


def leaves_behind(recipe: Recipe) -> bool:
    """Whether a frozen unit is whole until the unit before is: the hook that reshards it hangs on its input, behind the
    one that gathers the unit before (_register_post_backward_reshard_only_hook). A reentrant checkpoint around the unit
    detaches its input; with BACKWARD_POST that is not modelled."""
    detached = recipe.sharding.fsdp.checkpoints_around and recipe.checkpointing.reentrant
    return not detached and recipe.sharding.fsdp.backward_prefetch != "BACKWARD_POST"
