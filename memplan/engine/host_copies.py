"""What a trainer's tensors take of the host while they wait there: page-locked copies are larger than the tensors.

``to("cpu", non_blocking=True)`` of a tensor on a card is page-locked (aten/src/ATen/native/TensorConversions.cpp:
_to_copy, pin_out), as what ``pin_memory`` makes is, and torch takes a block of a power of two for each, which it keeps
for good (2.1 to 2.13 CachingHostAllocator: PowerOf2Ceil, free_list_). Plain ``cpu()`` takes the bytes of the tensor."""

from collections.abc import Iterable
from typing import Any

from memplan.engine.allocator.settings import pinned
from memplan.engine.parallel.fsdp1.flat_parameters import flat_shards, fullest
from memplan.engine.parallel.fsdp2.units import padded
from memplan.engine.parallel.zero.flat_groups import groups_of
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

FP32 = 4
Sizes = list[tuple[int, int]]
"""(elements of a tensor on this rank, how many such there are)."""


def copied(exact: int, sizes: Sizes, itemsize: int) -> int:
    """Bytes of page-locked memory for ``exact`` bytes of tensors of such sizes: several of each size as well (moments,
    main weights), whose shares are the same."""
    whole = sum(elements * copies for elements, copies in sizes) * itemsize
    blocks = sum(pinned(elements * itemsize) * copies for elements, copies in sizes)
    return exact * blocks // whole if whole else exact


def parameter_sizes(recipe: Recipe, weights: Iterable[Weight]) -> Sizes:
    """Tensors of the weights that a rank holds: flat ones of a unit under FSDP1, else one for each parameter."""
    ranks, name = recipe.sharding.ranks, recipe.wrapper
    if name == "fsdp":
        return flat_shards(recipe)
    if name == "fsdp2":
        return [(padded(weight._replace(copies=1), ranks) // ranks, weight.copies) for weight in weights]
    shards = ranks if recipe.zero_stage == 3 else 1
    return [(ceil_div(weight.elements, shards), weight.copies) for weight in weights]


def state_sizes(recipe: Recipe, weights: list[Weight]) -> Sizes:
    """Tensors that the optimizer keeps each of its states in: DeepSpeed's flat parts, else those it steps on."""
    if recipe.wrapper == "deepspeed":
        return [(group.partition, 1) for group in groups_of(recipe, weights)]
    trained = [weight for weight in weights if weight.trained]
    if recipe.wrapper == "fsdp" and recipe.adapter is not None:
        return [(ceil_div(piece.elements, recipe.sharding.ranks), piece.copies) for piece in fullest(recipe, weights)]
    return parameter_sizes(recipe, trained)


def locked(parts: Any, weights: list[Weight], parameters: int, optimizer: int) -> tuple[int, int]:
    """(of the parameters, of the optimizer's) page-locked bytes for so many exact ones. ``parts``: of one ledger."""
    recipe, e = parts.recipe, parts.recipe.storage.precision.weights
    if not recipe.in_megatron:
        states = FP32 if recipe.storage.precision.master else e
        return copied(parameters, parameter_sizes(recipe, weights), e), copied(
            optimizer, state_sizes(recipe, weights), states
        )
    from memplan.engine.megatron.states import buffers

    whole = [(buffer.elements, 1) for buffer in buffers(recipe, parts.shares)]
    shares = [(share.rows * share.columns, int(share.copies)) for share in parts.shares if share.trained]
    return copied(parameters, whole, e), copied(optimizer, shares, FP32)
