"""What DeepSpeed keeps on the host or on NVMe, and what it leaves on the card for that.

deepspeed 0.19: runtime/zero/stage_1_and_2.py, stage3.py, partition_parameters.py, runtime/swap_tensor. Page-locked
memory comes from ``accelerator.pin_memory``, which is ``Tensor.pin_memory``: torch rounds each block up to a power of
two; with ``DS_PIN_MEMORY_BACKEND=native`` it does not, which is the low end of the band."""

from collections.abc import Iterable, Sequence

from memplan.engine.allocator.settings import pinned
from memplan.engine.ledger import Ledger
from memplan.engine.optimizer.states import Stepped, state_bytes
from memplan.engine.parallel.zero.flat_groups import Group, divided, largest, owned, sub_groups
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

FP32 = 4
ZERO = "deepspeed 0.19 runtime/zero"
SWAPPABLE = 1024 * 1024
"""Bytes from which a tensor is swapped to NVMe (swap_tensor/constants.py: MIN_AIO_BYTES)."""


def moved(recipe: Recipe, groups: list[Group], group: Group, parts: Sequence[int]) -> list[bool]:
    """Which parts of a group are stepped on by the host: all; in stage 3 the last ``ratio`` of all sub-groups."""
    where = recipe.sharding.deepspeed.optimizer
    if not where:
        return [False] * len(parts)
    if recipe.sharding.deepspeed.wrapper != "zero3" or where.ratio == 1:
        return [True] * len(parts)
    sizes = [len(sub_groups(each, recipe.sharding.ranks, recipe.sharding.deepspeed.sub_group_size)) for each in groups]
    here = int((1 - where.ratio) * sum(sizes))
    before = sum(sizes[: groups.index(group)])
    return [before + i >= here for i in range(len(parts))]


def enter_host_states(
    ledger: Ledger,
    recipe: Recipe,
    groups: list[Group],
    frozen: list[Weight],
    tensors: list[tuple[Stepped, int]],
    of: str,
) -> None:
    """The rows of what is offloaded; none without offload. ``tensors``: what the host steps on."""
    zero = recipe.sharding.deepspeed
    if tensors:
        _enter_optimizer(ledger, recipe, tensors, of)
        if zero.wrapper == "zero3":
            _enter_stage_3(ledger, recipe, groups, of)
        else:
            _enter_stage_2(ledger, recipe, groups, of)
    if zero.parameters:
        _enter_parameters(ledger, recipe, groups, frozen, of)


def _enter_optimizer(ledger: Ledger, recipe: Recipe, tensors: list[tuple[Stepped, int]], of: str) -> None:
    """Master weights, their fp32 gradients and the optimizer's states."""
    where, wrapper = recipe.sharding.deepspeed.optimizer, recipe.sharding.deepspeed.wrapper
    parts = [tensor.elements for tensor, _ in tensors]
    kept = [n for n in parts if where.device != "nvme" or n * FP32 < SWAPPABLE]
    swapped = [n for n in parts if where.device == "nvme" and n * FP32 >= SWAPPABLE]
    states = sum(sum(state_bytes(recipe, tensor)) for tensor, _ in tensors if tensor.elements in kept)
    locked = where.pinned and wrapper == "zero"
    _host(ledger, f"fp32 master weights on the host{of}", "master_weights", kept, FP32, locked, _MASTER)
    _host(ledger, f"fp32 gradients on the host{of}", "gradients", kept, FP32, where.pinned, _GRADIENTS)
    ledger.add(f"{recipe.optimizer.row.title} states on the host{of}", "optimizer_states", states, place="host").told(
        sum(kept), round(states / max(sum(kept), 1), 4), of="states on the host"
    )
    if not swapped:
        return
    of_states = sum(sum(state_bytes(recipe, tensor)) for tensor, _ in tensors if tensor.elements in swapped)
    ledger.add(
        f"optimizer's swap files{of}", "optimizer_states", sum(swapped) * 2 * FP32 + of_states, place="nvme"
    ).told(sum(swapped), round(2 * FP32 + of_states / sum(swapped), 4))
    ledger.add(f"optimizer's swap buffers{of}", "buffers", where.buffer_count * max(swapped) * FP32, place="host").told(
        where.buffer_count, max(swapped), FP32
    )


_MASTER = f"{ZERO}/stage_1_and_2.py: single_partition_of_fp32_groups; stage3.py: fp32_partitioned_groups_flat"
_GRADIENTS = f"{ZERO}/stage_1_and_2.py, stage3.py: initialize_optimizer_states"


def _enter_stage_2(ledger: Ledger, recipe: Recipe, groups: list[Group], of: str) -> None:
    """Staging buffers of stages 1 and 2."""
    e, locked = recipe.storage.precision.weights, recipe.sharding.deepspeed.optimizer.pinned
    source, biggest = f"{ZERO}/stage_1_and_2.py", max(largest(group) for group in groups)
    staging = f"{source}: param_buffer_of_bit16_for_cpu_offload_groups"
    _host(ledger, f"updated weights on the host{of}", "buffers", [g.partition for g in groups], e, locked, staging)
    buffer = f"{source}: temp_grad_buffer_for_cpu_offload"
    _host(ledger, f"gradient buffer on the host{of}", "buffers", [biggest], e, locked, buffer)
    ledger.add(f"gradient buffer of the offload{of}", "buffers", biggest * e).told(
        biggest, e, source=f"{source}: temp_grad_buffer_for_gpu_offload"
    )
    if recipe.accumulates:
        exact = sum(owned(group) for group in groups) * e
        size = sum(owned(group, e) for group in groups) if locked else exact
        ledger.add(f"accumulated gradients on the host{of}", "gradients", size, place="host", low=exact).told(
            exact // e, e, source=f"{source}: accumulated_grads_in_cpu"
        )


def _enter_stage_3(ledger: Ledger, recipe: Recipe, groups: list[Group], of: str) -> None:
    """The flat buffer of gradient partitions is on the host too."""
    elements = sum(divided(group.weights, recipe.sharding.ranks) for group in groups)
    where = f"{ZERO}/stage3.py: grad_partitions_flat_buffer"
    locked, e = recipe.sharding.deepspeed.optimizer.pinned, recipe.sharding.deepspeed.accumulation
    _host(ledger, f"gradient partitions on the host{of}", "gradients", [elements], e, locked, where)
    if not recipe.sharding.deepspeed.optimizer.worker:
        return
    parts = [n for g in groups for n in sub_groups(g, recipe.sharding.ranks, recipe.sharding.deepspeed.sub_group_size)]
    where = "deepspeed 0.19 runtime/superoffload/superoffload_utils.py: superoffload_optimizer_worker"
    _host(ledger, f"gradients of the worker that steps{of}", "gradients", [max(parts)], FP32, True, where)


def _enter_parameters(ledger: Ledger, recipe: Recipe, groups: list[Group], frozen: list[Weight], of: str) -> None:
    """Partitions of weights: one page-locked buffer for each group, one for each frozen parameter."""
    where, e, room = (
        recipe.sharding.deepspeed.parameters,
        recipe.storage.precision.weights,
        recipe.sharding.deepspeed.parameters.max_in_cpu,
    )
    parts = [divided(group.weights, recipe.sharding.ranks) for group in groups]
    if where.device == "nvme":
        whole, kept = sum(parts), []
        for part in parts:
            kept.append(min(part, room))
            room -= kept[-1]
        away = whole - sum(kept) + divided(tuple(frozen), recipe.sharding.ranks)
        ledger.add(f"swap files of the weights{of}", "parameters", away * e, place="nvme").told(away, e)
        ledger.add(
            f"swap buffers of the weights{of}", "buffers", where.buffer_count * where.buffer_size * e, place="host"
        ).told(where.buffer_count, where.buffer_size, e)
        parts, frozen = [part for part in kept if part], []
    source = f"{ZERO}/stage3.py: _create_param_groups_fp16_flat_cpu_memory"
    _host(ledger, f"weights on the host{of}", "parameters", parts, e, True, source)
    each = [-(-weight.elements // recipe.sharding.ranks) for weight in frozen for _ in range(weight.copies)]
    source = f"{ZERO}/partition_parameters.py: _partition_param"
    _host(ledger, f"frozen weights on the host{of}", "parameters", each, e, where.pinned, source)


def _host(
    ledger: Ledger, name: str, category: str, parts: Iterable[int], itemsize: int, locked: bool, source: str
) -> None:
    """A row of buffers on the host, each rounded up to a power of two where it is page-locked."""
    parts = list(parts)
    exact = sum(parts) * itemsize
    size = sum(pinned(part * itemsize) for part in parts) if locked else exact
    ledger.add(name, category, size, place="host", low=exact if locked else -1).formula(
        "Σ 2^⌈log2(elements × bytes)⌉" if locked else "elements × bytes", sum(parts), itemsize
    ).since(
        "page-locked: torch rounds each block up to a power of two" if locked else "ordinary memory of the host", source
    )
