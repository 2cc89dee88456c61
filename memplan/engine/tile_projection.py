"""Projectors of towers that see an image in tiles: LLaVA-NeXT and LLaVA-OneVision, which lay the tiles out as one image
again, take the padding off and end every row with a parameter.
"""

from __future__ import annotations

from memplan.engine import ops
from memplan.engine.chunked_ops import seen
from memplan.engine.graph import Tensor
from memplan.engine.projection import Joint, feed, hold_states, squares_only
from memplan.engine.tags import Dim
from memplan.engine.tape import Tape


def anyres(j: Joint, x: Tensor) -> Tensor:
    """Two linear modules, then each image packed by itself, and ``torch.cat`` of all."""
    hold_states(j, x)
    tiles = feed(j, j.tower.projector.linears, squares_only(j, x))
    h = j.tower.projector.linears[-1].outputs
    images = j.images // j.batch.squares
    one = Dim("tiles·h", tiles.dim.elements // images)
    packed = [pack(j, part, h) for part in ops.split(j.tape, tiles, images, one)]
    del tiles
    j.model_locals += packed
    whole = Dim("T·h", images * j.batch.tokens * h)
    return ops.concatenate(j.tape, packed, whole, "image tokens")


def pack(j: Joint, tiles: Tensor, h: int) -> Tensor:
    """``pack_image_features``: the tiles beside the first as one image, whose rows get a parameter each."""
    tape, batch = j.tape, j.batch
    line = j.features.param("image_newline", h)
    ends = ops.expand(tape, line, Dim("rows·h", max(batch.lines, 1) * h))
    if batch.squares == 1:
        base = ops.view(tape, tiles, tiles.dim, whole=False)
        return ops.concatenate(tape, (base, ends), Dim("tokens·h", batch.tokens * h), "packed image")
    base = ops.view(tape, tiles, Dim("tokens·h", tiles.dim.elements // batch.squares), whole=False)
    rest = Dim("tokens·h", tiles.dim.elements - base.dim.elements)
    image = seen(tape, ops.view(tape, tiles, rest, whole=False))
    image = ops.copy(tape, image, "packed image")
    if batch.unpadded * h < rest.elements:
        image = ops.view(tape, image, Dim("tokens·h", batch.unpadded * h), whole=False)
    kept = batch.tokens - batch.lines - j.tower.rule.tokens
    if kept < batch.unpadded:
        image = resized(tape, image, Dim("tokens·h", kept * h), "shrunk image")
    lined = Dim("tokens·h", (kept + batch.lines) * h)
    image = ops.concatenate(tape, (image, ends), lined, "packed image")
    return ops.concatenate(tape, (base, image), Dim("tokens·h", batch.tokens * h), "packed image")


def resized(tape: Tape, x: Tensor, dim: Dim, label: str) -> Tensor:
    """``interpolate``: keeps nothing but sizes."""
    before, itemsize = x.dim, x.itemsize
    return tape.new(dim, itemsize, label, tape.node((x,), (), lambda t, g: (t.gradient((before, itemsize)),)))
