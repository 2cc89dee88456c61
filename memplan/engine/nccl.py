"""Buffers of communication libraries: one communicator for each group of ranks that exchanges something.

They are outside torch's allocator, so on the device meter alone. NCCL's are counted from its source (2.27): a channel
to a peer takes 10 MiB where it receives (the buffers of its three protocols, rounded) and 2 MiB where it sends
(init.cc, transport/p2p.cc); how many channels it opens depends on links and versions, which is the band. Held against
runs: 544 MB for two A100, 688 MB for more (nccl#964), 1.6 GB (nccl#864), 3.28 GB with an all-to-all over eight H100
(nccl#1685)."""

from collections.abc import Iterator
from typing import NamedTuple

from memplan.engine.ledger import Ledger
from memplan.spec.gpu import Gpu
from memplan.spec.parallel import Parallel
from memplan.spec.recipe import Recipe
from memplan.units import MiB, ceil_div, round_up

RECEIVE, SEND = 10 * MiB, 2 * MiB
"""Of one channel to one peer: LL, LL128 and the simple protocol's 4 MiB, and what the sender keeps."""
NVLS = {"9": 256 * MiB, "10": 448 * MiB}
"""NVLink SHARP: heads × channels × 2 × 1 MiB of a node of eight (nccl 2.27 src/transport/nvls.cc)."""
RCCL_FIRST, RCCL_OTHERS = 1024 * MiB, 666 * MiB
"""LUMI-AI-Guide#111."""
HCCL = 2 * 200 * 1000**2
"""Two buffers of HCCL_BUFFSIZE, 200 MB by default (Ascend, environment variables of HCCL)."""
NVL_TOKENS = {8: 256, 64: 288, 96: 480, 128: 560, 160: 720}
"""Most ranks of a group -> tokens that a channel of DeepEP receives from each rank of its node."""
RDMA_TOKENS = {16: 140, 64: 128, 160: 132}
"""The same from each other node: whole portions of what is sent at once, of dispatch or combine, whichever is more."""
DEEPEP_CHANNELS = 10
"""Half of the 20 multiprocessors that DeepEP, and Megatron's moe_deepep_num_sms, take by default."""
BESIDE_TOKEN = 8 + 128 * (8 + 4 + 4)
"""Of each slot: where the token came from, and room for 128 experts' numbers, weights and scales."""
DEEPEP_WORKSPACE, NVSHMEM_START, NVSHMEM_PART = 32 * MiB, 256 * MiB, 512 * MiB
"""NVSHMEM needs the second to start, and takes memory in parts of the third (NVSHMEM_CUMEM_GRANULARITY)."""
UNKNOWN = (200 * MiB, 700 * MiB, 1700 * MiB)
"""Of other makers' libraries nothing is published: NCCL's figures, as a guess."""


class Communicator(NamedTuple):
    """A group of ranks and how they exchange."""

    name: str
    size: int
    pattern: str
    """collective (rings and trees), numbers (the same of a few bytes), neighbours, or all-to-all."""
    local: int
    """Ranks of the group within one node."""


class Channels(NamedTuple):
    """Channels that NCCL opens: low, expected, high."""

    low: int
    expected: int
    high: int


def channels(gpu: Gpu | None) -> Channels:
    """By link: 24 over NVLink 3, 16 over NVLink 4, 32 over NVLink 5 (nccl 2.27 src/graph/connect.cc); few over PCIe."""
    if gpu is not None and not gpu.link.startswith("NVLink"):
        return Channels(2, 4, 16)
    if gpu is not None and gpu.architecture.startswith("10"):
        return Channels(16, 32, 32)
    return Channels(16, 24 if gpu is None or gpu.architecture.startswith("8") else 16, 32)


def collective_bytes(gpu: Gpu | None, ranks: int) -> tuple[int, int, int]:
    """A ring alone; ring and tree, with NVLink SHARP where the card has it; every ring and tree peer."""
    open_, channel = channels(gpu), RECEIVE + SEND
    major = gpu.architecture.split(".")[0] if gpu is not None and gpu.link.startswith("NVLink") else ""
    sharp = NVLS.get(major, 0) if ranks > 2 else 0
    return open_.low * channel, open_.expected * channel * 2 + sharp, open_.high * channel * 4 + NVLS.get(major, 0)


def numbers_bytes(gpu: Gpu | None) -> tuple[int, int, int]:
    """What a few bytes take one way: from NCCL 2.22 on, a group connects what it uses (NCCL_RUNTIME_CONNECT), before it
    rings and trees at once."""
    open_, channel = channels(gpu), RECEIVE + SEND
    return open_.low * channel, open_.expected * channel, open_.high * channel * 2


def neighbour_bytes(gpu: Gpu | None, ranks: int) -> tuple[int, int, int]:
    """Sends and receives to the one before and the one after, two to every open channel to each."""
    open_, peers, channel = channels(gpu), min(2, ranks - 1), RECEIVE + SEND
    return peers * 2 * channel, peers * max(2, open_.expected // 2) * channel, peers * open_.high * channel


def exchange_bytes(gpu: Gpu | None, ranks: int, local: int) -> tuple[int, int, int]:
    """An all-to-all: each peer of the node on every channel, each one of other nodes on two."""
    open_, channel, far = channels(gpu), RECEIVE + SEND, ranks - local
    low = (local - 1) * open_.low // 2 * channel + far * channel
    expected = ((local - 1) * open_.high + far * 2) * channel
    return low, expected, ((local - 1) * open_.high + far * 4) * channel + collective_bytes(gpu, ranks)[2]


def of_ranks(table: dict[int, int], ranks: int) -> int:
    """The entry of the smallest group that holds so many ranks; the largest for more than DeepEP knows."""
    return next((value for most, value in table.items() if ranks <= most), list(table.values())[-1])


def deepep_bytes(hidden: int, ranks: int, local: int) -> tuple[int, int, int]:
    """DeepEP's buffers of one rank, for tokens of ``hidden`` numbers of two bytes: slots for the ranks of its node and,
    where there are others, twice as many for each of their nodes, in NVSHMEM's memory (deepseek-ai/DeepEP
    csrc/legacy/config.hpp: get_nvl_buffer_size_hint, get_rdma_buffer_size_hint; deep_ep/buffers/legacy.py;
    Megatron-LM transformer/moe/fused_a2a.py: get_buffer). Ignores NVSHMEM's queues, which the high figure has room for.
    """
    slot = 2 * hidden + BESIDE_TOKEN
    near = DEEPEP_CHANNELS * min(ranks, local) * of_ranks(NVL_TOKENS, ranks) * slot + DEEPEP_WORKSPACE
    if ranks <= local:
        return near, near, near
    far = 2 * DEEPEP_CHANNELS * ceil_div(ranks, local) * of_ranks(RDMA_TOKENS, ranks) * (slot + 16)
    heap = round_up(far + NVSHMEM_START, NVSHMEM_PART)
    return near + far, near + heap, near + heap + NVSHMEM_PART


def communicator_bytes(group: Communicator, gpu: Gpu | None, first: bool) -> tuple[int, int, int]:
    """Low, expected, high of one group."""
    vendor = gpu.vendor if gpu is not None else "nvidia"
    gpu = gpu.among(group.size) if gpu is not None else None
    if vendor == "amd":
        size = RCCL_FIRST if first else RCCL_OTHERS
        return size // 2, size, size * 2
    if vendor == "huawei":
        return HCCL, HCCL, HCCL
    if vendor == "intel":
        return UNKNOWN
    if vendor == "custom":
        gpu = None
    if group.pattern == "neighbours":
        return neighbour_bytes(gpu, group.size)
    if group.pattern == "numbers":
        return numbers_bytes(gpu)
    if group.pattern == "all-to-all":
        return exchange_bytes(gpu, group.size, group.local)
    return collective_bytes(gpu, group.size)


def communicators(recipe: Recipe) -> list[Communicator]:
    """The groups of one rank, of two or more ranks each, the one that reduces gradients first.

    Ranks lie as Megatron and torchtitan lay them: tensor parallel innermost, then context, data, pipeline."""
    degrees, node = recipe.parallel, recipe.hardware.gpus_per_node
    inner = degrees.tensor * degrees.context
    per_node = max(1, node // degrees.tensor)
    experts = "all-to-all"
    groups = [
        Communicator("data parallel", degrees.shards, "collective", min(degrees.shards, per_node)),
        Communicator("replicas", degrees.replicas, "collective", min(degrees.replicas, max(1, per_node))),
        Communicator("tensor parallel", degrees.tensor, "collective", min(degrees.tensor, node)),
        Communicator("context parallel", degrees.context, "neighbours", min(degrees.context, per_node)),
        Communicator("pipeline", degrees.pipeline, "neighbours", max(1, min(degrees.pipeline, node // inner))),
        Communicator("experts", degrees.expert, experts, min(degrees.expert, per_node)),
    ]
    if degrees.expert > 1:
        left = degrees.expert_shards
        groups.append(Communicator("experts' data parallel", left, "collective", min(left, per_node)))
        groups.append(Communicator("experts' replicas", degrees.replicas, "collective", 1))
    if recipe.trainer.megatron:
        groups += _of_megatron(degrees, node)
    return [group for group in groups if group.size > 1]


def _of_megatron(degrees: Parallel, node: int) -> Iterator[Communicator]:
    """Groups that Megatron uses for numbers alone, each with channels of its own: PyTorch makes a communicator for
    every group, of the same ranks too. megatron-core 0.13 optimizer/clip_grads.py, megatron/training/training.py (all
    ranks), training/utils.py: reduce_max_stat_across_model_parallel_group, moe/token_dispatcher.py: tp_ep_group."""
    yield Communicator("all ranks", degrees.world, "numbers", min(degrees.world, node))
    if degrees.replicas > 1:
        yield Communicator("all data-parallel ranks", degrees.data * degrees.context, "numbers", 1)
    model = degrees.tensor * degrees.pipeline
    yield Communicator("model parallel", model, "numbers", min(model, node))
    if degrees.expert > 1:
        counts = degrees.expert * degrees.expert_tensor
        yield Communicator("experts' counts", counts, "numbers", min(counts, node))


def enter_communicators(ledger: Ledger, recipe: Recipe, processes: int = 1) -> None:
    """A row for each communicator, of all processes on the card; none on one rank."""
    gpu, shared = recipe.hardware.gpu, recipe.parallel.expert_tensor
    flexible = recipe.trainer.megatron and recipe.megatron.moe_token_dispatcher_type == "flex"
    for position, group in enumerate(communicators(recipe)):
        template = "channels × peers × 12 MiB"
        source = "nccl 2.27 src/init.cc, src/graph/connect.cc; nccl#964, nccl#864, nccl#1685"
        why = "channels and protocol buffers are outside torch's allocator"
        if flexible and group.name == "experts":
            local = min(group.local * shared, recipe.hardware.gpus_per_node)
            low, expected, high = deepep_bytes(recipe.model.hidden_size, group.size * shared, local)
            found = low, expected, high + collective_bytes(gpu, group.size)[1]  # should anything else cross the group
            template = "channels × ranks × tokens × slot"
            why = "DeepEP's slots for tokens are outside torch's allocator"
            source = "deepseek-ai/DeepEP csrc/legacy/config.hpp; Megatron-LM transformer/moe/fused_a2a.py"
        else:
            found = communicator_bytes(group, gpu, position == 0)
        low, expected, high = (each * processes for each in found)
        ledger.add(
            f"communication buffers, {group.name}", "communication", expected, meter="device", low=low, high=high
        ).formula(template).since(f"a communicator of {group.size:,} ranks, {group.pattern}: {why}", source)
