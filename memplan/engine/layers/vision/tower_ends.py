"""The ends of a vision tower, traced: from pixels to the first block, and from the last one to the language model."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.layers.quantised_linear import product_itemsize
from memplan.engine.layers.vision.gemma4_tower import averaged_by_position, picked_by_position
from memplan.engine.layers.vision.idefics2_perceiver import perceived
from memplan.engine.layers.vision.patch_embedding import embed_patches
from memplan.engine.layers.vision.projector import (
    Joint,
    Projection,
    adapted,
    anyres,
    averaged,
    connected,
    connected_held,
    convolved,
    linear,
    llava,
    merged,
    patch_merger,
    pooled,
    scatter,
    shuffled,
)
from memplan.engine.losses.tail import casts_of
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Node, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.groups import ImageBatch
from memplan.spec.vision import Tower
from memplan.tables.styles import GradientMode, PassStyle
from memplan.units import by_name

PROJECTIONS: dict[str, Projection] = {
    **by_name(
        llava,
        anyres,
        adapted,
        averaged,
        connected,
        convolved,
        patch_merger,
        perceived,
        pooled,
        linear,
        shuffled,
        merged,
    ),
    "averaged by position": averaged_by_position,
    "picked by position": picked_by_position,
    "connected, held": connected_held,
}
"""A program for each ``Tower.projection``."""

FP32 = 4
NAMED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvit", "glm4v")
"""Towers of models whose ``get_image_features`` names the pixels in the weights' dtype."""


class TowerPlan(NamedTuple):
    """What decides the bytes of a tower's pass."""

    tower: Tower
    hidden_size: int
    mode: Mode
    rows: int
    """Sequences of the language model."""
    length: int
    images: ImageBatch
    style: PassStyle
    gradients: GradientMode
    embedding_trained: bool
    """The embedded sequence needs a gradient."""
    input_needs_grad: bool
    """So do the patches, whether or not the patch embedding is trained: checkpointing under LoRA."""
    leaf: bool
    """The embedding's output is one of the graph: it needs a gradient though nothing of the embedding is trained."""
    frozen: frozenset[str] = frozenset()
    """Parts that are not trained: vision, projector."""

    @property
    def vision_mode(self) -> Mode:
        """How the tower runs. Under autocast its residual stream is what a convolution gives, or a LayerNorm, also
        through quantised linears."""
        mode, autocast = self._mode_of("vision"), self.mode.numerics.autocast
        product = product_itemsize(mode.quantised, autocast, (run.block for run in self.tower.runs))
        mode = mode._replace(widths=mode.widths._replace(product=product))
        if autocast and not self.keeps_widths and self.tower.kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
            return mode._replace(widths=mode.widths._replace(narrow=autocast))
        wide = FP32 * any(norm.kind == "layer" for norm in self.tower.embedding.norms)
        return mode._replace(widths=mode.widths._replace(stream=wide)) if autocast and wide else mode

    @property
    def keeps_widths(self) -> bool:
        """Linears give back the dtype of what they are given, as bitsandbytes' do."""
        base = self.mode.quantised
        return base is not None and base.scheme.product.startswith("bnb")

    @property
    def projector_mode(self) -> Mode:
        """How the projector runs."""
        return self._mode_of("projector")

    def _mode_of(self, part: str) -> Mode:
        """The language model's, but for what is trained and adapted."""
        mode = self.mode._replace(padded=self.images.masked, widths=self.mode.widths._replace(norms_cast=False))
        if mode.adapter is not None and part in self.tower.unadapted:
            mode = mode._replace(adapter=mode.adapter.nowhere)
        if part in self.tower.trained:
            mode = mode._replace(trained=True, quantised=None)
        return mode._replace(trained=False) if part in self.frozen else mode


class Piece(NamedTuple):
    """One end of the tower."""

    forward: int
    saved: int
    backward: int
    gradients: int
    casts: int
    reached: bool
    """Its output needs a gradient."""
    locals: int = 0
    """At the front: held until the tower's forward returns. At the end: until the model's does."""
    outputs: int = 0
    itemsize: int = 0
    """At the front: of the first block's input."""


_P = TypeVar("_P", bound=Pass)
Made = Callable[[Mode, int, int], _P]
"""Of so many rows and tokens of each."""


def passes(plan: TowerPlan, made: Made[_P]) -> tuple[_P, _P, int]:
    """The passes over patches and over tokens, and how many images there are."""
    tower, images = plan.tower, plan.images
    count = plan.rows * images.per_example
    patches = images.rows * images.columns
    projected = images.squares * tower.rule.tokens if tower.rule.kind == "anyres" else images.tokens
    tokens = made(plan.projector_mode, 1, count * projected)
    if tower.runs and tower.runs[0].block.attention.packed:
        return made(plan.vision_mode, count, patches), tokens, count
    squares = count * images.squares
    return made(plan.vision_mode, squares, patches + tower.rule.extra_patches), tokens, squares


def start(plan: TowerPlan) -> Tape:
    """A tape in the mode of the pass."""
    tape = Tape(plan.mode.numerics.autocast, in_place=plan.mode.in_place)
    tape.grad_enabled, tape.shared_casts = plan.style != "no-grad", plan.mode.shared_casts
    return tape


def peak(tape: Tape) -> int:
    """The most that was alive."""
    return max((size for size, _ in tape.peaks.values()), default=0)


def run_back(plan: TowerPlan, tape: Tape, node: Node | None, like: tuple[Dim, int]) -> tuple[int, int]:
    """(the most within the backward, gradients of weights it leaves)."""
    if node is None:
        return 0, 0
    tape.gradient_mode = "sum" if plan.gradients in ("meet", "join") else plan.gradients
    tape.peaks.clear()
    tape.backward(node, [tape.gradient(like)] + [None] * (node.outputs - 1))
    return peak(tape), sum(gradient.storage.size for gradient in tape.gradients if gradient.storage)


def front(plan: TowerPlan) -> Piece:
    """From pixels to the first block's input, which is not counted here: the first block keeps it."""
    tape = start(plan)
    p, _, images = passes(plan, partial(Pass, tape))
    x = embedded_patches(plan, p, images)
    most, node, like = peak(tape), x.node, (x.dim, x.itemsize)
    del x
    within = tape.live
    tape.leave_autocast()
    everything = tape.live
    cast = within - everything  # copies that no convolution keeps
    p.held = None
    saved = tape.live
    back, gradients = run_back(plan, tape, node, like)
    return Piece(most, saved, back, gradients, cast, node is not None, everything - saved, itemsize=like[1])


def embedded_patches(plan: TowerPlan, p: Pass, images: int) -> Tensor:
    """The first block's input; ``p.held``: what the tower's forward names meanwhile."""
    p.held = []
    with p.tape.at("embedding"):
        patches = p.tokens // p.rows - plan.tower.rule.extra_patches
        return embed_patches(p, plan.tower, read_pixels(plan, p), patches, images, plan.input_needs_grad)


def read_pixels(plan: TowerPlan, p: Pass) -> Tensor:
    """The batch's pixels, or those of the tiles that are there, gathered by the model's forward."""
    dim = Dim("pixels", plan.rows * plan.images.per_example * plan.images.pixels)
    pixels = Tensor(dim, plan.mode.numerics.itemsize if plan.tower.cast_pixels else FP32, None)
    assert p.held is not None
    if plan.tower.kind in NAMED:
        pixels = ops.cast(p.tape, pixels, plan.mode.numerics.itemsize, "pixels")
        p.held.append(pixels)
    if plan.tower.pixel_masks:
        pixels = ops.cast(p.tape, pixels, plan.mode.numerics.itemsize, "pixels")
        zeros = p.tape.new(pixels.dim, 1, "empty pixels")
        del zeros
    if plan.tower.pixel_masks or plan.tower.projection == "anyres":
        pixels = p.tape.new(pixels.dim, pixels.itemsize, "pixels")
        p.held.append(pixels)
    if plan.tower.pixel_masks:
        p.held.append(p.tape.new(Dim("pixels", dim.elements // plan.tower.rule.channels), 8, "masks of pixels"))
    return pixels


def tail(plan: TowerPlan, needs_grad: bool) -> Piece:
    """From the last block's output to the language model's input, which is not counted either."""
    tape = start(plan)
    states, tokens, images = passes(plan, partial(Pass, tape))
    joint = Joint(states, tokens, plan.tower, images, plan.images)
    itemsize = plan.mode.residual_itemsize

    def given(dim: Dim, needs: bool, label: str, itemsize: int = itemsize) -> Tensor:
        made = tape.new(dim, itemsize, label)
        node = Node(tape, [], (), lambda t, grads: ()) if needs and tape.grad_enabled else None
        return Tensor(dim, itemsize, made.storage, node)

    with tape.at("projector"):
        width = Dim("T·h", plan.rows * plan.length * plan.hidden_size)
        inputs = [given(width, plan.embedding_trained, "embedded")]
        inputs.append(
            given(states.dim("h", plan.tower.width), needs_grad, "image states", plan.vision_mode.residual_itemsize)
        )
    out = joined(joint, inputs)
    outer, joint.outputs = joint.outputs, []
    most, cast, node, like = peak(tape), casts_of(tape), out.node, (out.dim, out.itemsize)
    del out
    tape.leave_autocast()
    everything = tape.live
    joint.model_locals.clear()
    outputs = tape.live
    outer.clear()
    saved = tape.live
    back, gradients = run_back(plan, tape, node, like)
    return Piece(most, saved, back, gradients, cast, node is not None, everything - outputs, outputs - saved)


def joined(joint: Joint, inputs: list[Tensor]) -> Tensor:
    """The embedded sequence with image tokens in it; ``joint`` has what the model's forward and outputs name then.
    Takes that sequence and the tower's states out of their list."""
    tower, tape, x = joint.tower, joint.tape, inputs.pop()
    with tape.at("projector"):
        made = PROJECTIONS[tower.projection](joint, x)
        del x
        outer = outputs_of_tower(joint, made) if tower.in_outputs else []
        features = ops.cast(tape, made, inputs[0].itemsize, "image tokens")
        del made
        out = scatter(tape, inputs.pop(), (features, *joint.deep))
    joint.model_locals += [*joint.deep, *([features] if joint.tokens_local or tower.in_outputs else [])]
    if not tower.in_outputs:
        outer = [features] if joint.in_outputs else joint.outputs
    joint.outputs, joint.deep = outer, []
    return out


def outputs_of_tower(joint: Joint, made: Tensor) -> list[Tensor]:
    """``image_outputs``: the states of the tower, and the image tokens before those of several images are joined."""
    held = [*joint.outputs, *joint.model_locals, *joint.deep]
    return [each for each in held if each.storage is not made.storage] + ([] if joint.joined else [made])
