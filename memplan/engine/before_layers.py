"""What runs before the first layer, in bytes: steps of the embedding, a tower, inputs of all layers; most models have
none."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.programs import Programs

if TYPE_CHECKING:
    from memplan.engine.layers.vision.tower_ends import TowerPlan
from memplan.engine.pass_plan import PassPlan


class FrontTrace(NamedTuple):
    """Bytes beside the first layer's input."""

    saved: int
    """What its nodes hold until their backward."""
    held: int
    """What the model's forward holds beside that, until it returns."""
    backward: int
    """The most within its backward, with the gradient that comes in."""
    gradients: int
    """Gradients of its parameters."""


NO_FRONT = FrontTrace(0, 0, 0, 0)


class TowerTrace(NamedTuple):
    """Bytes of a tower's pass."""

    forward: int
    """The most within its forward."""
    saved: int
    """What its nodes hold until their backward."""
    locals: int
    """Held beside that by the model's forward, until it returns."""
    outputs: int
    """Held by the model's outputs, until the loss is whole."""
    backward: int
    """The most within its backward, with what is still saved and its own gradients."""
    gradients: int
    reached: bool = False
    """A gradient enters the tower, or the projector."""
    alone: int = 0
    """The most within its backward without the gradients of pieces that have run back; 0 where it is not known."""
    copies: int = 0
    """Autocast's copies of its weights that nothing else holds."""


NO_TOWER = TowerTrace(0, 0, 0, 0, 0, 0)


TOWERS: Mapping[str, "Callable[[TowerPlan], TowerTrace]"] = Programs(
    {
        "plain": "memplan.engine.layers.vision.tower_trace:trace_tower",
        "crossed": "memplan.engine.layers.vision.mllama_tower:trace_mllama",
    }
)
"""The pass of a tower: one whose states enter the residual stream, or one that layers attend to."""


def keys_of_images(plan: PassPlan) -> int:
    """States of all images of a row, which are the keys; 0 without layers that attend to them."""
    images, tower = plan.images, plan.spec.tower
    if images is None or tower is None or not tower.crossed:
        return 0
    return images.per_example * images.squares * (images.rows * images.columns + tower.rule.extra_patches)
