"""What is on the card beside the job's tensors: library workspaces, the CUDA context, communicators' buffers.

Bands, not constants: each row carries a low and a high figure with its source.

What a process has on a card outside PyTorch's allocator before it talks to others: context, kernels, libraries.

Read off 36 out-of-memory messages that state the process, allocated and reserved: the process less both, at the end of
a real run, so kernels that a run loads are in it. Low is the least that was seen, expected the median, high a quarter
above the most: drivers and the kernels of other jobs differ. Each process on a card has its own."""

from typing import NamedTuple

from memplan.engine.ledger import Ledger
from memplan.engine.nccl import enter_communicators
from memplan.spec.gpu import Gpu
from memplan.spec.recipe import Recipe
from memplan.tables.texts import texts_by_name
from memplan.units import GPU_ROUNDING, GiB, KiB, MiB

CUBLAS_LARGE_BYTES = 8 * 4096 * KiB
CUBLAS_SMALL_BYTES = 2 * 4096 * KiB + 8 * 16 * KiB
"""cuBLAS workspace per handle and stream: 32 MiB on capability 9, 10, 12, 8.125 MiB below (CublasHandlePool.cpp)."""
HANDLES = 2
"""Forward's thread has a handle of its own, and so has autograd's thread of the device, which runs backward
(ATen/cuda/detail/DeviceThreadHandles.h: a pool for each thread)."""
ROCM_BYTES = {"gfx942": 128 * MiB, "gfx950": 128 * MiB}
HIPBLASLT_BYTES = 76 * MiB
"""hipBLASLt's own workspace (HIPBLASLT_WORKSPACE_SIZE), which only products that it runs take."""
SCALER_TENSORS = 3


def workspace_bytes(gpu: Gpu) -> int:
    """Workspace that a thread's first matmul takes from torch's allocator on this card."""
    if gpu.vendor == "nvidia":
        return CUBLAS_LARGE_BYTES if gpu.architecture.split(".")[0] in ("9", "10", "12") else CUBLAS_SMALL_BYTES
    if gpu.vendor == "custom":
        return CUBLAS_LARGE_BYTES
    return ROCM_BYTES.get(gpu.architecture, 32 * MiB) if gpu.vendor == "amd" else 0


LEFT_FREE = 12 * GiB // 10


def warm_up_bytes(recipe: Recipe) -> int:
    """What ``from_pretrained`` asks for at once, and lets go of, before it reads what is packed on the card: half of
    the model before it is packed, or of what is free but for 1.2 GiB. What weights do not take of it stays reserved.

    Source: transformers 4.55 modeling_utils.py: caching_allocator_warmup, quantizers/base.py: get_cuda_warm_up_factor
    (4.51 leaves a twentieth free; to 4.53 a tied head counts twice, which is ignored)."""
    gpu, base, loading = recipe.hardware.gpu, recipe.quantised, recipe.moments.loading
    if base is None or loading.way != "card" or not loading.warms_up:
        return 0
    whole = recipe.model.params.total * base.original_itemsize
    return (whole if gpu is None else min(whole, gpu.usable_bytes - context_bytes(gpu)[1] - LEFT_FREE)) // 2


def processes(recipe: Recipe) -> int:
    """Of the trainer's on a card: one, and a critic's, which rests on the host while the policy trains."""
    return 1 + (recipe.trainer.rollouts.critic == "own-process" and recipe.method.name in ("ppo", "values"))


def enter_overhead(ledger: Ledger, recipe: Recipe) -> None:
    """Workspaces (once the card is named), context and communicators."""
    gpu = recipe.hardware.gpu
    if gpu is not None:
        # Megatron's layers run in TransformerEngine's own workspaces; its head in torch's, of both threads
        handles = 1 if recipe.in_megatron and not recipe.parallel.last else HANDLES
        ledger.add(
            "matmul workspace",
            "workspaces",
            handles * workspace_bytes(gpu),
            low=handles * CUBLAS_SMALL_BYTES if gpu.vendor == "custom" else -1,
        ).told(handles, workspace_bytes(gpu))
    if gpu is not None and gpu.vendor == "amd":
        ledger.add("hipBLASLt workspace", "workspaces", HIPBLASLT_BYTES, low=0).told()
    if recipe.storage.precision.name == "fp16-amp" and recipe.zero_stage < 0:
        ledger.add("loss scaler", "buffers", SCALER_TENSORS * GPU_ROUNDING).told(SCALER_TENSORS, GPU_ROUNDING)
    count = processes(recipe)
    low, expected, high = (count * each for each in context_bytes(gpu))
    ledger.add(
        "CUDA context and loaded kernels" if is_cuda(gpu) else "runtime context and loaded kernels",
        "context",
        expected,
        meter="device",
        low=low,
        high=high,
    ).formula("bytes × processes" if count > 1 else "per process").since(
        "the driver's context grows as kernels load", context_of(gpu).source
    )
    enter_communicators(ledger, recipe, count)


class Context(NamedTuple):
    """In MiB."""

    low: int
    expected: int
    high: int
    source: str


def _context(row: str) -> Context:
    low, expected, high, source = row.split(maxsplit=3)
    return Context(int(low), int(expected), int(high), source)


EAGER = "pytorch#86509, unsloth-zoo#1053, stas00/ml-engineering debug/pytorch.md"
CONTEXTS = {card: _context(row) for card, row in texts_by_name(__file__).items()}
"""By compute capability."""
ANY = Context(110, 550, 1450, f"all of the out-of-memory messages of public threads; {EAGER}")
"""An NVIDIA card that is not named: a CUDA that loads every kernel at once (before 11.7) takes 0.7 to 1.4 GiB."""
OTHERS = Context(300, 900, 2048, "a guess")
"""Runtime contexts of other makers: none published; rocBLAS's kernels alone are 200 MiB (tensorflow-upstream#2490)."""


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
