"""The patch embedding of a vision tower as a program on the tape, from pixels to the first block's input.

Variables live as in transformers 5.23. A pass has a row a tile, or one of all patches if packed."""

from memplan.engine.layers.lora import adapted, cloned
from memplan.engine.layers.modules import Pass, norm
from memplan.engine.layers.vision.gemma4_tower import embed_by_position, embed_merged
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Node, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Bare
from memplan.spec.vision import Tower

HOOKED = ("clip", "siglip", "internvit", "qwen2_vl", "qwen2_5_vl", "pixtral")
"""Towers whose patch embedding ``enable_input_require_grads`` finds."""


def embed_patches(p: Pass, tower: Tower, pixels: Tensor, patches: int, images: int, leaf: bool = False) -> Tensor:
    """Pixels in the weights' dtype, the convolution over patches, class token, positions, a norm before the blocks.

    ``leaf``: the convolution's output is made to need a gradient, and is kept until that has come."""
    tape, part = p.tape, tower.embedding
    bare = {each.name: each for each in part.tensors}
    out = Dim("patches·h", p.rows * patches * tower.width)
    if tower.kind == "gemma4":
        return embed_by_position(p, tower, pixels, out)
    if tower.kind == "gemma4_unified":
        return embed_merged(p, tower, pixels, out)
    x = unfolded(p, tower, pixels, out) if part.linears else convolved(p, tower, pixels, out)
    if leaf and tower.kind in HOOKED:
        x = as_leaf(tape, x, keeps=tower.kind != "qwen2_vl")
    whole = p.dim("h", tower.width)
    if tower.kind == "qwen2_5_vl":
        x = ops.copy(tape, x, "patches by window")
    if tower.kind == "pixtral":
        x = gathered(p, x, images)
    token = next((bare[name] for name in ("class_embedding", "cls_token") if name in bare), None)
    if token:
        rows = ops.expand(tape, p.param(token.name, token.parameters), Dim("rows·h", p.rows * tower.width))
        x = ops.concatenate(tape, (x, rows), whole, "patch embeddings")
    x = Tensor(whole, x.itemsize, x.storage, x.node, x.slot)
    if tower.kind == "glm4v":
        x = norm(p, part.norms[0], x, "h")
        return sampled(p, bare["position_embedding"], x)
    x = positioned(p, tower, bare, x, whole)
    if leaf and tower.kind == "idefics":
        x = as_leaf(tape, x, keeps=False)  # the first block keeps it
    for each in part.norms:
        x = norm(p, each, x, "h")
    return x


def as_leaf(tape: Tape, x: Tensor, keeps: bool = True) -> Tensor:
    """What ``enable_input_require_grads`` makes of an output that needs no gradient."""
    if x.node is not None or not tape.grad_enabled:
        return x
    return Tensor(x.dim, x.itemsize, x.storage, Node(tape, [], (x.storage,) if keeps else (), lambda t, grads: ()))


def convolved(p: Pass, tower: Tower, pixels: Tensor, out: Dim) -> Tensor:
    """A convolution whose stride is its kernel."""
    tensors = tower.embedding.tensors
    kernel = next(each for each in tensors if len(each.shape) > 2 and each.shape[0] == tower.width)
    biases = (p.param(each.name, each.parameters) for each in tensors if each.name == kernel.name + ".bias")
    cast = ops.cast(p.tape, pixels, p.mode.numerics.itemsize, "pixels")
    weight, bias = p.param(kernel.name, kernel.parameters), next(biases, None)
    return ops.linear(p.tape, cast, weight, out, "patch embeddings", bias, both=True)


def unfolded(p: Pass, tower: Tower, pixels: Tensor, out: Dim) -> Tensor:
    """``nn.Unfold`` and a linear module, which copies what it sees turned (Llama 4)."""
    tape, linear, adapter = p.tape, tower.embedding.linears[0], p.mode.adapter
    x = tape.new(pixels.dim, p.mode.numerics.itemsize, "unfolded pixels")
    seen = ops.copy(tape, ops.autocast_input(tape, x), "unfolded pixels")
    result = ops.linear(tape, seen, p.param(linear.name, linear.parameters), out, "patch embeddings")
    del seen
    if adapter is None or linear.name not in adapter.targets:
        return result
    if adapter.itemsize == x.itemsize:
        x = ops.copy(tape, x, "unfolded pixels")
    return adapted(p, x, [cloned(tape, result, p.mode.quantised)], linear, out, adapter, p.mode.quantised)


def gathered(p: Pass, x: Tensor, images: int) -> Tensor:
    """Patches of all images joined in one sequence; the convolution's output is a local of the tower (Pixtral)."""
    if p.held is not None:
        p.held.append(x)
    parts = ops.split(p.tape, x, images, Dim(x.dim.symbol, x.dim.elements // images))
    return ops.concatenate(p.tape, parts, x.dim, "patch embeddings")


def positioned(p: Pass, tower: Tower, bare: dict[str, Bare], x: Tensor, whole: Dim) -> Tensor:
    """Learned positions: looked up for one image or for each, added as they are, or interpolated (Qwen3, Kimi)."""
    tape = p.tape
    names = ("position_embedding", "position_embeddings", "positional_embedding_vlm")
    table = next((bare[name] for name in names if name in bare), None)
    if tower.kind == "kimi" and table:
        return interpolated(p, p.param(table.name, table.parameters), x, whole)
    if table:
        weight = p.param(table.name, table.parameters)
        looked_up = whole if tower.kind == "idefics" else weight.dim
        found = ops.embedding(tape, weight, looked_up, weight.itemsize) if table.name == names[0] else weight
        x = ops.add(tape, x, ops.expand(tape, found, whole), "patch embeddings")
    if "pos_embed" in bare:
        weight = p.param("pos_embed", bare["pos_embed"].parameters)
        found = ops.cast(tape, ops.embedding(tape, weight, whole, weight.itemsize), x.itemsize, "patch embeddings")
        x = ops.add(tape, x, found, "patch embeddings")
    return x


def sampled(p: Pass, table: Bare, x: Tensor) -> Tensor:
    """``F.grid_sample`` of the table in fp32 at the place of each patch; the grid is kept, and the table as it is seen
    (transformers 5.24 modeling_glm4v.py: Glm4vVisionEmbeddings)."""
    tape, grid = p.tape, p.tape.new(p.dim("2", 2), ops.FP32, "places of patches")
    seen = ops.cast(tape, p.param(table.name, table.parameters), ops.FP32, "positions")
    size = seen.dim, ops.FP32
    node = tape.node((seen,), (seen, grid), lambda t, g: (t.gradient(size, "position gradients"),))
    found = tape.new(x.dim, ops.FP32, "positions", node)
    del seen, grid
    return ops.add(tape, x, ops.cast(tape, found, p.mode.numerics.itemsize, "positions"), "patch embeddings")


def interpolated(p: Pass, table: Param, x: Tensor, whole: Dim) -> Tensor:
    """A sum of sixteen rows of the table for each patch, and of frames in fp32; indices and weights are kept."""
    tape, indices = p.tape, [p.tape.new(p.dim("16", 16), 8, "interpolation indices") for _ in range(2)]
    weights = tape.new(p.dim("16", 16), table.itemsize, "interpolation weights")
    node = tape.node((table,), (*indices, weights), ops.dense(table, table.itemsize))
    found = tape.new(whole, table.itemsize, "positions", node)
    found = ops.add(tape, found, tape.new(whole, ops.FP32, "positions of frames"), "positions")
    return ops.add(tape, x, ops.cast(tape, found, x.itemsize, "positions"), "patch embeddings")
