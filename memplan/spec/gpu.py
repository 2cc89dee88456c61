"""What a job runs on: one accelerator, with the memory that torch can give out; how far a machine's own rates are from
those that are published; a group of the recipe, and its cluster: what a node holds and how nodes are joined."""

import math
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from memplan.spec.allocator import Allocator
from memplan.spec.base import Frozen
from memplan.units import parse_size

FACTORS = ("compute", "host", "link", "network")
"""What is fitted: times that the published seconds are met, of products, attention and memory; of the host's issuing;
of collectives within a node; and between nodes."""
Factor = Annotated[float, Field(gt=0.01, lt=100)]
SMALLEST, LARGEST = 0.05, 20.0
"""Of an engine's constants: beyond, a log is of another job."""
EngineFactor = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]


class EngineConstants(Frozen):
    """Times what is expected of a generation engine on this card, by its start logs; 1 where none said it."""

    activation: EngineFactor = 1.0
    """The most of its profile run."""
    non_torch: EngineFactor = 1.0
    """Outside PyTorch, communicators with it."""
    graphs: EngineFactor = 1.0
    starts: Annotated[int, Field(ge=1)] = 1
    """How many starts they rest on."""


class Calibration(Frozen):
    """What ``memplan calibrate`` writes: one card's factors, 1 where it is as published."""

    gpu: str
    """The card that was measured, by its preset's name."""
    compute: Factor = 1.0
    host: Factor = 1.0
    link: Factor = 1.0
    network: Factor = 1.0
    covariance: tuple[tuple[float, float, float, float], ...] = ()
    """Of the factors' logarithms, in the order of ``FACTORS``."""
    noise: Annotated[float, Field(ge=0, lt=5)] = 0.0
    """Standard deviation of what no factor explains, as a logarithm of the speed."""
    runs: Annotated[int, Field(ge=0)] = 1
    """How many measured runs the speeds rest on."""
    engine: EngineConstants | None = None

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """In the order of ``FACTORS``."""
        return self.compute, self.host, self.link, self.network


FIRST_WITH_BF16 = 8.0
"""Compute capability of NVIDIA's first cards with bf16 matmuls, which FlashAttention 2 needs too."""


class Gpu(Frozen):
    """One device (a GCD or a die where the package holds two)."""

    name: str
    """The preset's name, such as h100-80gb."""
    title: str
    vendor: Literal["nvidia", "amd", "huawei", "intel", "custom"]
    memory_bytes: int
    """What the vendor's tool shows as total."""
    usable_bytes: int
    """What torch reports as total capacity (``mem_get_info``); the lowest seen where it varies."""
    usable_is_assumed: bool = False
    """No published figure of torch's total was found: it is derived, as ``source`` says."""
    architecture: str
    """Compute capability ('9.0'), gfx name or generation; 'unknown' for a card given by size. Decides workspaces."""
    form: Literal["card", "laptop", "slice", "vgpu"] = "card"
    """A card of its own, a laptop's, a MIG instance of a card, or a virtual machine's share of one."""
    usual: bool = True
    """Whether the model's name alone means this size of it."""
    here: int = 0
    """Cards of this machine that a job sees, this one the fullest; 0 where it is not this machine's."""
    bf16_tflops: float | None = None
    """Dense, by the vendor's specification; None where the device has no bf16, or where no figure was found."""
    fp16_tflops: float | None = None
    """Where the device has no bf16; elsewhere it equals bf16_tflops."""
    memory_bandwidth_gbps: float | None = None
    link: str = ""
    """The way to another GPU of the same node, in words."""
    link_gbps: float | None = None
    """GB/s each way of the fastest link that every such card has; None where no clean figure was found."""
    source: str = ""
    calibration: Annotated[Calibration | None, Field(exclude=True)] = None
    """Rates of one's own, from a file of ``memplan calibrate``; only speeds feel them."""

    def among(self, ranks: int) -> "Gpu":
        """As so many of them reach one another: a bridge joins two, and more of them meet over PCIe (vllm 0.11
        device_communicators/custom_all_reduce.py: "more than two PCIe-only GPUs", of four RTX 3090)."""
        over_pcie = ranks > 2 and self.link.startswith("NVLink") and "bridge" in self.link
        return self.but(link="PCIe") if over_pcie else self

    @property
    def capability(self) -> float:
        """Compute capability as a number; that of a new card where there is none, or it is not told."""
        number = self.architecture.replace(".", "", 1).isdecimal()
        return float(self.architecture) if number and self.vendor == "nvidia" else math.inf

    @property
    def has_bf16(self) -> bool:
        """Whether its matmuls take bf16: NVIDIA's do from compute capability 8.0 on."""
        return self.capability >= FIRST_WITH_BF16


def _bytes(value: object) -> object:
    """'2TB' is bytes."""
    return parse_size(value) if isinstance(value, str) else value


Speed = Annotated[float, Field(gt=0, le=100_000)]


class Links(Frozen):
    """Speeds in GB/s each way."""

    within: Speed | None = None
    """From one card to the others of its node; the card's own link when not given."""
    between: Speed | None = None
    """From one node to the others, all its cards together."""


class Cluster(Frozen):
    """A cluster's description."""

    name: str = "custom"
    title: str = ""
    gpu: str | None = None
    """Card, as the job's ``gpu``."""
    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Nodes at hand: the job's GPUs when num_gpus is not given."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8
    links: Links = Links.model_construct()
    host_memory: Annotated[Annotated[int, Field(ge=2**30, le=2**50)] | None, BeforeValidator(_bytes)] = None
    """Bytes of a node."""
    source: str = ""


BLACKWELL = 10
"""Compute capability from which on products in FP8 take either layout of their operands."""


class Hardware(NamedTuple):
    """Cards, nodes and the allocator."""

    gpu: Gpu | None
    margin: float
    allocator: Allocator
    gpus_per_node: int
    cluster: Cluster = Cluster.model_construct()

    @property
    def expandable_segments(self) -> bool:
        """Whether segments grow in place."""
        return self.allocator.expandable_segments

    @property
    def has_card(self) -> bool:
        """Whether a card is named: what is read of it alone is remembered for all cards."""
        return self.gpu is not None

    @property
    def is_blackwell(self) -> bool:
        """Whether the card's products in FP8 take either layout."""
        return self.gpu is not None and self.gpu.vendor == "nvidia" and self.gpu.capability >= BLACKWELL

    @property
    def lacks_flash(self) -> bool:
        """Whether the card is older than flash attention's kernel, which is as new as bf16."""
        return self.gpu is not None and not self.gpu.has_bf16
