"""The tower of Llama 3.2 Vision, played whole on one tape (transformers 5.24, ``MllamaVisionModel``).

Tiles of an image stand in one sequence, padded to multiples of eight, under a mask that all blocks share. Outputs of
some local blocks leave the tower beside that of the global ones; the forward holds those of all until it returns. Its
blocks are never checkpointed. Layers of the language model read what the projector gives."""

from functools import lru_cache, partial
from typing import NamedTuple

from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.vision.patch_embedding import as_leaf, convolved
from memplan.engine.layers.vision.tower_ends import Made, TowerPlan, peak, run_back, start
from memplan.engine.layers.vision.vit_block import TILES, vit_block
from memplan.engine.pass_plan import TowerTrace
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import pad
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim, Log, Tag
from memplan.spec.parts import Part
from memplan.spec.vision import BlockRun

INT64 = 8
ENTERED = "entered"


class Placed(Pass):
    """Its tape's log says where a part of the tower begins."""

    def enter(self, number: int) -> None:
        """Nothing is allocated."""
        self.tape.log.append((0, Tag(ENTERED, "", "", 0, number)))


class Shape(NamedTuple):
    """What the tower sees."""

    images: int
    tiles: int
    patches: int
    """Of a tile, with its class token."""
    padded: int

    @property
    def whole(self) -> int:
        """Patches of an image as blocks see them."""
        return self.tiles * self.padded

    @property
    def squares(self) -> int:
        """Tiles of all images."""
        return self.images * self.tiles


def shape_of(plan: TowerPlan) -> Shape:
    """Tiles of all images."""
    images, patches = plan.images, plan.images.rows * plan.images.columns + plan.tower.rule.extra_patches
    return Shape(plan.rows * images.per_example, images.squares, patches, -(-patches // 8) * 8)


def embedded(plan: TowerPlan, by_tile: Pass, p: Pass, held: list[Tensor]) -> Tensor:
    """From pixels to the first block's input. ``held``: the convolution's output, which the tower's forward names."""
    shape, tower, tape = shape_of(plan), plan.tower, p.tape
    pixels = Tensor(Dim("pixels", plan.rows * plan.images.per_example * plan.images.pixels), ops.FP32, None)
    x = convolved(by_tile, tower, pixels, Dim("patches·h", shape.squares * (shape.patches - 1) * tower.width))
    x = as_leaf(tape, x) if plan.input_needs_grad else x
    held.append(x)
    x = tile_positions(by_tile, tower.embedding, "pre_tile_positional_embedding", x, shape.images)
    token = by_tile.param("class_embedding", tower.width)
    rows = ops.expand(tape, token, Dim("rows·h", shape.squares * tower.width))
    x = ops.concatenate(tape, (rows, x), by_tile.dim("h", tower.width), "patch embeddings")
    del rows, token  # apply_class_embedding returns
    x = gated_positions(by_tile, tower.embedding, x)
    x = norm(by_tile, tower.embedding.norms[0], x, "h")
    return pad(tape, x, p.dim("h", tower.width), "padded states")


def through(p: Pass, run: BlockRun, x: Tensor, first: int) -> list[Tensor]:
    """``encoder_states``: what each block of a run gives."""
    states: list[Tensor] = []
    for number in range(first, first + run.count):
        p.enter(number)
        x = vit_block(p, run.block, x)
        states.append(x)
    return states


def vision_model(plan: TowerPlan, made: Made[Pass]) -> Tensor:
    """The last states and, stacked, those of the taps: padding cut off, which makes views, and joined."""
    shape, tower, held = shape_of(plan), plan.tower, list[Tensor]()
    by_tile, p = made(plan.vision_mode, shape.squares, shape.patches), made(plan.vision_mode, shape.images, shape.whole)
    (local, wide), width, tape = tower.runs, plan.tower.width, p.tape
    by_tile.enter(0)
    with tape.at("embedding"):
        x = embedded(plan, by_tile, p, held)
        pairs = Dim("images·s²", shape.images * shape.whole**2)
        p.shared[TILES] = tape.new(pairs, plan.mode.numerics.autocast or plan.mode.numerics.itemsize, "mask of tiles")
    encoder_states = through(p, local, x, 1)
    x = encoder_states[-1]
    p.enter(tower.num_layers + 1)
    with tape.at("projector"):
        x = norm(p, tower.after.norms[0], x, "h")
        x = tile_positions(p, tower.after, "post_tile_positional_embedding", x, p.rows)
    global_states = through(p, wide, x, 1 + local.count)
    with tape.at("projector"):
        tokens = made(plan.projector_mode, shape.squares, shape.patches)
        x = ops.view(tape, global_states[-1], tokens.dim("h", width), whole=False)
        taps = [encoder_states[i] for i in tower.taps]
        stacked = ops.concatenate(tape, taps, p.dim("h", width * len(taps)), "intermediate states")
        stacked = ops.view(tape, stacked, tokens.dim("h", width * len(taps)), whole=False)
        return ops.concatenate(tape, (x, stacked), tokens.dim("h", width * (1 + len(taps))), "image states")


def crossed(plan: TowerPlan, made: Made[Pass]) -> tuple[Tensor, Tensor]:
    """What the tower gives, and what layers of the language model read of it; the most while their mask is made."""
    shape, outputs = shape_of(plan), vision_model(plan, made)
    tokens = made(plan.projector_mode, shape.squares, shape.patches)
    tokens.enter(plan.tower.num_layers + 1)
    with tokens.tape.at("projector"):
        states = project(tokens, outputs, plan.tower.projector.linears[0], "h", "image tokens")
        making = tokens.tape.new(Dim("mask of texts", making_cross_mask(plan)), 1, "mask of texts against images")
        del making
    return outputs, states


def making_cross_mask(plan: TowerPlan) -> int:
    """The most while the mask of texts against images is made: repeated int64, inverted in fp32, in its own dtype."""
    shape, own = shape_of(plan), plan.mode.numerics.itemsize
    pairs = plan.rows * plan.length * plan.images.per_example * shape.tiles * shape.patches
    inverted = INT64 + ops.FP32 + (own if own != ops.FP32 else 0)
    return pairs * max(inverted, INT64 + 2 * own + 1)


def places_of(log: Log) -> tuple[tuple[int, int, int], ...]:
    """``TowerTrace.places`` of a forward."""
    found, live = list[tuple[int, int, int]](), 0
    for delta, tag in log:
        found += [(tag.elements, live, live)] if tag.category == ENTERED else []
        live += delta
        place, begun, most = found[-1]
        found[-1] = place, begun, max(most, live)
    return tuple(found)


@lru_cache(maxsize=256)
def trace_mllama(plan: TowerPlan) -> TowerTrace:
    """The tower of a pass. What layers of the language model read is not counted, but while the tower runs."""
    plan = plan._replace(style="no-grad" if plan.style == "no-grad" else "plain")
    tape = start(plan)
    *outputs, states = crossed(plan, partial(Placed, tape))
    places = places_of(tape.log)
    most, node, like = peak(tape), states.node, (states.dim, states.itemsize)
    del states
    held = tape.live
    outputs.clear()
    own = held - tape.live
    tape.leave_autocast()
    saved = tape.live
    copies = held - own - saved
    outer = own * plan.tower.in_outputs
    if node is None:
        return TowerTrace(most, saved, own - outer, outer, 0, 0, copies=copies, places=places)
    # the gradient of the embedded sequence, whose backward comes before the tower's
    above = plan.rows * plan.length * plan.hidden_size * plan.mode.residual_itemsize * plan.embedding_trained
    worst = saved + like[0].elements * like[1] + above
    back, gradients = run_back(plan, tape, node, like)
    back = max(worst, back)
    return TowerTrace(most, saved, own - outer, outer, back, gradients, True, copies=copies, places=places)


LABEL = "positions of tiles"


def _weight(p: Pass, part: Part, name: str) -> Param:
    bare = next(each for each in part.tensors if each.name == name)
    return p.param(bare.name, bare.parameters)


def _tanh(p: Pass, part: Part, name: str) -> Tensor:
    return ops.unary(p.tape, _weight(p, part, f"{name}.gate"), "gates", saves="result")


def tile_positions(p: Pass, part: Part, name: str, x: Tensor, images: int) -> Tensor:
    """A vector for each tile, by the arrangement of its image: looked up, times a gate's tanh, added to all patches."""
    tape = p.tape
    bare = next(each for each in part.tensors if each.name == f"{name}.embedding")
    table = p.param(bare.name, bare.parameters)
    found = ops.embedding(tape, table, Dim("images·tiles·h", images * bare.shape[1]), table.itemsize)
    weighed = ops.mul(tape, found, _tanh(p, part, name), LABEL)
    del found  # ``embeddings = embeddings * self.gate.tanh()`` rebinds it (MllamaPrecomputedAspectRatioEmbedding)
    return ops.add(tape, x, ops.expand(tape, weighed, x.dim), "patch embeddings")


def gated_positions(p: Pass, part: Part, x: Tensor) -> Tensor:
    """A table of patches times 1 - tanh(gate), then one of all patches of all tiles times tanh(gate)."""
    tape, name = p.tape, "gated_positional_embedding"
    inverse = ops.scale(tape, _tanh(p, part, name), "gates")
    positions = ops.mul(tape, _weight(p, part, f"{name}.embedding"), inverse, "positions")
    x = ops.add(tape, x, ops.expand(tape, positions, x.dim), "patch embeddings")
    table = _weight(p, part, f"{name}.tile_embedding")
    found = ops.embedding(tape, table, x.dim, table.itemsize)
    gated = ops.mul(tape, found, _tanh(p, part, name), LABEL)
    x = ops.add(tape, x, gated, "patch embeddings")
    del positions  # ``gated_position_embedding`` is a local to the end (MllamaPrecomputedPositionEmbedding.forward)
    return x
