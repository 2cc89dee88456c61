"""Seconds of the optimizer's step: bytes of gradients, weights and states, through the card's memory or the host's."""

from memplan.cost.machines import HOST_STEP
from memplan.cost.rates import Device, Rates, products_rate
from memplan.cost.traffic import Sizes, copies_of_experts
from memplan.cost.work import ModelWork, model_work
from memplan.engine.tensors import count, model_weights
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe

PASSES = {"fused": 1.0, "foreach": 2.5, "loop": 3.0}
"""Times that a step goes through its tensors' bytes: once in one kernel; about ten kernels over lists of tensors, which
read and write two or three of them each (torch 2.13 optim/adamw.py: _multi_tensor_adamw); the same tensor by tensor."""
LOOP_KERNELS = 12
"""Kernels for each tensor of a step that goes tensor by tensor."""
TENSORS_PER_LAYER = 9
FP32 = 4
NEWTON_SCHULZ = 5
"""Iterations of one of Muon's steps."""
_KNOWN: dict[int, tuple[ModelSpec, dict[Adapter | None, int]]] = {}


def trained_elements(recipe: Recipe) -> int:
    """Elements of the policy that train."""
    spec = recipe.model
    known = _KNOWN.get(id(spec))
    if known is None or known[0] is not spec:
        known = _KNOWN[id(spec)] = spec, {}
    found = known[1].get(recipe.adapter)
    if found is None:
        weights = model_weights(spec, recipe.adapter is None, recipe.adapter)
        found = known[1][recipe.adapter] = count([weight for weight in weights if weight.trained])
    return found


def stepped_elements(recipe: Recipe, sizes: Sizes) -> float:
    """Elements that one rank steps: its share where optimizer states are sharded."""
    if recipe.sharding.name in ("none", "ddp", "zero0"):
        return sizes.trained
    ranks = max(recipe.sharding.ranks, 1)
    return sizes.trained * ((1 - sizes.experts) / ranks + sizes.experts / copies_of_experts(recipe, ranks))


def state_per_element(recipe: Recipe) -> float:
    """Bytes of an element's states."""
    optimizer = recipe.optimizer.row
    each = optimizer.state_itemsize or recipe.storage.precision.states
    return optimizer.bytes_per_element or (optimizer.per_element or 1) * each


def bytes_per_element(recipe: Recipe) -> float:
    """Bytes that a step reads and writes of each element: gradient read (again for its norm), weights, states both."""
    precision, state = recipe.storage.precision, state_per_element(recipe)
    stepped = precision.master or precision.weights
    copied = precision.weights if precision.master else 0
    return 2 * recipe.storage.gradient_itemsize + 2 * stepped + 2 * state + copied


def is_offloaded(recipe: Recipe, what: str) -> bool:
    """Whether the job keeps it on the host."""
    return what in recipe.offloaded


def stepped_on_host(recipe: Recipe) -> float:
    """Share of the optimizer's states that are there."""
    if recipe.trainer.megatron and recipe.megatron.optimizer_cpu_offload:
        return recipe.megatron.optimizer_offload_fraction
    return float(recipe.sharding.fsdp.cpu_offload or is_offloaded(recipe, "optimizer"))


def adding_seconds(recipe: Recipe, sizes: Sizes, device: Device, rates: Rates) -> float:
    """Of one micro-step's gradients, added to those before: Megatron's products add to fp32 buffers, or its hooks do;
    DeepSpeed copies them into its buckets and averages them; autograd adds from the second micro-step on."""
    itemsize, name = recipe.storage.gradient_itemsize, recipe.sharding.name
    if recipe.trainer.megatron:
        moved = 2.0 * itemsize + (0 if recipe.megatron.gradient_accumulation_fusion else recipe.numerics.itemsize)
    elif name in ("zero1", "zero2", "zero3"):
        moved = 4.0 * recipe.numerics.itemsize
    else:
        moved = 3 * itemsize * (1 - 1 / recipe.batch.accumulation)
        if name in ("fsdp", "fsdp2") and recipe.sharding.sync_each_batch:
            moved /= max(recipe.sharding.ranks, 1)
    return sizes.trained * moved / (device.memory * rates.memory)


def copying_seconds(recipe: Recipe, sizes: Sizes, device: Device, rates: Rates) -> tuple[float, float]:
    """(of a forward, of a backward): FSDP2 copies what it gathered out of one buffer into each parameter, and
    gradients, cast, into another before they are reduced (torch 2.13 fsdp/_fully_shard/_fsdp_collectives.py:
    split_with_sizes_copy, chunk_cat); ZeRO-3 joins what came of each rank (DeepSpeed 0.19
    zero/partition_parameters.py: AllGatherCoalescedHandle.wait)."""
    sharding, memory = recipe.sharding, device.memory * rates.memory
    if sharding.name not in ("fsdp2", "zero3") or sharding.ranks <= 1:
        return 0.0, 0.0
    gathered = 2 * sizes.weights * sizes.weight_bytes / memory
    if sharding.name == "zero3":
        return gathered, gathered
    times = 1.0 if sharding.sync_each_batch else 1 / recipe.batch.accumulation
    joined = times * sizes.trained * (recipe.storage.gradient_itemsize + recipe.storage.reduce_itemsize) / memory
    if recipe.parallel.pipeline > 1 and not sharding.reshard_after_forward:
        return gathered / recipe.batch.accumulation, joined
    return gathered, joined + (gathered if sharding.reshard_after_forward else 0.0)


def optimizer_seconds(recipe: Recipe, sizes: Sizes, device: Device, rates: Rates) -> float:
    """On the card, of the states that are there."""
    here = 1 - stepped_on_host(recipe)
    moved = (
        stepped_elements(recipe, sizes) * bytes_per_element(recipe) * PASSES.get(recipe.optimizer.implementation, 1.0)
    )
    seconds = here * moved / (device.memory * rates.memory)
    if here and recipe.optimizer.implementation == "loop":
        seconds = max(seconds, LOOP_KERNELS * TENSORS_PER_LAYER * recipe.model.num_layers * rates.launch)
    if here and recipe.optimizer.row.rule == "muon" and recipe.adapter is None:
        share = stepped_elements(recipe, sizes) / max(trained_elements(recipe), 1)
        seconds += share * orthogonalising_flop(model_work(recipe.model)) / products_rate(device, rates, 2)
    return seconds + paged_seconds(recipe, sizes, device)


def paged_seconds(recipe: Recipe, sizes: Sizes, device: Device) -> float:
    """Of states in managed memory that have no room beside the weights: a step goes through them in turn, so that each
    drives out one that comes later, and all of them come and go, both ways at once (CUDA's pages that were used least
    recently leave first)."""
    gpu, states = recipe.hardware.gpu, stepped_elements(recipe, sizes) * state_per_element(recipe)
    if not recipe.optimizer.row.paged or gpu is None or sizes.weights * sizes.weight_bytes + states <= gpu.usable_bytes:
        return 0.0
    return states / device.bus


def orthogonalising_flop(work: ModelWork) -> float:
    """Of Muon's Newton-Schulz iterations over every matrix [m, n] of the layers, m <= n: X Xᵀ, its square, and their
    sum times X (torch 2.13 optim/_muon.py: _zeropower_via_newtonschulz). Stacked experts are no matrices, and AdamW's.
    """
    total = 0.0
    for layers, each in work.layers:
        for product in each.products:
            short, long = sorted((product.inputs, product.outputs))
            total += layers * (4.0 * short**2 * long + 2.0 * short**3)
    return NEWTON_SCHULZ * total


def host_seconds(recipe: Recipe, sizes: Sizes, saved: float, device: Device) -> float:
    """A step on the host, with gradients that come and weights that go; activations that go and come back: beside
    computation it is slowed by as much (prime-rl@559b447 benchmarks/baselines: 2 to 5 % of a step on H100, so)."""
    seconds = 0.0
    away = stepped_on_host(recipe)
    if away:
        elements = away * stepped_elements(recipe, sizes)
        cards = min(recipe.hardware.gpus_per_node, recipe.parallel.world)
        seconds += elements * (recipe.storage.gradient_itemsize + recipe.numerics.itemsize) / device.bus
        seconds += elements * bytes_per_element(recipe) * cards / HOST_STEP
        goes = recipe.sharding.name in ("fsdp", "fsdp2") and recipe.sharding.sync_each_batch  # and is added there
        times = 2 if recipe.zero_stage > 0 else int(goes)  # DeepSpeed: comes, is added up on the card, and goes again
        again = times * (recipe.batch.accumulation - 1)
        seconds += again * elements * recipe.storage.gradient_itemsize / device.bus
    if is_offloaded(recipe, "activations"):
        seconds += recipe.batch.accumulation * 2 * saved / device.bus
    return seconds


def fetched_seconds(recipe: Recipe, sizes: Sizes, device: Device) -> float:
    """A rank's share of the weights from the host, for one pass over them: ahead of their gathering, on a stream of its
    own (torch 2.13 fsdp/_fully_shard/_fsdp_param_group.py; DeepSpeed 0.19 zero/partitioned_param_coordinator.py)."""
    if not (is_offloaded(recipe, "parameters") or recipe.sharding.fsdp.cpu_offload):
        return 0.0
    return sizes.weights * sizes.weight_bytes / max(recipe.sharding.ranks, 1) / device.bus
