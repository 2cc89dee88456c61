"""Seconds of one matrix product by its shape: tiles on the card's processors, the last wave of them, bytes, a start.

A kernel cuts the result into tiles, and as many tiles run at once as the card has multiprocessors: 133 tiles on 132 of
them take twice as long as 132. Small tiles lose less of the last wave and run slower; a short result over a long inner
dimension is split along it, and its parts are summed (split-K). The library's heuristic is taken to choose the best.
The shares of tiles, the start and the write that is not hidden are set on 59 products measured on an H100
(benchmarks/matmuls.py: openxla/xla's table of its cost model), which they meet within 3 % in the median; no training
speed was used.
"""

from functools import lru_cache
from math import ceil

from memplan.cost.rates import Device, Rates, products_rate

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
    rows: float, columns: float, inner: float, batches: float, itemsize: int, device: Device, rates: Rates
) -> float:
    """Of ``batches`` products [rows, inner] × [inner, columns] in one kernel (a grouped product), or of one.

    Extents may be fractions, where they are means over ranks or experts.
    """
    if not (rows and columns and inner and batches):
        return 0.0
    return _seconds(ceil(rows), ceil(columns), ceil(inner), ceil(batches), itemsize, device, rates)


@lru_cache(maxsize=1 << 16)
def _seconds(rows: int, columns: int, inner: int, batches: int, itemsize: int, device: Device, rates: Rates) -> float:
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
