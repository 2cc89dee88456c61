"""What a job runs on: a group of the recipe. Properties that read little of a card are remembered for all alike."""

from typing import NamedTuple

from memplan.spec.allocator import Allocator
from memplan.spec.cluster import Cluster
from memplan.spec.gpu import Gpu

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
