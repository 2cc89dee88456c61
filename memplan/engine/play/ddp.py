"""DDP on the play: buckets that are there from the first backward on, whose gradients are copies or views, and what
communication hooks add.

torch 2.13 csrc/distributed/c10d/reducer.cpp: ``initialize_buckets``, ``mark_variable_ready_dense``;
distributed/algorithms/ddp_comm_hooks/default_hooks.py (``_compress_hook``), powerSGD_hook.py (``use_error_feedback``,
``warm_start``)."""

from collections.abc import Iterable
from typing import NamedTuple

from memplan.engine.parallel.sharding import gradient_itemsize
from memplan.engine.play.sharding import Sharding
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight
from memplan.spec.fsdp import Ddp as Settings
from memplan.spec.recipe import Recipe
from memplan.units import MiB

FIRST_BYTES = MiB
"""Largest first bucket where bucket_cap_mb is left alone (reducer.hpp: kDefaultFirstBucketBytes)."""
CAP_MIB = 25
HALF = 2
POWER_SGD = "powerSGD_hook"


class InBucket(NamedTuple):
    """A gradient in a bucket."""

    elements: int
    columns: int
    """Of the matrix that PowerSGD makes of it: rows are its first extent."""
    itemsize: int
    copies: int = 1
    """Equal ones, one behind the other."""

    def factors(self, rank: int) -> int:
        """Bytes of PowerSGD's P and Q, of a matrix that they make smaller."""
        rows, columns = self.elements // max(self.columns, 1), self.columns
        factors = (rows + columns) * min(rows, columns, rank)
        return factors * self.itemsize * self.copies if columns > 1 and 2 * factors < self.elements else 0


def buckets(tensors: Iterable[InBucket], cap: int, first: int) -> list[list[InBucket]]:
    """Gradients in reverse order of registration, cut where a bucket has reached its size (reducer.cpp:
    compute_bucket_assignment_by_size; rebuilt in the order in which gradients come)."""
    found: list[list[InBucket]] = [[]]
    size, limit = 0, first
    for tensor in (each for each in tensors for _ in range(each.copies)):
        found[-1].append(tensor)
        size += tensor.elements * tensor.itemsize
        if size >= limit:
            found.append([])
            size, limit = 0, cap
    return [bucket for bucket in found if bucket]


def gradients_of(recipe: Recipe, weights: list[Weight]) -> tuple[InBucket, ...]:
    """Those of weights that ask for one, whether they are used or not, the last first."""
    asked = [weight for weight in reversed(weights) if weight.trained or weight.idle]
    return tuple(InBucket(each.elements, each.columns, gradient_itemsize(recipe, each), each.copies) for each in asked)


class Ddp(Sharding):
    """Buckets of one model. ``views`` (gradient_as_bucket_view): a gradient is copied into its bucket and freed."""

    def __init__(self, settings: Settings, views: bool, tape: PlayTape, every: tuple[InBucket, ...]) -> None:
        self.tape, self.views, self.hook, given = tape, views, settings.comm_hook, settings.bucket_cap_mb
        cut = buckets(every, (given or CAP_MIB) * MiB, given * MiB if given else FIRST_BYTES)
        sizes = [sum(each.elements * each.itemsize for each in bucket) for bucket in cut]
        label = ("gradients in DDP's buckets", "gradients") if views else ("DDP gradient buckets", "buffers")
        self.kept, self.copies = [self._new(size, *label) for size in sizes], list[Tensor]()
        if self.hook == POWER_SGD:
            factors = sum(each.factors(settings.powersgd_rank) for each in every)
            self.kept += [self._new(sum(sizes), "PowerSGD's errors"), self._new(factors, "PowerSGD's factors")]
        wide = (sum(each.elements for each in bucket) for bucket in cut if bucket[0].itemsize > HALF)
        self.compressed = 0 if self.hook in ("none", POWER_SGD) else HALF * max(wide, default=0)

    def _new(self, size: int, label: str, category: str = "buffers") -> Tensor:
        return self.tape.new(Dim("n", size), 1, label, category=category)

    def took(self, param: Param, scope: object, *, is_new: bool) -> None:
        """Its gradient is copied into the bucket, and a view of that takes its place."""
        if self.views and self.reduces:
            del self.tape.stored[param]

    def backward_begins(self) -> None:
        """A bucket is cast before its all-reduce and copied back after it: the largest stands for all."""
        if self.compressed and self.reduces:
            self.copies.append(self._new(self.compressed, f"bucket in half precision, {self.hook}"))

    def backward_ends(self) -> None:
        """All are reduced."""
        self.copies.clear()
