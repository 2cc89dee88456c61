"""Seconds of collectives: bytes over links, within a node and between nodes, for a group of ranks.

A collective over several nodes is two at once, one within each node and one between them, of which the slower decides;
between nodes every card of the group that a node holds carries its share over its own adapter. Latencies are those of
NCCL's own model (src/graph/tuning.cc: baseLat, hwLat of LL128), by which it chooses its algorithm: a ring passes every
rank, a tree every rank of a node and the logarithm of the nodes. Ignored: topology beyond the node, congestion."""

from math import ceil, log2
from typing import NamedTuple

from memplan.cost.machines import GIGA
from memplan.cost.rates import Device, Rates
from memplan.spec.gpu import Cluster

NOWHERE = Cluster()
US = 1e-6
START_RING, START_TREE = 10.0 * US, 4.4 * US
"""Seconds of a collective before its first hop."""
HOP_NEAR, HOP_HOST, HOP_FAR = 1.9 * US, 2.5 * US, 4.0 * US
"""Of a ring's hop over NVLink, over the host's bus, over the network."""
TREE_NEAR, TREE_HOST, TREE_FAR = 1.2 * US, 1.9 * US, 8.5 * US
"""Of a tree's."""
FILL, FULL = 37e6, 2.0**24
"""Bytes that go over a link while an all-reduce of so many bytes and more among eight cards of a node lies behind its
best rate, until the channels are full; of fewer bytes, that share. Of 8 A100 135 µs beside these rates at 16 to 128
MiB, of B200 65: 30 and 44 MB; H200's switch reduces (ml-engineering@744d01e network/README.md, by payload)."""

ADAPTER = 12.5e9 * 0.75
"""What one card alone reaches at least of its node's adapters where they carry more: those of 100 Gbit/s, the slowest
of the catalogue's (presets/clusters.yaml)."""


class Group(NamedTuple):
    """Ranks that communicate."""

    size: int
    near: int
    """How many of them one node holds."""

    @property
    def nodes(self) -> int:
        """Nodes that it spans."""
        return ceil(self.size / self.near)


def group(size: int, stride: int, gpus_per_node: int) -> Group:
    """``size`` ranks, each ``stride`` after the one before: tensor-parallel ranks are neighbours, then context, data,
    pipeline (Megatron's order tp-cp-ep-dp-pp)."""
    return Group(size, max(1, min(size, gpus_per_node // stride)))


class Links(NamedTuple):
    """Reached bytes per second, one way and card."""

    within: float
    between: float
    latency: float
    """Times that NCCL's latencies are met."""
    direct: bool = True
    """Cards of a node reach each other without the host."""
    mesh: int = 0
    """Cards of a node that are joined two by two; 0 with a switch."""

    def among(self, near: int) -> float:
        """``within`` of so many cards of a node: of few in a mesh, the links to the others alone."""
        return self.within * (min(1.0, (near - 1) / (self.mesh - 1)) if self.mesh > 1 and near > 1 else 1.0)

    def ring(self, of: Group) -> float:
        """Seconds of latency of an all-gather or a reduce-scatter, or of an all-to-all in as many steps."""
        near = HOP_NEAR if self.direct else HOP_HOST
        return self.latency * (START_RING + (of.size - of.nodes) * near + (of.nodes - 1) * HOP_FAR)

    def filling(self, size: float, of: Group) -> float:
        """Of an all-reduce of ``size`` bytes until it runs at its best rate; of fewer cards less, as a ring's steps."""
        share = min(1.0, size / FULL) * min(1.0, (of.near - 1) / 7)
        return self.latency * FILL / self.within * share if self.direct else 0.0

    def tree(self, of: Group) -> float:
        """Of an all-reduce up and down a tree."""
        near = TREE_NEAR if self.direct else TREE_HOST
        return self.latency * (START_TREE + 2 * ((of.near - 1) * near + log2(of.nodes) * TREE_FAR))


def links(device: Device, rates: Rates, cluster: Cluster = NOWHERE) -> Links:
    """What is reached of the device's links, and of the cluster's where it describes them."""
    within = device.link * (rates.link if device.direct else rates.host_link)
    said = cluster.links
    if said.within:
        within = said.within * GIGA * rates.link
    between = said.between * GIGA / cluster.gpus_per_node if said.between else device.between
    return Links(within / device.near, between * rates.link / device.far, rates.latency, device.direct, device.mesh)


def gather(size: float, of: Group, over: Links, times: float = 1) -> float:
    """Seconds of an all-gather whose result, or a reduce-scatter whose input, is ``size`` bytes on each rank, in so
    many ``times`` of equal size."""
    if of.size <= 1 or not size:
        return 0.0
    return _carried(size, of, over) + times * (over.ring(of) + over.filling(size / (times or 1), of) / 2)


def reduce(size: float, of: Group, over: Links, times: float = 1) -> float:
    """Seconds of an all-reduce of ``size`` bytes: a ring's reduce-scatter and all-gather, or a tree."""
    if of.size <= 1 or not size:
        return 0.0
    start = min(2 * over.ring(of), over.tree(of)) + over.filling(size / (times or 1), of)
    return 2 * _carried(size, of, over) + times * start


def _carried(size: float, of: Group, over: Links) -> float:
    """Of the bytes of an all-gather over the links."""
    near, nodes = of.near, of.nodes
    within = size * (near - 1) / near / over.among(near)
    between = size * (nodes - 1) / nodes / near / over.between
    return max(within, between)


def exchange(size: float, of: Group, over: Links, once: float = 1.0) -> float:
    """Seconds of an all-to-all in which each rank sends ``size`` bytes in all, its own share included. ``once``: share
    of them that crosses between nodes, where what several ranks of a node get goes there once, and on within it."""
    if of.size <= 1 or not size:
        return 0.0
    near, nodes = of.near, of.nodes
    within = size * (near - 1) / (of.near if once < 1 else of.size) / over.among(near)
    between = once * size * (nodes - 1) / nodes / over.between
    return max(within, between) + over.ring(of)


def send(size: float, far: bool, over: Links, idle: float = 1.0) -> float:
    """Seconds of sending ``size`` bytes to one rank, of another node where ``far``, one card of ``idle``, whose shares
    of the node's adapters are free then."""
    hop = HOP_FAR if far else HOP_NEAR if over.direct else HOP_HOST
    between = max(over.between, min(over.between * idle, ADAPTER))
    return size / (between if far else over.among(2)) + over.latency * (START_RING + hop)
