"""Model states: parameters, master weights, gradients that stay, optimizer states, and what the step itself holds."""

from __future__ import annotations

from itertools import pairwise

from memplan.engine.ledger import Ledger
from memplan.engine.sharding import Held
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Quantised, Recipe
from memplan.units import ceil_div

FP32 = 4
BLOCK = 512
"""The caching allocator's unit."""


def state_bytes(recipe: Recipe, weight: Weight, itemsize: int, shards: int) -> int:
    """Optimizer states of one tensor of ``rows`` × ``columns``, on one of ``shards`` ranks.

    Elementwise states follow the dtype of the tensor that is stepped on (``zeros_like``); Adafactor keeps a row and a
    column of statistics for each matrix, a full vector otherwise; block-wise 8-bit states count fp32 below
    ``min_8bit_size``, and for embeddings under the Hugging Face trainers, which register them for 32 bits.
    """
    optimizer, elements = recipe.optimizer, ceil_div(weight.elements, shards)
    if optimizer.bytes_per_element:
        wide = weight.elements < optimizer.small_tensor_elements or (
            weight.unit == "embedding" and recipe.trainer.name != "pytorch"
        )
        return elements * 2 * FP32 if wide else round(elements * optimizer.bytes_per_element)
    if optimizer.factored:
        if weight.columns == 1:
            return elements * itemsize
        return ceil_div(weight.stacked * (weight.rows + weight.columns), shards) * itemsize
    return elements * itemsize * optimizer.per_element


def step_temporaries(recipe: Recipe, weights: list[Weight], itemsize: int, shards: int) -> int:
    """Bytes that the optimizer's step holds beside states and gradients.

    foreach: whole copies of everything stepped; loop: copies of the largest tensor, and for Adafactor of two
    neighbours, since the loop's variable still holds the one before; fused and 8-bit kernels: none.
    """
    optimizer, impl = recipe.optimizer, recipe.optimizer_impl
    if impl == "foreach":
        stepped = sum(ceil_div(weight.elements, shards) * weight.copies for weight in weights)
        return optimizer.foreach_copies * stepped * itemsize
    if impl != "loop":
        return 0
    sizes = [ceil_div(weight.elements, shards) * itemsize for weight in weights]
    if optimizer.factored:
        return max((a + b for a, b in pairwise(sizes)), default=0)
    return optimizer.loop_copies * max(sizes, default=0)


def enter_states(book: Ledger, recipe: Recipe, weights: list[Weight], held: Held) -> None:
    """Rows that live for the whole step: weights, master weights and optimizer states, as this rank holds them."""
    trained = [weight for weight in weights if weight.trained]
    for label, group, category in (
        ("weights", [w for w in trained if not w.adapter], "parameters"),
        ("adapters", [w for w in trained if w.adapter], "adapters"),
    ):
        _enter_stored(book, recipe, f"{label} of the policy", category, group, held)
    enter_frozen(book, recipe, [weight for weight in weights if not weight.trained], held)
    precision = recipe.precision
    elements = shard_elements(trained, held.optimizer_shards)
    book.add(
        "fp32 master weights",
        "master_weights",
        elements * precision.master,
        template=f"elements{_over(held.optimizer_shards)} × 4",
        numbers=(elements, precision.master),
        why="the optimizer steps on an fp32 copy of the half-precision weights",
        source="deepspeed 0.19 runtime/zero/stage_1_and_2.py, stage3.py: single_partition_of_fp32_groups",
    )
    size = 0
    for weight in trained:
        itemsize = held.stepped_itemsize(recipe, weight)
        size += state_bytes(recipe, weight, itemsize, held.optimizer_shards) * weight.copies
    book.add(
        f"{recipe.optimizer.title} states",
        "optimizer_states",
        size,
        meter="managed" if recipe.optimizer.paged else "allocated",
        template=f"elements{_over(held.optimizer_shards)} × state bytes",
        numbers=(elements, round(size / max(elements, 1), 4)),
        why="kept between steps from the first step on",
        source=recipe.optimizer.source,
    )


def _enter_stored(
    book: Ledger, recipe: Recipe, label: str, category: str, group: list[Weight], held: Held, why: str = ""
) -> None:
    """A row of weights for each element size among them."""
    for itemsize in sorted({held.stored_itemsize(recipe, weight) for weight in group}, reverse=True):
        same = [weight for weight in group if held.stored_itemsize(recipe, weight) == itemsize]
        elements = shard_elements(same, held.parameter_shards)
        book.add(
            label,
            category,
            elements * itemsize,
            template=f"elements{_over(held.parameter_shards)} × bytes",
            numbers=(elements, itemsize),
            why=why or f"stored in {itemsize} bytes per element ({recipe.precision.name})",
            source="MEMORY_ESTIMATION.md, parameters",
        )


def enter_frozen(book: Ledger, recipe: Recipe, frozen: list[Weight], held: Held) -> None:
    """Frozen weights: whole, or quantised linears and what is left beside them."""
    base = recipe.quantised
    if base is None:
        _enter_stored(book, recipe, "frozen weights of the policy", "parameters", frozen, held)
        return
    enter_quantised(book, base, "the policy", "parameters", [weight for weight in frozen if weight.linear])
    rest = [weight for weight in frozen if not weight.linear]
    why = "embeddings, head, norms, biases and stacked experts are not quantised"
    _enter_stored(book, recipe, "unquantised weights of the policy", "parameters", rest, held, why)


def enter_quantised(book: Ledger, base: Quantised, owner: str, category: str, weights: list[Weight]) -> int:
    """The tensors that quantised matrices become, each rounded up as the allocator does; returns their bytes."""
    packed = scales = elements = 0
    for weight in weights:
        first, *rest = (
            ceil_div(size, BLOCK) * BLOCK for size in base.scheme.tensors(weight.rows, weight.columns).values()
        )
        packed, scales = packed + first * weight.copies, scales + sum(rest) * weight.copies
        elements += weight.elements * weight.copies
    scheme = base.scheme
    for label, size, why in (
        ("quantised weights", packed, f"{scheme.title}: {scheme.bits} bits for each weight of the layers' linears"),
        ("scales of the quantised weights", scales, "scales, zeros and codes, rounded up to 512 bytes a tensor"),
    ):
        book.add(
            f"{label} of {owner}",
            category,
            size,
            template="elements × bytes per element",
            numbers=(elements, round(size / max(elements, 1), 6)),
            why=why,
            source=scheme.source,
        )
    return packed + scales


def shard_elements(weights: list[Weight], shards: int) -> int:
    """Elements of one rank's shard, each tensor padded up to a multiple of the ranks."""
    return sum(ceil_div(weight.elements, shards) * weight.copies for weight in weights)


def _over(shards: int) -> str:
    return f" / {shards} ranks" if shards > 1 else ""
