"""What a job runs on, a group of the recipe; and its cluster: what a node holds and how nodes are joined. Properties
that read little of a card are remembered for all alike."""

from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field

from memplan.spec.allocator import Allocator
from memplan.spec.base import Frozen
from memplan.spec.gpu import Gpu
from memplan.units import parse_size


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
