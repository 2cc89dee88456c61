"""DeepSpeed's ZeRO: its buckets, gathered weights, gradient partitions, and what its step holds (deepspeed 0.19,
runtime/zero).
"""

from __future__ import annotations

from memplan.engine.ledger import Ledger
from memplan.engine.units_of_model import Units
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

DEEPSPEED = "deepspeed 0.19 runtime/zero"


def enter_zero(book: Ledger, recipe: Recipe, unit: Units, name: str) -> None:
    """DeepSpeed's reduction bucket and its flattened copy; for stage 3 gathered weights and the gradient partitions."""
    stage, e = recipe.zero_stage, recipe.compute_itemsize
    first, last = f"{name}.loss-backward", f"{name}.embedding-backward"
    elements = min(recipe.deepspeed["reduce_bucket_size"], max(unit.trained, 1))
    bucket, copies = elements * recipe.reduce_itemsize, 2 if recipe.deepspeed["overlap_comm"] and stage < 3 else 1
    born, dies = ("", "") if stage == 3 else (first, last)
    if stage:
        book.add(
            "reduction bucket",
            "buffers",
            bucket * copies,
            born,
            dies,
            template="reduce_bucket_size × bytes × buckets",
            numbers=(elements, recipe.reduce_itemsize, copies),
            why="gradients are copied into a bucket and reduced together",
            source=f"{DEEPSPEED}: setup_buckets, stage3.py",
        )
    if recipe.several:
        book.add(
            "flattened bucket",
            "buffers",
            bucket,
            first,
            last,
            template="reduce_bucket_size × bytes",
            numbers=(elements, recipe.reduce_itemsize),
            why="the reduction flattens the bucket into a copy",
            source=f"{DEEPSPEED}: allreduce_bucket, reduce_scatter_coalesced",
        )
    if stage < 3:
        return
    shard = ceil_div(unit.trained, recipe.ranks)
    book.add(
        "gradient partitions",
        "gradients",
        shard * recipe.gradient_itemsize,
        template="trained elements / ranks × bytes",
        numbers=(shard, recipe.gradient_itemsize),
        why="a flat buffer, allocated once",
        source=f"{DEEPSPEED}/stage3.py: grad_partitions_flat_buffer",
    )
    if not recipe.several:
        return
    prefetch = recipe.deepspeed["prefetch_bucket_size"]
    live = min(unit.layer + prefetch, unit.total)
    book.add(
        "gathered weights",
        "gathered_parameters",
        live * e,
        "",
        last,
        template="(layer + prefetch) elements × bytes",
        numbers=(live, e),
        why="the module in use and what is prefetched",
        source=f"{DEEPSPEED}: partitioned_param_coordinator.py",
        low=unit.layer * e,
        high=min(2 * unit.layer + prefetch, unit.total) * e,
    )
    points = (".forward", ".loss", "loss-backward", "head-backward")
    for instant in [i for i in book.schedule if i.startswith(name + ".") and i.endswith(points)]:
        book.add(
            "gathered head",
            "gathered_parameters",
            unit.head * e,
            instant,
            instant,
            template="head elements × bytes",
            numbers=(unit.head, e),
            why="the head's weight is gathered for its product",
            source=f"{DEEPSPEED}: partition_parameters.py",
        )


def deepspeed_step(recipe: Recipe, trained: int, optimizer_copies: int) -> tuple[int, int]:
    """(elements, bytes per element) that DeepSpeed's step holds beside states and half-precision gradients.

    Stage 0 flattens fp32 copies of all gradients (4 + 4). Stages 1 and 2 flatten the owned half-precision gradients,
    then cast them (2 + 4); the flattened ones are freed before the optimizer's own temporaries. Stage 3 casts one
    sub-group at a time (4) and steps on it. Sources: runtime/fp16/fused_optimizer.py, runtime/zero/stage_1_and_2.py,
    stage3.py.
    """
    stage, half, own = recipe.zero_stage, recipe.gradient_itemsize, optimizer_copies * 4
    if stage == 0:
        return trained, max(8, 4 + own)
    shard = ceil_div(trained, recipe.ranks)
    if stage == 3:
        return min(recipe.deepspeed["sub_group_size"], shard), 4 + own
    return shard, max(half + 4, 4 + own - half)
