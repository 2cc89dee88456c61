"""DeepSpeed's groups of parameters: what lies end to end in one flat buffer, and which part of it a rank owns.

Stages 1 and 2 and BF16_Optimizer flatten each group, padded to a multiple of 2·N elements (``stage_1_and_2.py``:
nccl_start_alignment_factor); stage 3 divides each parameter by itself, padded to a multiple of N
(``partition_parameters.py``: ``_aligned_size``). N ranks share."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from memplan.engine.allocator.settings import pinned
from memplan.engine.tensors import Weight, count
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

Each = TypeVar("Each")
ALIGNMENT = 2
"""Elements to which each rank's part is aligned."""
ENGINE_BUCKET = 500_000_000
"""Elements of a bucket of the engine's own all-reduce (engine.py: MEMORY_OPT_ALLREDUCE_SIZE)."""


class Group(NamedTuple):
    """One group of trained parameters."""

    weights: tuple[Weight, ...]
    elements: int
    flat: int
    """Elements of the flat buffer, padding included."""
    partition: int
    """Elements of one rank's part."""
    turns: int = 1
    """Ranks that take turns with the parameters (``round_robin_gradients``): they lie behind each other by these."""

    def laid(self, each: Sequence[Each]) -> list[Each]:
        """What is of one parameter each, in the order of the flat buffer (``_round_robin_reorder``)."""
        return [one for turn in range(self.turns) for one in each[turn :: self.turns]]


def decays(weight: Weight) -> bool:
    """Whether weight decay applies: trainers leave norms and biases out (transformers: get_decay_parameter_names)."""
    return not (weight.norm or weight.name.endswith("bias"))


def groups_of(recipe: Recipe, weights: Iterable[Weight], ranks: int = 0) -> list[Group]:
    """The groups of the trained among ``weights``, empty ones dropped. ``ranks``: others than the recipe's."""
    trained = tuple(weight for weight in weights if weight.trained)
    if recipe.sharding.deepspeed.groups == 1:
        split = [trained]
    else:
        split = [tuple(w for w in trained if decays(w)), tuple(w for w in trained if not decays(w))]
    ranks, zero = ranks or recipe.sharding.ranks, recipe.sharding.deepspeed
    turns = ranks if zero.round_robin_gradients and zero.wrapper == "zero" else 1
    return [_group(group, ranks, turns) for group in split if group]


@lru_cache(maxsize=256)
def _group(weights: tuple[Weight, ...], ranks: int, turns: int) -> Group:
    elements = count(list(weights))
    flat = ceil_div(elements, ALIGNMENT * ranks) * ALIGNMENT * ranks
    return Group(weights, elements, flat, flat // ranks, turns)


@lru_cache(maxsize=256)
def sizes_in_order(weights: tuple[Weight, ...]) -> tuple[int, ...]:
    """Elements of each tensor as a model registers them: embedding, layer after layer, what follows them.

    Tensors of equal layers stand beside each other in ``weights``; a layer's are interleaved here."""
    sizes: list[int] = []
    run: list[Weight] = []

    def close() -> None:
        for _ in range(run[0].copies if run else 0):
            sizes.extend(weight.elements for weight in run)
        run.clear()

    for weight in weights:
        if run and (weight.copies != run[0].copies or weight.unit != run[0].unit):
            close()
        run.append(weight)
    close()
    return tuple(sizes)


def buckets_of(sizes: Iterable[int], most: int = ENGINE_BUCKET) -> list[tuple[int, int]]:
    """(elements, tensors) of each bucket: it closes once it holds more than ``most``."""
    found = [(0, 0)]
    for size in sizes:
        if found[-1][0] > most:
            found.append((0, 0))
        found[-1] = found[-1][0] + size, found[-1][1] + 1
    return found


@lru_cache(maxsize=256)
def owned(group: Group, pinned_itemsize: int = 0) -> int:
    """Elements of the parameters that touch the fullest rank's part, each whole; or page-locked bytes of a buffer each.

    A parameter that a boundary cuts counts for both ranks (``get_partition_info``, ``copy_grads_in_partition``)."""
    held: dict[int, int] = {}
    start = most = 0
    for elements in group.laid(sizes_in_order(group.weights)):
        size = pinned(elements * pinned_itemsize) if pinned_itemsize else elements
        first, last = start // group.partition, (start + elements - 1) // group.partition
        held[first] = held.get(first, 0) + size
        if last != first:
            held[last] = held.get(last, 0) + size
        most = max(most, size if last - first > 1 else 0)
        start += elements
    return max(most, *held.values())


def largest(group: Group) -> int:
    """Elements of the largest parameter."""
    return max(weight.elements for weight in group.weights)


@lru_cache(maxsize=256)
def divided(weights: tuple[Weight, ...], ranks: int) -> int:
    """Elements of one rank's parts where every parameter is divided by itself."""
    return sum(ceil_div(weight.elements, ranks) * weight.copies for weight in weights)


def persistent(weights: Iterable[Weight], threshold: int, limit: int) -> int:
    """Elements of small parameters that stay gathered (``parameter_offload.py``: mark_persistent_parameters)."""
    total = 0
    for weight in weights:
        if weight.elements <= threshold:
            room = max(0, limit - total) // max(weight.elements, 1)
            total += weight.elements * min(weight.copies, room)
    return total


@lru_cache(maxsize=256)
def sub_groups(group: Group, ranks: int, size: int) -> tuple[int, ...]:
    """Elements of each sub-group of a rank's parts that stage 3 steps on: closed when it has reached ``size``."""
    whole = divided(group.weights, ranks)
    if size >= whole:
        return (whole,)
    parts, held = [], 0
    for elements in sizes_in_order(group.weights):
        held += ceil_div(elements, ranks)
        if held >= size:
            parts.append(held)
            held = 0
    return (*parts, held) if held else tuple(parts)
