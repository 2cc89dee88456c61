"""Projectors of LLaVA-NeXT and LLaVA-OneVision, which lay the tiles of an image out again, take the padding off and end
every row with a parameter; and of Idefics 3, Llama 4, Mistral 3 and Kimi K2.5, which join neighbouring patches."""

from memplan.engine.layers.activations import activate
from memplan.engine.layers.modules import norm, project
from memplan.engine.layers.vision.projector import Joint, feed, hold_states, listed, squares_only
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import seen
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape


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
    j.joined = True
    whole = Dim("T·h", images * j.batch.tokens * h)
    return ops.concatenate(j.tape, packed, whole, "image tokens")


def pack(j: Joint, tiles: Tensor, h: int) -> Tensor:
    """``pack_image_features``: the tiles beside the first as one image, whose rows get a parameter each."""
    tape, batch = j.tape, j.batch
    line = ops.cast(tape, j.features.param("image_newline", h), tiles.itemsize, "packed image")
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
    return tape.new(dim, x.itemsize, label, tape.node((x,), (), ops.own(x)))


def connected(j: Joint, x: Tensor) -> Tensor:
    """Idefics 3: final norm, pixels shuffled in two copies, one linear module."""
    x = norm(j.states, j.tower.after.norms[0], x, "h")
    j.model_locals.append(x)
    x = ops.copy(j.tape, ops.copy(j.tape, x, "shuffled states"), "shuffled states")
    return listed(j, project(j.features, x, j.tower.projector.linears[0], "h", "image tokens"))


def connected_held(j: Joint, x: Tensor) -> Tensor:
    """SmolVLM: as Idefics 3, but the model's outputs hold those of the tower."""
    found = connected(j, x)
    j.outputs, j.model_locals, j.in_outputs = j.model_locals, [found], False
    return found


def adapted(j: Joint, x: Tensor) -> Tensor:
    """Llama 4: final norm, the class token cut off, pixels shuffled in two copies, two linear modules, each with its
    activation, which the model's outputs hold; then the projector's."""
    tape, features = j.tape, j.features
    x = norm(j.states, j.tower.after.norms[0], x, "h")
    first, second = j.tower.after.linears
    x = ops.view(tape, x, features.dim("h", 4 * j.tower.width), whole=False)
    x = ops.copy(tape, ops.copy(tape, x, "shuffled states"), "shuffled states")
    x = activate(tape, "gelu", project(features, x, first, "h", "adapted images"))
    x = activate(tape, "gelu", project(features, x, second, "h", "adapted images"))
    j.outputs, j.in_outputs, j.tokens_local = [x], False, True
    return project(features, x, j.tower.projector.linears[0], "h", "image tokens")


def patch_merger(j: Joint, x: Tensor) -> Tensor:
    """Mistral 3: a norm, patches of each image unfolded and joined, a linear module without activation, two with."""
    tape, part, features = j.tape, j.tower.projector, j.features
    j.model_locals.append(x)
    x = norm(j.states, part.norms[0], x, "h")
    merging, *linears = part.linears
    whole = features.dim("4h", merging.inputs)
    one = Dim("patches·h", whole.elements // j.images)
    unfolded = [
        seen(tape, ops.copy(tape, seen(tape, each), "joined patches")) for each in ops.split(tape, x, j.images, one)
    ]
    x = ops.concatenate(tape, unfolded, whole, "joined patches")
    x = project(features, x, merging, "h", "joined patches")
    del unfolded
    return listed(j, feed(j, linears, x))


def gathered_mean(j: Joint, x: Tensor) -> Tensor:
    """``hidden_states[merge_index].mean(dim=1)`` (transformers 5.23)."""
    picked = seen(j.tape, ops.copy(j.tape, x, "patches by token"))
    return ops.scale(j.tape, picked, "patches by token")


def added_mean(j: Joint, x: Tensor) -> Tensor:
    """``temporal_merge``: shares in fp32, which ``index_add_`` keeps, added into zeros (transformers 5.24)."""
    tape, label = j.tape, "patches by token"
    shares = ops.with_constant(tape, ops.cast(tape, x, ops.FP32, label), ops.FP32, label)
    size = x.dim, ops.FP32
    node = tape.node((shares,), (shares,), lambda t, g: (t.gradient(size),))
    return ops.cast(tape, tape.new(*size, label, node), x.itemsize, label)


def averaged(j: Joint, x: Tensor) -> Tensor:
    """Kimi K2.5: final norm, the mean over an image's one frame, a norm of each patch, two linear modules."""
    part = j.tower.projector
    x = norm(j.states, j.tower.after.norms[0], x, "h")
    j.model_locals.append(x)
    x = gathered_mean(j, x) if j.tower.older else added_mean(j, x)
    x = norm(j.states, part.norms[0], x, "h")
    found = listed(j, feed(j, part.linears, x))
    j.model_locals.append(found)
    j.in_outputs = False
    return found
