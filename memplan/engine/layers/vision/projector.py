"""From the tower's last states to the language model's input, as programs on the tape: projectors, and the scatter of
image tokens into the embedded sequence.

Projectors of LLaVA-NeXT and LLaVA-OneVision, which lay the tiles of an image out again, take the padding off and end
every row with a parameter; and of Idefics 3, Llama 4, Mistral 3 and Kimi K2.5, which join neighbouring patches."""

from collections.abc import Callable, Sequence

from memplan.engine.layers.activations import activate
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import seen
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.groups import ImageBatch
from memplan.spec.parts import Linear
from memplan.spec.vision import Tower


class Joint:
    """The passes of a tower's end: over what the blocks see, and over the tokens that come out of it."""

    def __init__(self, states: Pass, features: Pass, tower: Tower, images: int, batch: ImageBatch) -> None:
        self.states, self.features, self.tower, self.images, self.batch = states, features, tower, images, batch
        self.tape = states.tape
        self.model_locals: list[Tensor] = []
        """Held by the model's forward until it returns."""
        self.deep: list[Tensor] = []
        """Image tokens that enter later layers of the language model."""
        self.outputs: list[Tensor] = []
        """What the model's outputs hold in place of the image tokens."""
        self.in_outputs = True
        """The model's outputs hold the image tokens until the loss is whole."""
        self.joined = False
        """The image tokens are joined of a list of each image's, which the tower's outputs hold."""
        self.tokens_local = False
        """The model's forward holds the image tokens as they are scattered, until it returns."""


Projection = Callable[[Joint, Tensor], Tensor]


def feed(j: Joint, linears: Sequence[Linear], x: Tensor) -> Tensor:
    """linear_2(gelu(linear_1(x)))."""
    inner = project(j.features, x, linears[0], "h", "projected images")
    inner = activate(j.tape, "gelu", inner)
    return project(j.features, inner, linears[1], "h", "image tokens")


def listed(j: Joint, x: Tensor) -> Tensor:
    """A list of each image's tokens, and ``torch.cat`` of it."""
    j.model_locals.append(x)
    j.joined = True
    parts = ops.split(j.tape, x, j.images, Dim(x.dim.symbol, x.dim.elements // j.images))
    return ops.concatenate(j.tape, parts, x.dim, "image tokens")


def llava(j: Joint, x: Tensor) -> Tensor:
    """The class token is cut off, which makes a copy for the product; two linear modules."""
    hold_states(j, x)
    return listed(j, feed(j, j.tower.projector.linears, squares_only(j, x)))


def hold_states(j: Joint, x: Tensor) -> None:
    """The tower's outputs hold the states that are read, and SigLIP's the result of a norm that nobody reads."""
    for each in j.tower.after.norms if j.tower.kind == "siglip" else ():
        j.model_locals.append(norm(j.states, each, x, "h"))
    j.model_locals.append(x)


def squares_only(j: Joint, x: Tensor) -> Tensor:
    """The states as the product reads them. The class token is cut off where the tower has one, which makes a copy; and
    so does the order of SigLIP's residual stream, which is that of its convolution: channels before patches."""
    kept = Dim("patches·h", j.features.tokens * j.tower.width)
    if kept.elements == x.dim.elements:
        turned = ops.autocast_input(j.tape, x)
        return ops.copy(j.tape, turned, "image states") if j.tower.kind == "siglip" else x
    taken = ops.view(j.tape, x, kept, whole=False)
    return ops.copy(j.tape, taken, "image states") if x.itemsize == (j.tape.autocast or x.itemsize) else taken


def pooled(j: Joint, x: Tensor) -> Tensor:
    """Gemma 3: final norm, a contiguous copy, average pooling, a norm, a product with a parameter."""
    tape, states, features = j.tape, j.states, j.features
    x = norm(states, j.tower.after.norms[0], x, "h")
    j.model_locals.append(x)
    turned = ops.copy(tape, x, "image states")
    small = features.dim("h", j.tower.width)
    pool = ops.average_pool(tape, turned, small, "pooled states")
    del turned
    normed = norm(features, j.tower.projector.norms[0], pool, "h")
    bare = j.tower.projector.tensors[0]
    weight = features.param(bare.name, bare.parameters)
    return ops.linear(tape, normed, weight, features.dim("h", bare.shape[1]), "image tokens")


def linear(j: Joint, x: Tensor) -> Tensor:
    """PaliGemma: final norm, one linear module."""
    x = norm(j.states, j.tower.after.norms[0], x, "h")
    j.model_locals.append(x)
    return project(j.features, x, j.tower.projector.linears[0], "h", "image tokens")


def shuffled(j: Joint, x: Tensor) -> Tensor:
    """InternVL: the class token is cut off, pixels are shuffled in two copies, a norm, two linear modules."""
    tape = j.tape
    for each in j.tower.after.norms:
        x = norm(j.states, each, x, "h")
    j.model_locals.append(x)
    merged = j.features.dim("h", j.tower.projector.norms[0].width)
    x = ops.copy(tape, ops.view(tape, x, merged, whole=False), "shuffled states")
    x = ops.copy(tape, x, "shuffled states")
    hidden = norm(j.features, j.tower.projector.norms[0], x, "h")
    return feed(j, j.tower.projector.linears, hidden)


def merged(j: Joint, x: Tensor) -> Tensor:
    """Qwen: a norm of each patch, two linear modules over those that become one token; the same, with the norm over
    all of these patches, for each block whose states enter the language model's layers."""
    part = j.tower.projector
    for i, _ in enumerate(j.tower.taps, 1):
        hidden = norm(j.features, part.norms[i], Tensor(x.dim, x.itemsize, None, x.node, x.slot), "h")
        j.deep.append(feed(j, part.linears[2 * i : 2 * i + 2], hidden))
    j.model_locals.append(x)
    hidden = norm(j.states, part.norms[0], x, "h")
    found = listed(j, feed(j, part.linears[:2], hidden))
    j.model_locals.append(found)
    j.in_outputs = False
    return found


def convolved(j: Joint, x: Tensor) -> Tensor:
    """GLM: a norm, patches joined by a convolution, a linear module, norm and gelu, a gated merger."""
    tape, after, part = j.tape, j.tower.after, j.tower.projector
    kernel, bias = (j.states.param(each.name, each.parameters) for each in after.tensors)
    normed = norm(j.states, after.norms[0], x, "h")
    del x
    out = j.features.dim("h", part.linears[0].inputs)
    joined = ops.linear(tape, normed, kernel, out, "joined states", bias, both=True)
    del normed
    j.model_locals.append(joined)
    inner, gate, up, down = part.linears
    hidden = project(j.features, joined, inner, "h", "projected images")
    hidden = activate(tape, "gelu", norm(j.features, part.norms[0], hidden, "h"))
    gated = activate(
        tape, j.tower.runs[0].block.feed_forward.activation, project(j.features, hidden, gate, "F", "gate")
    )
    product = ops.mul(tape, gated, project(j.features, hidden, up, "F", "up"), "feed-forward product")
    del gated, hidden
    found = listed(j, project(j.features, product, down, "h", "image tokens"))
    j.model_locals.append(found)
    j.in_outputs = False
    return found


def scatter(tape: Tape, embedded: Tensor, features: Sequence[Tensor]) -> Tensor:
    """``inputs_embeds.masked_scatter(mask, image_features)``: its gradients are a masked copy, and the selected rows.

    Tokens for later layers stand beside the first; the gradients of all wait for the tower's backward."""
    inputs = (embedded, *features)
    return tape.new(embedded.dim, embedded.itemsize, "residual stream", tape.node(inputs, (), ops.of_each(*inputs)))


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
        image = ops.copy(tape, image, "shrunk image", Dim("tokens·h", kept * h))  # ``interpolate``
    lined = Dim("tokens·h", (kept + batch.lines) * h)
    image = ops.concatenate(tape, (image, ends), lined, "packed image")
    return ops.concatenate(tape, (base, image), Dim("tokens·h", batch.tokens * h), "packed image")


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
