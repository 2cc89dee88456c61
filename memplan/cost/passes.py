"""Seconds of a micro-step's passes on one GPU: matmuls, attention, pointwise chains, head and loss.

Products are bound by FLOP or by bytes, whichever takes longer (the roofline); pointwise chains by bytes; and the whole
of a layer by the host, which issues its kernels one after another. Pure functions of a recipe, its model's work, and
rates; what a pass costs depends on nothing else, so that passes of equal shape are remembered.
"""

from typing import NamedTuple

from memplan.cost.rates import Device, Rates
from memplan.cost.work import ModelWork, Work
from memplan.spec.recipe import Recipe

HALF = 2
ADAPTED = 6.0
"""Bytes that an adapter's pointwise operations move for each element in and out of its linear: the input cast to the
adapter's fp32 (2 + 4), its output scaled, cast and added."""
BACKWARD_MOVES = 1.6
"""Pointwise bytes of a backward against its forward: gradients come in, and saved tensors with them."""
BACKWARD_KERNELS = 1.0
"""Time to issue a backward's kernels against a forward's: twice as many, from C++ and not from Python."""
FUSED_KERNELS = 0.5
"""Kernels that fused layers issue against the plain ones."""
FLASH_BACKWARD, EAGER_BACKWARD = 2.5, 2.0
"""Attention's backward against its forward: five products, the scores made again, against two (arXiv:2205.14135,
algorithm 4); eager keeps them, and has four."""
EAGER_BYTES = 22.0
"""Bytes that eager attention moves for each score: written, masked, read as fp32, softmax written, cast, read."""
HEAD_BYTES: dict[str, float] = {
    "cross-entropy": 34.0,
    "shifted-cross-entropy": 54.0,
    "foak-cross-entropy": 32.0,
    "log-softmax": 30.0,
    "stacked-log-softmax": 36.0,
    "one-hot": 60.0,
    "selective": 24.0,
    "megatron-cross-entropy": 16.0,
    "compiled-cross-entropy": 14.0,
    "selective-kernel": 8.0,
    "flash-cross-entropy": 12.0,
    "flash-cross-entropy-in-place": 8.0,
    "liger": 8.0,
    "foak-chunks": 16.0,
    "liger-preference": 12.0,
    "cut-cross-entropy": 0.0,
    "compiled-unsloth-chunks": 10.0,
}
"""Bytes that a head's program moves for each logit, forward and backward: the passes over bf16 and fp32 copies that
tables/loss_heads.py describes."""
OTHER_HEAD_BYTES = 20.0
AGAIN = frozenset({"fused", "chunked", "chunked-log-probs", "chunked-nll", "cut-cross-entropy"})
"""Heads whose product is made again in backward (tables/loss_heads.py)."""


class Pass(NamedTuple):
    """Seconds of all layers over one micro-batch on one GPU, as if it held every layer."""

    products: float
    attention: float
    moves: float
    forward: float
    """Of the forward: the sum of the three, or the host's time where that is longer."""
    backward: float
    again: float
    """What checkpointing repeats of the forward."""


class Shape(NamedTuple):
    """What decides how long a pass over layers takes."""

    rows: int
    length: int
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    sequence: bool
    itemsize: int
    wide: bool
    """Products run in fp32."""
    fused: bool
    attention: str
    padded: bool
    trained: float
    """Share of the products that also have a gradient of their weights."""
    adapter: float
    """Elements per layer of adapters."""
    adapted: int
    """Linears per layer with an adapter."""
    quantised: float
    """Bits of a quantised weight; 0 without."""
    checkpointed: str
    """Empty, full, products, attention, or names of Megatron's modules."""
    every: int


def shape_of(recipe: Recipe, work: ModelWork) -> Shape:
    """The shape of the policy's trained pass."""
    degrees, adapter, again = recipe.parallel, recipe.adapter, recipe.checkpointing.recompute
    layers = sum(count for count, _ in work.layers) or 1
    kernels = recipe.operators.kernels
    checkpointed = ""
    if again.modules:
        checkpointed = ",".join(sorted(again.modules))
    elif again.policy or recipe.checkpointing.layers:
        checkpointed = again.policy or "full"
    adapted, elements = _adapted(recipe) if adapter else (0, 0.0)
    batch = recipe.batch
    several = max(1, batch.sequence_length // batch.longest) if batch.longest else 1  # each attends within itself
    return Shape(
        rows=recipe.rows * several,
        length=batch.sequence_length // several,
        tensor=degrees.tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_tensor if degrees.expert > 1 else degrees.tensor,
        sequence=degrees.sequence,
        itemsize=recipe.numerics.autocast or recipe.numerics.itemsize,
        wide=(recipe.numerics.autocast or recipe.numerics.itemsize) == 4,
        fused=recipe.trainer.megatron or kernels.compiled or bool(kernels.norm),
        attention="flash" if recipe.trainer.megatron else recipe.operators.attention,
        padded=recipe.batch.padded,
        trained=0.0 if adapter else work.trained_share,
        adapter=elements / layers,
        adapted=adapted // layers,
        quantised=recipe.quantised.scheme.bits if recipe.quantised else 0,
        checkpointed=checkpointed,
        every=again.every,
    )


def _adapted(recipe: Recipe) -> tuple[int, float]:
    """(linears with an adapter, elements of all adapters)."""
    adapter = recipe.adapter
    assert adapter is not None
    linears, elements = 0, 0.0
    for run in recipe.model.runs:
        for linear in () if run.layer.unadapted else run.layer.linears:
            if linear.name in adapter.targets:
                linears += run.count
                elements += run.count * adapter.rank_of(linear.name) * (linear.inputs + linear.outputs)
    return linears, elements


def layers_pass(work: ModelWork, shape: Shape, device: Device, rates: Rates) -> Pass:
    """The pass over all layers."""
    total = [0.0] * 6
    for count, each in work.layers:
        for position, seconds in enumerate(_layer(each, shape, device, rates)):
            total[position] += count * seconds
    return Pass(*total)


def _layer(each: Work, shape: Shape, device: Device, rates: Rates) -> Pass:
    tokens = shape.rows * shape.length / shape.context
    speed = (device.wide_products if shape.wide else device.products) * rates.shapes
    memory = device.memory * rates.memory
    split = shape.expert * shape.expert_tensor
    visited = (each.weights - each.expert) / shape.tensor + each.expert / shape.expert_tensor
    stored = (each.stored - each.expert_stored) / shape.tensor + each.expert_stored / split
    read = (stored + tokens * each.flow / shape.tensor) * shape.itemsize
    products = max(2 * tokens * visited / speed, read / memory)
    adapters = 2 * tokens * shape.adapter / shape.tensor / speed
    if shape.quantised:
        products += stored * (shape.quantised / 8 + shape.itemsize) / memory
    attention, scores = _attention(each, shape, tokens, device, rates)
    outside = each.between[shape.fused] / (shape.tensor if shape.sequence else 1)
    inside = (each.within[shape.fused] + (ADAPTED * each.flow if shape.adapted else 0)) / shape.tensor
    moved = tokens * (outside + inside) * shape.itemsize / HALF
    moves = moved / memory + scores
    issued = (each.kernels + 4 * shape.adapted) * rates.launch * (FUSED_KERNELS if shape.fused else 1)
    forward = max(products + adapters + attention + moves, issued)
    flash = EAGER_BACKWARD if shape.attention == "eager" else FLASH_BACKWARD
    behind = products * (1 + shape.trained) + 2 * adapters + attention * flash + moves * BACKWARD_MOVES
    backward = max(behind, issued * BACKWARD_KERNELS)
    again = {
        "": 0.0,
        "full": forward,
        "products": 0.5 * products + moves,
        "attention": products + adapters + moves,
    }.get(shape.checkpointed)
    if again is None:
        again = (attention + scores if "core_attn" in shape.checkpointed else 0.0) + (
            0.6 * products if "mlp" in shape.checkpointed or "moe" in shape.checkpointed else 0.0
        )
    return Pass(products + adapters, attention, moves, forward, backward, again / shape.every)


def _attention(each: Work, shape: Shape, tokens: float, device: Device, rates: Rates) -> tuple[float, float]:
    """(seconds of products, seconds of scores through memory) of a forward. A causal kernel skips half of the pairs,
    unless a mask is given to it or it is eager; a recurrent mixer does what one of PyTorch's operations or one kernel
    does at attention's rate."""
    speed = (device.wide_products if shape.wide else device.attention) * rates.attention
    skips = each.causal and shape.attention != "eager" and not (shape.padded and shape.attention == "sdpa")
    pairs = shape.length / 2 if skips else float(shape.length)
    if each.window and shape.attention != "eager":
        pairs = min(pairs, float(each.window))
    seconds = tokens * (pairs * each.per_pair + each.recurrent) / shape.tensor / speed
    if shape.attention != "eager" or not each.per_pair:
        return seconds, 0.0
    return seconds, tokens * shape.length * each.heads / shape.tensor * EAGER_BYTES / (device.memory * rates.memory)


class Head(NamedTuple):
    """Seconds of the head and the loss over one micro-batch on one GPU."""

    forward: float
    backward: float


def head_pass(recipe: Recipe, work: ModelWork, device: Device, rates: Rates) -> Head:
    """The head's product and its loss, with what stands outside the layers."""
    degrees, code = recipe.parallel, recipe.loss.code
    length = recipe.batch.completion_length if code.projects_completions else recipe.batch.sequence_length
    whole = recipe.rows * recipe.batch.sequence_length / degrees.context
    tokens = recipe.rows * length / degrees.context
    itemsize = recipe.numerics.autocast or recipe.numerics.itemsize
    speed = (device.wide_products if itemsize == 4 else device.products) * rates.shapes
    memory = device.memory * rates.memory
    matrix = work.head / degrees.tensor
    product = max(2 * tokens * matrix / speed, matrix * itemsize / memory) + 2 * whole * work.outside / speed
    loss = 0.0
    if work.vocabulary > 1:
        moved = HEAD_BYTES.get(recipe.loss.head, OTHER_HEAD_BYTES) * (1 if itemsize == 2 else 1.5)
        loss = tokens * work.vocabulary / degrees.tensor * moved / memory
    trained = 0.0 if recipe.adapter else 1.0
    again = product if recipe.loss.head in AGAIN else 0.0
    return Head(product + loss / 2, product * (1 + trained) + again + loss / 2)
