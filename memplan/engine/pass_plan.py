"""What one pass of the model through a step needs to know, all resolved; and what runs before the first layer, in
bytes: steps of the embedding, a tower, inputs of all layers; most models have none."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.layers.modules import Mode
from memplan.engine.losses.heads import Head
from memplan.engine.parallel.fsdp1.flat_parameters import mode_of_layer
from memplan.engine.programs import Programs
from memplan.spec.groups import ImageBatch
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.tables.styles import GradientMode, PassStyle

if TYPE_CHECKING:
    from memplan.engine.layers.vision.tower_ends import TowerPlan


class PassPlan(NamedTuple):
    """What one pass needs to know, all resolved."""

    name: str
    spec: ModelSpec
    mode: Mode
    rows: int
    length: int
    style: PassStyle
    head: Head
    gradients: GradientMode = "keep"
    in_units: bool = False
    """FSDP gathers each layer's weights, and reduces its gradients when it has run back."""
    embedding_trained: bool = True
    """The first layer's input needs a gradient: trained embeddings, or checkpointing, for which transformers asks it of
    the embedding's output (``enable_input_require_grads``)."""
    images: ImageBatch | None = None
    """The images of each row, where a tower sees them."""
    memory: int = 0
    """Tokens of each row that an encoder reads, where ``length`` are the decoder's; 0 without one."""
    nested: GradientMode | None = None
    """How gradients arrive in reentrant layers, where not as ``gradients`` says: an own backward leaves ``.grad``."""

    @property
    def ties_head(self) -> bool:
        """Whether the loss reads a head that is the embedding's weight: what PEFT copies to train (``modules_to_save``)
        is not, and beside a value head nothing comes to it."""
        saved = self.mode.adapter.saved if self.mode.adapter else frozenset[str]()
        shared = self.spec.head_is_tied and self.head.program != "value-head"
        return shared and saved.isdisjoint(("embed_tokens", self.spec.head.name))

    def style_of(self, i: int) -> PassStyle:
        """The style of one layer, counted from 0."""
        part = self.style in ("checkpoint", "reentrant") and not self.mode.recompute.covers(i)
        return "plain" if part else self.style

    def sends(self, i: int) -> bool:
        """Whether a layer's checkpoint keeps its input on the host."""
        return bool(self.mode.offload) and self.style_of(i) in ("checkpoint", "reentrant")

    def mode_of(self, i: int, layer: Layer) -> Mode:
        """How one layer's modules run."""
        mode = mode_of_layer(self.mode, layer)
        return mode._replace(recompute=mode.recompute.of_layer(i)) if mode.recompute.counts else mode

    def gradients_of(self, style: PassStyle) -> GradientMode:
        """How gradients arrive in layers of one style."""
        return self.nested if self.nested and style == "reentrant" else self.gradients

    @property
    def reads_leaf(self) -> bool:
        """Products of the first layer read the embedding's output, a leaf, of which autocast keeps its copy."""
        mode, spec = self.mode, self.spec
        leaf = mode.adapter is not None and mode.embedding_rests and self.embedding_trained and not spec.front
        return leaf and mode.numerics.autocast > 0 and spec.runs[0].layer.form == "post"

    @property
    def tower(self) -> "TowerPlan | None":
        """The pass of the tower; None without images."""
        tower = self.spec.tower
        if self.images is None or tower is None:
            return None
        partly = self.mode.adapter is not None or bool(self.spec.frozen)
        rests = self.mode.embedding_rests or "embed_tokens" in self.spec.frozen
        from memplan.engine.layers.vision.tower_ends import TowerPlan

        return TowerPlan(
            tower,
            self.spec.hidden_size,
            self.mode,
            self.rows,
            self.length,
            self.images,
            self.style if self.style == "no-grad" or tower.checkpoints else "plain",
            self.gradients,
            self.embedding_trained,
            partly and self.style in ("checkpoint", "reentrant"),
            self.embedding_trained and rests,
            self.spec.frozen & {"vision", "projector"},
        )


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
    places: tuple[tuple[int, int, int], ...] = ()
    """Of a tower that is not traced block by block: its parts as they run forward, what is there when one begins, and
    the most within it."""


NO_TOWER = TowerTrace(0, 0, 0, 0, 0, 0)


TOWERS: Mapping[str, "Callable[[TowerPlan], TowerTrace]"] = Programs("towers")
"""The pass of a tower: one whose states enter the residual stream, or one that layers attend to."""


def keys_of_images(plan: PassPlan) -> int:
    """States of all images of a row, which are the keys; 0 without layers that attend to them."""
    images, tower = plan.images, plan.spec.tower
    if images is None or tower is None or not tower.crossed:
        return 0
    return images.per_example * images.squares * (images.rows * images.columns + tower.rule.extra_patches)
