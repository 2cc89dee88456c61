"""Seconds of communication in a step: gradients and weights of data parallelism, activations of the other degrees.

Volumes are those of the collectives as the frameworks call them; what is hidden behind computation is taken off where
it is (``step``). Sources: DeepSpeed 0.19 runtime/zero (stage 1 and 2 reduce gradients and gather weights, stage 3
gathers twice and reduces in each micro-step), torch 2.13 distributed/fsdp, Megatron-LM tensor_parallel/mappings.py
(two all-reduces in a layer's forward, two in its backward, each split in two by sequence parallelism: the same volume).
"""

from collections.abc import Hashable
from typing import NamedTuple

from memplan.cost.links import START_RING, Group, Links, exchange, gather, group, reduce, send
from memplan.cost.rates import EXPECTED
from memplan.cost.work import ModelWork, Work
from memplan.engine.micro_step import shares_of
from memplan.spec.recipe import Recipe

HALF = 2
BUCKET = 25 * 2**20
"""Bytes of DDP's bucket (torch 2.13 nn/parallel/distributed.py: bucket_cap_mb)."""


ZERO_BUCKET = 10**9
"""Bytes of DeepSpeed's buckets: 5e8 elements of half precision."""


FLEXIBLE = 0.89 / EXPECTED.link
"""Rate of the flex dispatcher's kernels between nodes against collectives': of 50 GB/s cards of 2 to 8 nodes send 43.5
to 45.8 to others (deepseek-ai/DeepEP@dd758ca README.md, docs/legacy.md: 90, 61, 58 and 51 with what stays)."""


COPIED = 4.0
"""Bytes moved for each that a gather and a scatter write anew: read and written, twice."""


class Sizes(NamedTuple):
    """Elements on one rank of a (tensor, pipeline, expert) part, before data parallelism splits them."""

    weights: float
    weight_bytes: float
    """Of each as it is gathered or fetched: a quantised base goes packed."""
    trained: float
    units: float
    """Layers of the rank: what FSDP gathers and reduces at once."""
    modules: float
    """Modules with weights of the rank: what ZeRO-3 fetches at once, where nothing is fetched ahead with it."""
    experts: float = 0.0
    """Share of the elements that are routed experts', whose copies are on fewer ranks than the others'."""

    def share(self, of: float) -> "Sizes":
        """The same of this share of the elements."""
        return self._replace(weights=self.weights * of, trained=self.trained * of)


class Data(NamedTuple):
    """Data parallelism's seconds."""

    forward: float
    """Of gathering weights in each micro-step's forward."""
    backward: float
    """The same in each backward, and of gradients that every micro-step reduces."""
    first: float
    """Of weights that the first forward of a step gathers, for all of them."""
    last: float
    """Of gradients that only the last backward of a step reduces."""
    after: float
    """After the step's backward, with nothing to hide behind."""
    hides: bool
    """Communication runs beside the computation."""


def copies_of_experts(recipe: Recipe, ranks: int) -> int:
    """How many of so many ranks, and their tensor-parallel neighbours, hold the same part of an expert."""
    return max(1, ranks * recipe.parallel.tensor // (recipe.parallel.expert * expert_parts(recipe)))


def expert_parts(recipe: Recipe) -> int:
    """Ranks that have a part of each expert: Megatron's own degree, or where experts are not spread, tensor's."""
    degrees = recipe.parallel
    return degrees.expert_tensor if recipe.trainer.megatron or degrees.expert > 1 else degrees.tensor


def data_parallel(recipe: Recipe, sizes: Sizes, over: Links) -> Data:
    """Gradients and weights, by the way that states are sharded: those of routed experts among the ranks that hold the
    same of them, one after another with the rest (Megatron-LM core/parallel_state.py:
    get_expert_data_parallel_group; DeepSpeed utils/groups.py). Neighbours hold other experts, so that these groups
    have few ranks in a node, and each of those carries more of its own over the network."""
    degrees, name = recipe.parallel, recipe.sharding.name
    if name == "none" or degrees.world == 1:
        return Data(0, 0, 0, 0, 0, hides=True)
    whole = name in ("ddp", "zero0")
    ranks = max(1, degrees.data * degrees.context if whole else recipe.sharding.ranks)
    near, stride = recipe.hardware.gpus_per_node, degrees.expert * expert_parts(recipe)
    of = group(ranks, degrees.tensor, near)  # ranks of a sequence are among them
    if not sizes.experts or stride == degrees.tensor:
        return _among(recipe, sizes, of, degrees.tensor, over)
    rest = _among(recipe, sizes.share(1 - sizes.experts), of, degrees.tensor, over)
    same = group(copies_of_experts(recipe, ranks), stride, near)
    experts = _among(recipe, sizes.share(sizes.experts), same, stride, over)
    return Data(
        rest.forward + experts.forward,
        rest.backward + experts.backward,
        rest.first + experts.first,
        rest.last + experts.last,
        rest.after + experts.after,
        rest.hides,
    )


def _among(recipe: Recipe, sizes: Sizes, of: Group, stride: int, over: Links) -> Data:
    """Of what this group, whose ranks are so far from each other, has copies or shares of. Where there are copies of
    the shares, what a rank reduced of its group's gradients is all-reduced across them (torch 2.13
    _fully_shard/_fsdp_collectives.py: foreach_reduce; megatron-core 0.16 distributed/param_and_grad_buffer.py:
    start_grad_sync)."""
    name = recipe.sharding.name
    gradients = sizes.trained * recipe.storage.reduce_itemsize
    weights = sizes.weights * sizes.weight_bytes
    if name in ("ddp", "zero0"):
        each = reduce(gradients, of, over, gradients / BUCKET)
        every = recipe.sharding.sync_each_batch and name == "ddp"
        return Data(0, each if every else 0, 0, 0 if every else each, 0, hides=name == "ddp")
    if name in ("zero1", "zero2"):
        trained = sizes.trained * recipe.numerics.itemsize
        each, after = gather(gradients, of, over, 1 + gradients / ZERO_BUCKET), gather(trained, of, over)
        each *= 2  # buckets are all-reduced, and each rank keeps its part (use_multi_rank_bucket_allreduce)
        first, last = (each, 0.0) if name == "zero2" else (0.0, each)
        return Data(0, first, 0, last, after, hides=recipe.sharding.deepspeed.overlap_comm)
    replicas = group(recipe.parallel.replicas, of.size * stride, recipe.hardware.gpus_per_node)
    if name == "distributed-optimizer":
        fetched, settings = gather(sizes.trained * HALF, of, over), recipe.megatron
        each = gather(gradients, of, over) + reduce(gradients / of.size, replicas, over)
        first, after = (fetched, 0.0) if settings.overlap_param_gather else (0.0, fetched)
        return Data(0, 0, first, each, after, hides=settings.overlap_grad_reduce)
    times = sizes.modules if name == "zero3" else sizes.units
    return _sharded_weights(recipe, of, replicas, weights, gradients, over, times)


def _sharded_weights(
    recipe: Recipe, of: Group, replicas: Group, weights: float, gradients: float, over: Links, times: float
) -> Data:
    """ZeRO-3 and FSDP: weights are gathered for the forward, and again for the backward unless they stayed; out of the
    ranks that they were resharded to, where that is a number. In torch's pipeline what stays does so for the
    whole step, and gradients are reduced after its last backward (torch 2.13 distributed/pipelining/stage.py)."""
    settings = recipe.sharding.deepspeed
    weights /= 2 if settings.quantised_weights else 1
    gradients /= 4 if settings.quantised_gradients else 1
    once = gather(weights, of, over, times)
    kept = recipe.sharding.reshard_after_forward
    if recipe.sharding.name == "zero3":
        kept = settings.hpz if settings.hpz > 1 else True
    again = once if kept else 0.0
    if kept and kept is not True:
        again = gather(weights, Group(int(kept), min(int(kept), of.near)), over, times)
    each = gather(gradients, of, over, times) + reduce(gradients / of.size, replicas, over)
    if recipe.sharding.name == "fsdp2" and recipe.parallel.pipeline > 1:
        return Data(once, again, 0, 0, each, hides=True) if kept else Data(0, 0, once, 0, each, hides=True)
    every = recipe.sharding.sync_each_batch or recipe.sharding.name == "zero3"
    return Data(once, again + (each if every else 0), 0, 0 if every else each, 0, hides=True)


_WAITED: dict[Hashable, tuple[ModelWork, tuple[float, float]]] = {}
MOST = 20_000


def waited_for(recipe: Recipe, work: ModelWork, over: Links, memory: float) -> tuple[float, float]:
    """``tensor_parallel`` and ``expert_parallel``, remembered while the same object asks."""
    sent = recipe.rows, recipe.batch.sequence_length, recipe.numerics.itemsize, recipe.hardware.gpus_per_node
    by = recipe.trainer.megatron, recipe.megatron.moe_token_dispatcher_type
    key = id(work), recipe.parallel, sent, by, over, memory
    known = _WAITED.get(key)
    if known is None or known[0] is not work:
        if len(_WAITED) >= MOST:
            _WAITED.clear()
        made = tensor_parallel(recipe, work, over, memory), expert_parallel(recipe, work, over)
        known = _WAITED[key] = work, made
    return known[1]


def tensor_parallel(recipe: Recipe, work: ModelWork, over: Links, memory: float) -> float:
    """One forward's all-reduces over all layers of one micro-batch: after the mixer and after a dense feed-forward or
    shared experts. The tokens of a mixture stay divided along the sequence, and go to their experts so. torch's own
    gathers and scatters along the sequence, which is no tensor's first dimension, write all of it anew (torch 2.13
    distributed/_functional_collectives.py: all_gather_tensor, reduce_scatter_tensor). ``memory``: bytes a second."""
    degrees = recipe.parallel
    if degrees.tensor == 1:
        return 0.0
    of = group(degrees.tensor, 1, recipe.hardware.gpus_per_node)
    if over.mesh and recipe.trainer.megatron and recipe.megatron.tp_comm_overlap:
        both = 2 / (1 / over.among(of.near) + 1 / over.among(2))  # Transformer Engine's gathers go around, by one link
        over = over._replace(within=both, mesh=0)
    each = recipe.rows * recipe.batch.sequence_length / degrees.context * recipe.numerics.itemsize
    copied = COPIED / memory if degrees.sequence and not recipe.trainer.megatron else 0.0
    return sum(
        (sum(one.by_rows for one in layer.products) if layer.routed and degrees.sequence else 2)
        * count
        * (reduce(each * layer.width, of, over) + each * layer.width * copied)
        for count, layer in work.layers
    )


def rings(recipe: Recipe) -> bool:
    """Whether keys and values go around while attention to those before is computed."""
    if recipe.trainer.megatron:
        return recipe.megatron.cp_comm_type == "p2p"
    return shares_of(recipe) == "ring"


def context_parallel(recipe: Recipe, work: ModelWork, over: Links) -> float:
    """One forward's keys and values around the ring or gathered, or the exchange of heads before attention and of what
    it gives after it (Ulysses), over all layers of one micro-batch."""
    degrees = recipe.parallel
    if degrees.context == 1:
        return 0.0
    of = group(degrees.context, degrees.tensor, recipe.hardware.gpus_per_node)
    tokens, starts = recipe.rows * recipe.batch.sequence_length, (of.size - 2) * over.latency * START_RING
    size = tokens * recipe.numerics.itemsize / degrees.tensor
    if (recipe.megatron.cp_comm_type == "a2a") if recipe.trainer.megatron else shares_of(recipe) == "ulysses":
        here = size / degrees.context
        return sum(
            count * sum(exchange(here * sent, of, over) for sent in (each.per_pair / 4 + each.keys, each.per_pair / 4))
            for count, each in work.layers
        )
    return sum(count * (gather(size * each.keys, of, over) + starts) for count, each in work.layers)


def expert_parallel(recipe: Recipe, work: ModelWork, over: Links) -> float:
    """One forward's dispatch and combine over all layers of one micro-batch: to the ranks of the experts, and to all
    that have a part of each (Megatron-LM transformer/moe/token_dispatcher.py: MoEAlltoAllTokenDispatcher). The flex
    dispatcher sends a token to each rank and each node once, however many of its experts are there (deepseek-ai/DeepEP
    csrc/kernels: is_token_in_rank; README)."""
    degrees, near = recipe.parallel, recipe.hardware.gpus_per_node
    parts = degrees.expert_tensor if recipe.trainer.megatron else 1
    flexible = recipe.trainer.megatron and recipe.megatron.moe_token_dispatcher_type == "flex"
    if degrees.expert == parts == 1:
        return 0.0
    sent, shared = group(degrees.expert, parts, near), group(parts, 1, near)
    tokens = recipe.rows * recipe.batch.sequence_length / degrees.context / (degrees.tensor if degrees.sequence else 1)
    if flexible:
        over = over._replace(between=over.between * FLEXIBLE)
    total = 0.0
    for count, each in work.layers:
        times = copies(each, sent.size) if flexible and each.routed else each.routed
        size = tokens * times * each.width * recipe.numerics.itemsize
        once = copies(each, sent.nodes) / times if flexible and each.routed else 1.0
        total += 2 * count * (exchange(size, sent, over, once) + gather(size * parts, shared, over))
    return total


def copies(each: Work, nodes: int) -> float:
    """Nodes or ranks, in the mean, that have experts of a token: of as many draws as it has experts, among those of the
    groups that its router keeps."""
    drawn = min(nodes, max(1, round(nodes * each.kept))) if each.kept else nodes
    return drawn * (1 - (1 - 1 / drawn) ** each.routed)


def pipeline(recipe: Recipe, work: ModelWork, over: Links) -> float:
    """Sending one micro-batch's activations on, and their gradients back, at every boundary that a stage has: over the
    network by as many cards of a node as a stage has there."""
    degrees = recipe.parallel
    if degrees.pipeline == 1:
        return 0.0
    width = max(each.width for _, each in work.layers)
    tokens = recipe.rows * recipe.batch.sequence_length / degrees.context / (degrees.tensor if degrees.sequence else 1)
    near, stage = recipe.hardware.gpus_per_node, degrees.world // degrees.pipeline
    idle = near / min(near, stage)
    sent = tokens * width * recipe.numerics.itemsize
    return 2 * degrees.virtual * send(sent, degrees.world > near, over, idle)
