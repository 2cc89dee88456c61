"""What is beside a card's processors: its cache, and the machine that it stands in: how fast that issues kernels, its
bus, its optimizers."""

from typing import NamedTuple

from memplan.spec.gpu import Gpu

GIGA = 10**9
SERVER, DESKTOP = 10.82 / 18.15, 8.0 / 18.15
"""Seconds of the host beside those of an A100's, EPYCs of the 7000s and Xeons of their years: of an H100's and later,
and of a desktop's, whose clock is half as high again, by one program that waits for it (mit-han-lab/llm-awq#61, ms of a
token: 17.7 to 18.6, 10.8, and 7.5 to 8.5 with an i9-13900K)."""
NEWER = frozenset({"9.0", "10.0", "10.3", "12.0", "gfx942", "gfx950"})

BUS: dict[str, float] = {
    **dict.fromkeys(("6.0", "6.1", "7.0", "7.5"), 15.75),
    **dict.fromkeys(("9.0", "10.0", "10.3", "12.0", "gfx942", "gfx950", "gaudi3"), 63.0),
}
OTHER_BUS, CHIP, REACHED = 31.5, 450.0, 0.8
"""GB/s each way between a card and its host: PCIe 3, 5 and 4, 16 lanes; of Grace's own link (NVLink-C2C); and what is
reached of it with pinned memory: 25 of 31.5."""


class Chip(NamedTuple):
    """Of a card on a board with its host: what Grace's cores take beside a DGX H100's 8480C."""

    python: float
    """For what Python issues one by one; launches within a library's own loop nobody measured, and are as there."""
    engine: float
    """For a linear of Transformer Engine, beside the 115 µs that it took there."""


CHIPS: dict[str, Chip] = {
    "gh200-": Chip(33.17 / 13.48, 90.53 / 115),
    "gb200-": Chip(37.08 / 13.48, 99.66 / 115),
    "gb300-": Chip(37.08 / 13.48, 99.66 / 115),
}
"""By the beginnings of cards' names: µs of the forward of PyTorch's linear, and of Transformer Engine's in August 2025
(NVIDIA/TransformerEngine#2053), which is quicker than it was (#1191); a GB300's as a GB200's."""
NO_CHIP = Chip(1.0, 1.0)
HOST_STEP = 34 * GIGA
"""Bytes per second at which the CPU optimizers of a node step, all its cards' together: 3.1e9 elements of Qwen2.5-3B in
3.08 s on a host of 128 cores under the usual launch (deepspeedai/DeepSpeed#7474), at the 34 bytes that each reads and
writes; 72B on 4 nodes in 10 s (#6834) is 61, a bound launch 44."""


MESHES: dict[str, int] = {"gh200-": 4, "mi3": 8}
"""Cards of a node that are joined two by two, without a switch, by the beginnings of their names: four GH200 by 150
GB/s each way (apps.fz-juelich.de/jsc/hps/jupiter/configuration.html), MI300's eight by one Infinity Fabric link each
(rocm.blogs.amd.com: mi300x-rccl-xgmi)."""


def mesh_of(kind: Gpu) -> int:
    """Such cards of a node; 0 with a switch."""
    return next((cards for start, cards in MESHES.items() if kind.name.startswith(start)), 0)


def host_of(kind: Gpu) -> float:
    """Seconds of the host beside an A100's."""
    if kind.title.startswith("GeForce"):
        return DESKTOP
    return SERVER if kind.architecture in NEWER else 1.0


def chip_of(kind: Gpu) -> Chip:
    """The host that it stands on a board with."""
    return next((chip for start, chip in CHIPS.items() if kind.name.startswith(start)), NO_CHIP)


def bus(kind: Gpu) -> float:
    """Bytes per second one way to the host's pinned memory."""
    return (CHIP if kind.name.startswith(tuple(CHIPS)) else BUS.get(kind.architecture, OTHER_BUS)) * REACHED * GIGA


CACHE: dict[str, float] = {"8.0": 40e6, "8.9": 72e6}
CACHE_OF: dict[str, float] = {"l40s-48gb": 96e6, "l40-48gb": 96e6, "rtx-6000-ada-48gb": 96e6, "l4-24gb": 48e6}
"""Bytes of the second-level cache, by architecture and of other cards (NVIDIA's whitepapers)."""
CACHED: dict[str, float] = {"8.0": 2447.0 / 108, "8.9": 3645.0 / 128}
"""GB/s and multiprocessor of copies that stay in it (smallscientist1/cuda_microbenchmark analysis_A100.md and
analysis_RTX4090.md: arrays of 2 and 16 MB; of 32 MB 1,232 and 2,318 GB/s, of 64 MB the memory's). Others' nobody
published."""


class Cache(NamedTuple):
    """A card's second level."""

    bytes: float = 0.0
    """0 where its rate is not known."""
    rate: float = 1.0
    """Bytes/s."""

    def moved(self, chain: tuple[float, float], fused: bool, working: float, memory: float) -> float:
        """Bytes of a chain, (of single operations, of one), as if all went through ``memory``: what operations write
        for one another beyond what one moves, ``working`` bytes at a time, stays here where half of it holds them, and
        not at all from half as much again on as it holds."""
        single, least = chain
        if fused or not self.bytes:
            return chain[fused]
        share = min(1.0, max(0.0, 1.5 - working / self.bytes))
        return least + (single - least) * (1 - share * (1 - memory / self.rate))


def cache_of(kind: Gpu, units: int) -> Cache:
    """That of a card with so many multiprocessors."""
    if kind.architecture not in CACHED or not units:
        return Cache()
    return Cache(CACHE_OF.get(kind.name, CACHE[kind.architecture]), CACHED[kind.architecture] * units * GIGA)
