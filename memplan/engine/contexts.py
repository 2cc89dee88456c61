"""What a process has on a card outside PyTorch's allocator before it talks to others: context, kernels, libraries.

Read off 36 out-of-memory messages that state the process, allocated and reserved: the process less both, at the end of
a real run, so kernels that a run loads are in it. Low is the least that was seen, expected the median, high a quarter
above the most: drivers and the kernels of other jobs differ. Each process on a card has its own.
"""

from typing import NamedTuple

from memplan.spec.gpu import Gpu
from memplan.units import MiB


class Context(NamedTuple):
    """In MiB."""

    low: int
    expected: int
    high: int
    source: str


MESSAGES = "out-of-memory messages of public threads"
EAGER = "pytorch#86509, unsloth-zoo#1053, stas00/ml-engineering debug/pytorch.md"
CONTEXTS = {
    "5.2": Context(307, 320, 845, "a guess from 6.1"),
    "6.0": Context(307, 320, 580, "two out-of-memory messages of P100s in public logs (317 and 324 MiB); high as 8.6"),
    "6.1": Context(307, 320, 845, "a guess from 6.0; high as 8.0"),
    "7.0": Context(360, 379, 590, f"four {MESSAGES}, V100"),
    "7.5": Context(110, 144, 260, f"six {MESSAGES}, T4"),
    "8.0": Context(490, 522, 845, f"five {MESSAGES}, A100"),
    "8.6": Context(250, 360, 580, f"eight {MESSAGES}, RTX 3090, A5000 and A6000"),
    "8.9": Context(200, 480, 655, f"seven {MESSAGES}, RTX 4090 and L40S"),
    "9.0": Context(520, 670, 945, f"five {MESSAGES}, H100 and H200"),
    "10.0": Context(520, 700, 1450, "a guess from 9.0"),
    "10.3": Context(520, 700, 1450, "a guess from 9.0"),
    "12.0": Context(490, 500, 945, f"one of the {MESSAGES}, RTX 5090; high as 9.0"),
}
"""By compute capability."""
ANY = Context(110, 550, 1450, f"all of the {MESSAGES}; {EAGER}")
"""An NVIDIA card that is not named: a CUDA that loads every kernel at once (before 11.7) takes 0.7 to 1.4 GiB."""
OTHERS = Context(300, 900, 2048, "a guess")
"""Runtime contexts of other makers: nothing is published for them; rocBLAS's kernels alone are about 200 MiB
(tensorflow-upstream#2490)."""


def is_cuda(gpu: Gpu | None) -> bool:
    """An NVIDIA card, or taken for one."""
    return gpu is None or gpu.vendor in ("nvidia", "custom")


def context_of(gpu: Gpu | None) -> Context:
    """The row of a card."""
    if not is_cuda(gpu):
        return OTHERS
    return CONTEXTS.get(gpu.architecture, ANY) if gpu is not None else ANY


def context_bytes(gpu: Gpu | None) -> tuple[int, int, int]:
    """Low, expected, high."""
    row = context_of(gpu)
    return row.low * MiB, row.expected * MiB, row.high * MiB
