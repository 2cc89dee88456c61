"""What the machine that a card stands in does beside it: how fast its host issues kernels, its bus, its optimizers."""

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
CHIPS = ("gh200-", "gb200-", "gb300-")
"""Cards on a board with their host."""
HOST_STEP = 34 * GIGA
"""Bytes per second at which the CPU optimizers of a node step, all its cards' together: 3.1e9 elements of Qwen2.5-3B in
3.08 s on a host of 128 cores under the usual launch (deepspeedai/DeepSpeed#7474), at the 34 bytes that each reads and
writes; 72B on 4 nodes in 10 s (#6834) is 61, a bound launch 44."""


def host_of(kind: Gpu) -> float:
    """Seconds of the host beside an A100's."""
    if kind.title.startswith("GeForce"):
        return DESKTOP
    return SERVER if kind.architecture in NEWER else 1.0


def bus(kind: Gpu) -> float:
    """Bytes per second one way to the host's pinned memory."""
    return (CHIP if kind.name.startswith(CHIPS) else BUS.get(kind.architecture, OTHER_BUS)) * REACHED * GIGA
