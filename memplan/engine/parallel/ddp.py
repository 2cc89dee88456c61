"""DDP's buffers: buckets that gradients are copied into, and what communication hooks add.

torch 2.13 nn/parallel/distributed.py, csrc/distributed/c10d/reducer.cpp, distributed/algorithms/ddp_comm_hooks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from memplan.engine.ledger import Ledger
from memplan.engine.tensors import Weight, count
from memplan.spec.recipe import Recipe
from memplan.units import MiB

DDP = "torch 2.13 nn/parallel/distributed.py: gradient_as_bucket_view"
HOOKS = "torch 2.13 distributed/algorithms/ddp_comm_hooks"
FIRST_BYTES = MiB
"""Largest first bucket where bucket_cap_mb is left alone (reducer.hpp: kDefaultFirstBucketBytes)."""
CAP_MIB = 25
HALF = 2


class Tensor(NamedTuple):
    """A gradient in a bucket."""

    elements: int
    columns: int
    """Of the matrix that PowerSGD makes of it: rows are its first extent."""
    itemsize: int


def enter_ddp(ledger: Ledger, recipe: Recipe, weights: list[Weight], itemsize: Callable[[Recipe, Weight], int]) -> None:
    """Buckets are a second copy of every gradient, or, where gradients are views of them, gradients that stay.

    They are never freed: ``zero_grad`` drops the views alone. Weights without a gradient have their place too."""
    views = recipe.sharding.gradient_as_bucket_view
    asked = [weight for weight in weights if weight.trained or weight.idle]
    size = sum(weight.elements * weight.copies * itemsize(recipe, weight) for weight in asked)
    unseen = sum(weight.elements * weight.copies * itemsize(recipe, weight) for weight in asked if not weight.trained)
    ledger.add(
        "gradients in DDP's buckets" if views else "DDP gradient buckets", "gradients" if views else "buffers", size
    ).formula("trained elements × gradient bytes", count(asked), recipe.storage.gradient_itemsize).since(
        "gradients are views of buckets, which stay between steps"
        if views
        else "gradient_as_bucket_view=False keeps buckets beside the gradients",
        DDP,
    )
    if unseen and not views:
        ledger.add("gradients of weights that were not used", "gradients", 0).formula("elements × bytes").since(
            "DDP leaves them undefined", DDP
        )
    _enter_hook(ledger, recipe, asked, itemsize)


def buckets(tensors: Iterable[Tensor], cap: int, first: int) -> list[list[Tensor]]:
    """Gradients in reverse order of registration, cut where a bucket has reached its size (reducer.cpp:
    compute_bucket_assignment_by_size; rebuilt in the order in which gradients come)."""
    found: list[list[Tensor]] = [[]]
    size, limit = 0, first
    for tensor in tensors:
        found[-1].append(tensor)
        size += tensor.elements * tensor.itemsize
        if size >= limit:
            found.append([])
            size, limit = 0, cap
    return [bucket for bucket in found if bucket]


def _enter_hook(
    ledger: Ledger, recipe: Recipe, weights: list[Weight], itemsize: Callable[[Recipe, Weight], int]
) -> None:
    """A compressed copy of one bucket while it is reduced; PowerSGD's factors, and its error from step to step."""
    hook = recipe.sharding.ddp.comm_hook
    if hook == "none":
        return
    given = recipe.sharding.ddp.bucket_cap_mb
    cap, first = (given or CAP_MIB) * MiB, given * MiB if given else FIRST_BYTES
    one_layer = [
        Tensor(weight.elements, weight.columns, itemsize(recipe, weight))
        for weight in reversed(weights)
        for _ in range(weight.copies)
    ]
    cut = buckets(one_layer, cap, first)
    largest = max(cut, key=lambda bucket: sum(tensor.elements for tensor in bucket))
    elements = sum(tensor.elements for tensor in largest)
    if hook == "powerSGD_hook":
        _enter_powersgd(ledger, recipe, cut)
        return
    last = next((instant for instant in reversed(ledger.schedule) if instant.endswith(".reduce")), "")
    if not last:  # an evaluation reduces nothing
        return
    ledger.add(
        f"bucket in half precision, {hook}",
        "buffers",
        elements * HALF if largest[0].itemsize > HALF else 0,
        last.replace(".reduce", ".loss-backward"),
        last,
    ).formula("elements of the largest bucket × 2", elements, HALF).since(
        "a bucket is cast before its all-reduce and copied back after it", f"{HOOKS}/default_hooks.py: _compress_hook"
    )


def _enter_powersgd(ledger: Ledger, recipe: Recipe, cut: list[list[Tensor]]) -> None:
    """Errors of all buckets stay (use_error_feedback), and the factors P and Q of every matrix (warm_start)."""
    rank = recipe.sharding.ddp.powersgd_rank
    tensors = [tensor for bucket in cut for tensor in bucket]
    errors = sum(tensor.elements * tensor.itemsize for tensor in tensors)
    factors = 0
    for tensor in tensors:
        rows, columns = tensor.elements // max(tensor.columns, 1), tensor.columns
        low = min(rows, columns, rank)
        if columns > 1 and (rows + columns) * low * 2 < tensor.elements:
            factors += (rows + columns) * low * tensor.itemsize
    for label, size, why in (
        ("PowerSGD's errors", errors, "what compression lost is added to the next step's gradients"),
        ("PowerSGD's factors", factors, f"P and Q of rank {rank} of every matrix that they make smaller, kept"),
    ):
        ledger.add(label, "buffers", size).formula("elements × bytes").since(why, f"{HOOKS}/powerSGD_hook.py")
