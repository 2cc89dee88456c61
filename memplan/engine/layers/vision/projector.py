"""From the tower's last states to the language model's input, as programs on the tape: projectors, and the scatter of
image tokens into the embedded sequence."""

from collections.abc import Callable, Sequence

from memplan.engine.layers.activations import activate
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.tape import ops
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
