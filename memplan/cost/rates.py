"""How fast a device really is: shares of its published peaks that training reaches, each stated with its source.

How far a speed may be off follows from how far rates may be (``fitting``). No rate is fitted to a row of the tables
that the model is held against (docs/accuracy.md)."""

from typing import NamedTuple

from memplan.cost.attention import (
    AMPERES,
    ATTENTION,
    EXPONENTIAL,
    IDLE,
    MASKED,
    NATIVE_ATTENTION,
    NATIVE_LIMIT,
    OTHER_ATTENTION,
    OTHER_EXPONENTIAL,
    OTHER_MASKED,
    SLOW,
    products_of,
)
from memplan.cost.machines import GIGA, NO_CHIP, Cache, Chip, bus, cache_of, chip_of, host_of, mesh_of
from memplan.spec.gpu import Gpu

TERA = 10**12
XLA = "openxla/xla (ROCm/xla@63ce298) xla/service/gpu/model/matmul_interpolator_data.h, sm_100: benchmarks/matmuls.py"
MAMF = "stas00/ml-engineering@744d01e compute/accelerator/README.md: Maximum Achievable Matmul FLOPS, BF16"

PRODUCTS: dict[str, float] = {
    "8.0": 0.9, "9.0": 0.865, "10.0": 0.77, "10.3": 0.82,
    "gfx942": 0.61, "gfx950": 0.69, "gaudi2": 0.969, "gaudi3": 0.741,
}  # fmt: skip
"""Share of the peak at which full waves of large tiles run in bf16, by architecture: the best shape of ``MAMF`` without
what ``matmul`` charges that very shape for its last wave, its start and its write (A100 0.869 on 1024x10240x5120, H100
0.803 on 2048x2048x13312; no such shape is known of Gaudi). openxla/xla's H100 table ends at the same 0.86; its products
on a B200 (``XLA``) at 0.77, where the one best shape of ``MAMF`` says 0.86 (0.776 on 1792x16128x3072), so that a tenth
less is taken of the B300's, too (0.786 on 12288x18432x1024: 0.915). gfx942: the MI325X; the older MI300X row stops at
0.514 with an earlier ROCm."""
OTHER_PRODUCTS = 0.85
"""Where nobody published one: the middle of NVIDIA's."""
SUSTAINED: dict[str, float] = {"8.0": 0.925, "9.0": 0.84, "10.0": 0.84, "10.3": 0.84}
"""Of that rate, what a long step keeps, by architecture: under its power limit the clock gives way. A100: 1,305 of
1,410 MHz under HPL (glennklockwood.com/garden/peak-FLOPS); H100 and (below) MI300X: 720 and 620 TFLOP/s of products in
training's shapes and numbers (SemiAnalysis, MI300X vs H100 vs H200 Benchmark Part 1: Training, December 2024). A B200
keeps no more than an H200: 1,420 and 652 TFLOP/s over the same products, 63 and 66 % (company.hpc-ai.com, B200 vs
H200); so the H100's is taken of Blackwell, whose own nobody published."""
OTHER_SUSTAINED = 0.9
SUSTAINED_OF: dict[str, float] = {"mi300x-192gb": 0.78, "rtx-4090-24gb": 1.0, "h20-96gb": 1.0, "h20-141gb": 1.0}
"""Of cards: a MI300X, of 750 W (of what a MI325X keeps nobody published); a 4090 draws at most 400 of its 450 W while
it fine-tunes (AnswerDotAI/fsdp_qlora@23fafdf); an H20 has a seventh of an H100's products for 400 of its 700 W."""
TABLE = "zzc0721/torch-performance-test-data@9d82827 database.md: the best of 1,024 to 10,240, PyTorch 2.4 to 2.8"
PRODUCTS_OF: dict[str, float] = {
    "rtx-3090-24gb": 1.08, "rtx-4090-24gb": 1.0, "rtx-5090-32gb": 1.13, "rtx-pro-6000-96gb": 0.83, "l40s-48gb": 0.74,
    "rtx-6000-ada-48gb": 0.74, "rtx-a6000-48gb": 0.79, "a10-24gb": 0.62, "h20-96gb": 0.95, "h20-141gb": 0.95,
    "l4-24gb": 0.586, "l20-48gb": 0.955, "rtx-a4000-16gb": 0.82, "rtx-a2000-12gb": 1.16, "h100-pcie-80gb": 0.656,
    "t4-16gb": 0.645, "v100-16gb": 0.76, "v100-32gb": 0.76, "ascend-910b-64gb": 0.985,
}  # fmt: skip
"""The same of cards whose clock is not the specification's, by ``TABLE`` (3090: 76.5 TFLOP/s, 4090: 165, 5090: 236,
L40S: 269 of 362, A6000: 123 of 155, H20: 141, L4: 71 of 121, H100 PCIe: 496 of 756, T4: 42 of 65): GeForce's boost goes
beyond what they are specified by, workstations' and small servers' cards reach their power limit before. RTX 6000 Ada:
as the L40S, of the same chip. A10: 78 of 125 at 147 of 150 W, its clock at 1,110 of 1,650 MHz (a public probe of cuBLAS
at 8,192)."""
AT_LIMIT = 0.85
"""Of these shares, from which down a card was measured at its power limit: it keeps that rate."""
GEFORCE = 1.05
"""Of other GeForce cards: 4070 SUPER 76 of 71 TFLOP/s, 3080 Ti 76.5 of 68 (``TABLE``)."""
NARROW: dict[str, tuple[float, float]] = {"10.0": (2785.5 / 1416.9, 4.0), "10.3": (2.0, 6.0)}
OTHER_NARROW = (1402.6 / 794.5, 4.0)
"""Rate of products in FP8, and in FP4, against bf16's. FP4: by specification (10 and 15 of 2.5 PFLOP/s). FP8 of B200:
4096x4096x4096 of ``XLA``; 10.3: by specification, where a GB300 has 1.16 times a GB200's (3,286 and 2,830 TFLOP/s over
10,000 products, egmsft/AI-benchmarking-guide@3371c0c); others: an H100 SXM's (ml-engineering@b9e2972, that table)."""
UNITS: dict[str, int] = {
    "7.0": 80, "7.5": 40, "8.0": 108, "8.6": 84, "8.9": 142, "9.0": 132, "10.0": 148, "10.3": 160, "12.0": 170,
}  # fmt: skip
"""Multiprocessors by architecture, of its largest card here (NVIDIA's architecture whitepapers)."""
UNITS_OF: dict[str, int] = {
    "h100-pcie-80gb": 114, "h20-96gb": 78, "h20-141gb": 78, "l4-24gb": 58, "a10-24gb": 72, "rtx-3090-24gb": 82,
    "rtx-4090-24gb": 128, "rtx-pro-6000-96gb": 188,
}  # fmt: skip
"""Of cards with other numbers (NVIDIA's data sheets)."""


class Rates(NamedTuple):
    """Shares of what is published, and times that no specification has."""

    throttle: float
    """How much of what ``SUSTAINED`` takes off a product's rate is taken: 0 of a product alone, 1 of one shape over and
    over. A step's many shapes keep less; how much less was set with the sources in view that are not held back."""
    attention: float
    """Of the best that flash attention reaches (``ATTENTION``), causal ones: 164 of 167 TFLOP/s at 16,384 positions of
    Triton's fused attention on an A100 (triton-lang.org, tutorial 06). The clock gives way to it as to products."""
    prologue: float
    """Positions that a query costs beside those that it attends to: loading it, the diagonal's mask, the end. That
    table's 112, 136, 150 and 160 TFLOP/s at 1,024 to 8,192 positions, and 141 to 167 without a causal mask."""
    memory: float
    """Of the memory's bandwidth, for pointwise kernels over large tensors."""
    link: float
    """Of a link's one-way bandwidth, for large collectives: 78 to 82 % on rings of A100, H200 and B200 nodes
    (ml-engineering@744d01e network/README.md), 67 to 69 on others of A100 (NVIDIA/nccl-tests#149, #178)."""
    host_link: float
    """The same through the host (PCIe without peer-to-peer): both copies share the bus."""
    launch: float
    """Seconds that the host of an A100 needs to issue one kernel from Python, its module's and its views' share
    included: 22.5 µs where no graph is recorded, the middle of three by tokens of Llama 2 7B, eager: 32.3 ms and some
    1,430 kernels of Lit-GPT (Lightning-AI/litgpt@4839345 tutorials/resource-tables.md: 30.97 tokens/s), 39.2 and 1,650
    of gpt-fast (pytorch.org, Accelerating Generative AI with PyTorch II: 25.5), 21.4 and 1,430 on another machine
    (Lightning-AI/lightning-thunder@e6aa1e003 examples/lit-gpt/README.md: 46.7). A quarter more where one is
    (transformers' Llama, timed)."""
    contention: float
    """Of communication that computation hides, the share that it costs all the same, as it takes multiprocessors,
    memory and power: computation is 18.9 % slower beside it, and both in turn 10.2 % slower than both at once
    (arXiv:2507.03114), so that 0.31 of communication cost 0.19: 0.6."""
    hook: float
    """Seconds of DeepSpeed's hooks in Python around a module's pass, or of a parameter's gradient. Assumed, with
    Qwen's README in view (2.2 s for 8 short micro-steps of 1.8B in stage 3 on one card)."""
    module: float
    """Of one of Megatron's modules: its own linear's forward takes 74 µs of an H100's host, Transformer Engine's 115
    (NVIDIA/TransformerEngine#1191), whatever the product."""
    overlap: float
    """Share of the backward, and of the forward where weights are gathered, behind which communication can hide."""
    latency: float
    """Times that NCCL's own latencies (``links``) are met."""
    looped: float
    """Of a kernel that a loop over experts issues: as one from Python."""


EXPECTED = Rates(1.6, 0.985, 150.0, 0.82, 0.75, 0.45, 28e-6, 0.6, 200e-6, 120e-6, 0.85, 1.0, 28e-6)


class Device(NamedTuple):
    """A card as the cost model sees it; bytes, FLOP and seconds."""

    products: float
    """FLOP/s of matmuls in half precision, in full waves of large tiles."""
    attention: float
    """FLOP/s of flash attention in half precision, at its best, without its exponentials."""
    native_attention: float
    """The same of the architecture's own kernels."""
    exponentials: float
    """A second: one for each score of a head, between the products."""
    wide_products: float
    """FLOP/s of matmuls in fp32."""
    memory: float
    """Bytes/s."""
    link: float
    """Bytes/s one way to another card of the node."""
    between: float
    """Bytes/s one way and card to another node."""
    direct: bool
    """Cards of a node reach each other's memory without the host."""
    sustained: float = 1.0
    """Share of ``products`` that a long step keeps."""
    units: int = 0
    """Multiprocessors; 0 where tiles do not wait for one another."""
    native_limit: float = 0.0
    """Of ``native_attention`` with the widest heads, exponentials and all; 0 without such kernels."""
    bus: float = 0.0
    """Bytes/s one way to the host's pinned memory."""
    assumed: str = ""
    """What had to be assumed of it, in words."""
    host: float = 1.0
    """Times that an A100's host's seconds are met, as it is (``SERVER``) and was measured (``Calibration``)."""
    near: float = 1.0
    """The same of collectives within a node."""
    far: float = 1.0
    """Of those between nodes."""
    masked: float = OTHER_MASKED
    """Share of ``attention`` that a forward under a mask reaches."""
    cache: Cache = Cache()
    chip: Chip = NO_CHIP
    mesh: int = 0
    """Cards of a node that are joined two by two (``MESHES``)."""
    narrow: tuple[float, float] = OTHER_NARROW
    """Times that products in FP8, and in FP4, are as fast."""

    def slower(self, times: float) -> "Device":
        """What it computes takes so many times as long; not what its memory does."""
        return self._replace(
            products=self.products / times,
            attention=self.attention / times,
            native_attention=self.native_attention / times,
            native_limit=self.native_limit / times,
            exponentials=self.exponentials / times,
            wide_products=self.wide_products / times,
        )

    def with_factors(self, compute: float, host: float, link: float, network: float) -> "Device":
        """As it was measured: seconds of the published rates, so many times (``Calibration.factors``)."""
        cache = self.cache._replace(rate=self.cache.rate / compute)
        return self.slower(compute)._replace(
            memory=self.memory / compute,
            cache=cache,
            host=self.host * host,
            near=self.near * link,
            far=self.far * network,
        )


WIDE, WIDE_AMPERE, WIDE_TURING = 1 / 15, 0.19, 1 / 8
"""fp32 matmuls against bf16 ones without TF32, which PyTorch does not use unless told to: 19.5 of 312 on an A100, 67
of 989 on an H100 (NVIDIA's specifications); 79 of 417 on an RTX PRO 6000 (zzc0721/torch-performance-test-data#162),
twice that on a GeForce, whose tensor cores have half the rate; 8.1 of 65 and 15.7 of 125 on T4 and V100."""
TURINGS = frozenset({"7.0", "7.5"})
BETWEEN: tuple[tuple[float, float], ...] = ((400.0, 50.0), (200.0, 6.25), (0.0, 3.125))
"""(least GB/s of the link within the node, GB/s between nodes and card) where no cluster is named: the medians of the
catalogue's (presets/clusters.yaml), 400 GB/s a node of the H100's class and 50 of the A100's, where DGX and Azure have
200 and AWS 50; else one adapter of 200 Gbit/s for eight cards."""
BETWEEN_OF: dict[str, float] = {"h800-80gb": 50.0}
"""Of cards whose link within alone is slower: an H800 has an adapter of 400 Gbit/s (deepseek-ai/DeepEP@dd758ca)."""
UNKNOWN_LINK = 50.0
"""GB/s where the catalogue has no clean figure: that of the slowest of such links, one of Infinity Fabric."""
DIRECT_LINK = 100.0
"""GB/s from which on a link is one of its own, not the host's bus."""


def device(gpu: Gpu, catalogue: tuple[Gpu, ...] = ()) -> Device:
    """The card's rates. What it lacks is taken from the card of the catalogue whose memory is nearest, and said."""
    speed, bandwidth, assumed, kind = gpu.bf16_tflops or gpu.fp16_tflops, gpu.memory_bandwidth_gbps, "", gpu
    if speed is None or bandwidth is None:
        known = [each for each in catalogue if each.bf16_tflops and each.memory_bandwidth_gbps]
        if not known:
            raise ValueError(f"no speed is known of {gpu.name}")
        near = min(known, key=lambda each: (_unlike(each, gpu), abs(each.memory_bytes - gpu.memory_bytes), each.name))
        kind = near if gpu.vendor == "custom" else gpu
        assumed = f"no published speed of {gpu.name}: ranked with that of {near.name}, whose memory is nearest"
        speed, bandwidth = speed or near.bf16_tflops, bandwidth or near.memory_bandwidth_gbps
    assert speed is not None
    assert bandwidth is not None
    best = speed * TERA * PRODUCTS_OF.get(kind.name, _share(kind))
    within = kind.link_gbps or UNKNOWN_LINK
    between = BETWEEN_OF.get(kind.name) or next(rate for least, rate in BETWEEN if within >= least)
    attention = speed * TERA * ATTENTION.get(kind.architecture, OTHER_ATTENTION)
    if kind.architecture in AMPERES or kind.name in SLOW:
        attention = best * ATTENTION["8.0"] / PRODUCTS["8.0"]
    units = UNITS_OF.get(kind.name, UNITS.get(kind.architecture, 0))
    exponentials = speed * TERA / EXPONENTIAL.get(kind.architecture, OTHER_EXPONENTIAL)
    own = speed * TERA * NATIVE_ATTENTION.get(kind.architecture, 0.0)
    native = products_of(own, exponentials) if own else 0.0
    attention = products_of(attention, exponentials)
    kept_by_kin = SUSTAINED.get(kind.architecture, OTHER_SUSTAINED)
    return Device(
        best,
        attention,
        max(native, attention),
        exponentials,
        best * _wide(kind),
        bandwidth * GIGA,
        within * GIGA,
        between * GIGA,
        within >= DIRECT_LINK,
        1.0 if PRODUCTS_OF.get(kind.name, 1.0) < AT_LIMIT else SUSTAINED_OF.get(kind.name, kept_by_kin),
        units,
        speed * TERA * NATIVE_LIMIT.get(kind.architecture, 0.0),
        bus(kind),
        assumed,
        host=host_of(kind),
        masked=MASKED.get(kind.architecture, OTHER_MASKED),
        cache=cache_of(kind, units),
        chip=chip_of(kind),
        mesh=mesh_of(kind),
        narrow=NARROW.get(kind.architecture, OTHER_NARROW),
    )


def flash_seconds(flop: float, scores: float, speed: float, on: Device, rates: Rates) -> float:
    """Of so many FLOP of flash attention at ``speed`` and the exponentials of so many scores. The clock does not give
    way to kernels that leave most of the tensor cores idle (``IDLE``)."""
    clock = 1.0 if speed == on.attention < on.products * IDLE else kept(on, rates)
    return (flop / speed + scores / on.exponentials) / (rates.attention * clock)


def _share(kind: Gpu) -> float:
    """Of the peak that large products reach, of a card without a measurement of its own."""
    if kind.title.startswith("GeForce") and kind.form == "card":
        return GEFORCE
    return PRODUCTS.get(kind.architecture, OTHER_PRODUCTS)


def _wide(kind: Gpu) -> float:
    """Rate of fp32 products against bf16's."""
    if kind.architecture in AMPERES:
        return WIDE_AMPERE * (2 if kind.title.startswith("GeForce") else 1)
    return WIDE_TURING if kind.architecture in TURINGS else WIDE


def _unlike(one: Gpu, other: Gpu) -> bool:
    """Of another architecture, where either's is told."""
    return other.vendor != "custom" and one.architecture != other.architecture


def products_rate(on: Device, rates: Rates, itemsize: float) -> float:
    """FLOP/s of large matmuls in a step, operands of so many bytes."""
    speed = on.wide_products if itemsize > 2 else on.products * (1.0 if itemsize > 1 else on.narrow[itemsize < 1])
    return speed * kept(on, rates)


def kept(on: Device, rates: Rates) -> float:
    """Share of a rate of the tensor cores that a step's clock leaves."""
    return 1 - rates.throttle * (1 - on.sustained)
