"""Seconds of a layer's matrix products on one GPU: each by its shape, as tensor parallelism and experts leave it.

A column-parallel product has its columns divided, a row-parallel one its rows of the weight; its gradients are products
of the same three extents turned. Experts are one grouped product: every rank of the stage that sees other tokens, or a
part of the same ones, does its share of all that is routed, wherever the experts stand, so that what a rank multiplies
is its own tokens' work divided by tensor parallelism alone; their layout decides how many experts it holds, how wide,
and so how many tokens each of them gets. Assumed: a rank's tokens spread evenly over its experts.

One product: tiles on the card's processors, the last wave of them, bytes, a start. A kernel cuts the result into tiles,
and as many tiles run at once as the card has multiprocessors: 133 tiles on 132 of them take twice as long as 132. Small
tiles lose less of the last wave and run slower; a short result over a long inner dimension is split along it, and its
parts are summed (split-K). The library's heuristic is taken to choose the best. The shares of tiles, the start and the
write that is not hidden are set on 59 products measured on an H100 (benchmarks/matmuls.py: openxla/xla's table of its
cost model), which they meet within 3 % in the median; no training speed was used."""

from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from memplan.cost.rates import Device, Rates, products_rate
from memplan.cost.work import Product, Work
from memplan.spec.recipe import Recipe

CASTS: dict[str, float] = {"delayed": 3.5, "tensorwise": 5.5, "blockwise": 4.0, "mxfp8": 4.0, "nvfp4": 5.0}
"""Bytes of casting one element of half precision to FP8 in Transformer Engine: read (2) and written in both layouts
(2), and read once more for a scale of the whole tensor that no history tells (2), but for norms, which find it (2.13
pytorch/csrc/extensions/normalization.cpp: FUSED_NORM_AMAX_FP8) or with a history write FP8 themselves (FULLY_FUSED); to
FP4 read for its scale and for the cast (4), and written in half a byte twice (1; 2.20 csrc/quantizer.cpp)."""
CAST_COMPILED, CAST_ALONE = 6.0, 19.0
"""The same of torchao's operations compiled; alone they go by way of fp32: written and read twice (12), and one (1)
more (float8/float8_utils.py)."""


class Eight(NamedTuple):
    """Which products run in FP8 or FP4, and what their operands' casts move."""

    cast: float
    """Bytes of each element that comes in, and of each gradient's: read, for the scale and the cast, and written."""
    weight_gradient: bool = True
    experts: bool = True
    itemsize: float = 1.0


def eight_of(recipe: Recipe) -> Eight | None:
    """Transformer Engine's products in Megatron, or torchao's of linears: stacked experts stay as they are."""
    if recipe.trainer.megatron:
        kind = recipe.megatron.narrow
        return Eight(CASTS[kind], itemsize=0.5 if recipe.megatron.fp4_format else 1.0) if kind else None
    own = recipe.operators.kernels.float8
    if own is None:
        return None
    theirs = CASTS["mxfp8" if own.block else "delayed"]  # TransformerEngine's modules
    cast = theirs if own.layouts else CAST_COMPILED if own.fused else CAST_ALONE
    return Eight(cast, own.weight_gradient, experts=False)


class Layout(NamedTuple):
    """What decides a product's extents, beside the layer."""

    tokens: float
    """Of one micro-batch on one GPU, before tensor parallelism."""
    tensor: int
    expert: int
    expert_tensor: int
    itemsize: int
    merged: bool
    """Products of one input are one (Megatron's linear_qkv and linear_fc1)."""
    imbalance: float = 1.0
    """Tokens of the fullest rank's experts, for which all wait, as a multiple of the mean."""
    eight: Eight | None = None


class Products(NamedTuple):
    """Seconds."""

    forward: float
    inputs: float
    """Of the gradients of what came in."""
    weights: float
    """Of the gradients of the matrices."""
    elements: tuple[float, float]
    """That come in, and whose gradients do, of products in FP8."""


class Extents(NamedTuple):
    """[rows, inner] × [inner, columns], so many at once."""

    rows: float
    columns: float
    inner: float
    batches: float = 1.0
    grouped: bool = False
    """Of experts."""


@lru_cache(maxsize=4096)
def products(each: Work, layout: Layout, device: Device, rates: Rates) -> Products:
    """Of one layer."""
    total, come, out = [0.0, 0.0, 0.0], 0.0, 0.0
    for at in extents(each, layout):
        eight = layout.eight if layout.eight and (layout.eight.experts or not at.grouped) else None
        if eight:
            come += at.rows * at.inner * at.batches
            out += at.rows * at.columns * at.batches
        low = eight.itemsize if eight else layout.itemsize
        sizes = low, low, low if eight is None or eight.weight_gradient else layout.itemsize
        inputs = at._replace(columns=at.inner, inner=at.columns)
        weights = Extents(at.columns, at.inner, at.rows, at.batches)
        for kind, (of, itemsize) in enumerate(zip((at, inputs, weights), sizes, strict=True)):
            total[kind] += product_seconds(*of[:4], itemsize, device, rates)
    return Products(total[0], total[1], total[2], (come, out))


def extents(each: Work, layout: Layout) -> Iterator[Extents]:
    """Of each product of a layer's forward."""
    tensor, tokens = layout.tensor, layout.tokens
    for product in merged(each.products) if layout.merged else each.products:
        columns, inner = (1, tensor) if product.by_rows else (tensor, 1)
        yield Extents(tokens, product.outputs / columns, product.inputs / inner)
    if each.grouped:
        held = max(1.0, each.experts / layout.expert)
        routed = layout.imbalance * tokens / tensor * layout.expert_tensor * each.routed / held
        for product in each.grouped:
            columns, inner = (1, layout.expert_tensor) if product.by_rows else (layout.expert_tensor, 1)
            yield Extents(routed, product.outputs / columns, product.inputs / inner, held, grouped=True)


def merged(given: tuple[Product, ...]) -> Iterator[Product]:
    """Column-parallel products of one part and one input in one."""
    before: Product | None = None
    for product in given:
        if before is not None and (before.part, before.inputs, before.by_rows) == (product.part, product.inputs, False):
            before = before._replace(outputs=before.outputs + product.outputs)
            continue
        if before is not None:
            yield before
        before = product
    if before is not None:
        yield before


TILES: tuple[tuple[int, int, float], ...] = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.92),
    (128, 64, 0.75),
    (64, 64, 0.5),
)
"""(rows, columns, share of the best rate that a kernel of such tiles reaches)."""
SPLITS = (1, 2, 4)
START = 5e-6
"""Seconds before the first tile and after the last: launch, loading the first operands, draining."""
UNHIDDEN = 0.5
"""Of the time to write the result, what does not run beside the products of other tiles."""
MANY = 16
"""Waves from which on the last one is not worth looking at: 3 % of the time at most."""
HALF = 2
"""Bytes of what a product in FP8 writes."""
SUM_BYTES = 8
"""Of each element of a part's fp32 sum: written and read."""


def product_seconds(
    rows: float, columns: float, inner: float, batches: float, itemsize: float, device: Device, rates: Rates
) -> float:
    """Of ``batches`` products [rows, inner] × [inner, columns] in one kernel (a grouped product), or of one.

    Extents may be fractions, where they are means over ranks or experts."""
    if not (rows and columns and inner and batches):
        return 0.0
    return _seconds(ceil(rows), ceil(columns), ceil(inner), ceil(batches), itemsize, device, rates)


@lru_cache(maxsize=1 << 16)
def _seconds(rows: int, columns: int, inner: int, batches: int, itemsize: float, device: Device, rates: Rates) -> float:
    speed = products_rate(device, rates, itemsize)
    memory = device.memory * rates.memory
    written = batches * rows * columns * max(itemsize, HALF) / memory
    read = batches * inner * (rows + columns) * itemsize / memory
    return max(_tiled(rows, columns, inner, batches, speed, memory, device.units), read + written) + (
        START + UNHIDDEN * written
    )


def _tiled(rows: int, columns: int, inner: int, batches: int, speed: float, memory: float, units: int) -> float:
    """Of the best choice of tiles and parts. Without a number of processors (not NVIDIA's) tiles alone count."""
    best = float("inf")
    for high, wide, share in TILES:
        tiles = batches * ceil(rows / high) * ceil(columns / wide)
        area = 2.0 * high * wide * inner / (speed * share)
        if not units or tiles > MANY * units:
            best = min(best, tiles * area)
            continue
        for parts in SPLITS:
            summed = batches * rows * columns * SUM_BYTES * parts / memory if parts > 1 else 0.0
            best = min(best, ceil(tiles * parts / units) * units * area / parts + summed)
    return best
