"""DDP on the play: buckets that are there from the first backward on, whose gradients are copies or views.

torch 2.13 csrc/distributed/c10d/reducer.cpp: ``initialize_buckets``, ``mark_variable_ready_dense``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.parallel.ddp import CAP_MIB, FIRST_BYTES, buckets
from memplan.engine.parallel.ddp import Tensor as InBucket
from memplan.engine.parallel.sharding import gradient_itemsize
from memplan.engine.play.sharding import Sharding
from memplan.engine.tape.graph import Param
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe
from memplan.units import MiB

if TYPE_CHECKING:
    from memplan.engine.play.tape import PlayTape


class Ddp(Sharding):
    """Buckets of one model. ``gradient_as_bucket_view``: a gradient is copied into its bucket and freed."""

    def __init__(self, recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> None:
        self.tape, self.views = tape, recipe.sharding.gradient_as_bucket_view
        given = recipe.sharding.ddp.bucket_cap_mb
        cap, first = (given or CAP_MIB) * MiB, given * MiB if given else FIRST_BYTES
        asked = [weight for weight in reversed(weights) if weight.trained or weight.idle]
        gradients = [InBucket(each.elements, each.columns, gradient_itemsize(recipe, each)) for each in asked]
        sizes = [sum(each.elements * each.itemsize for each in cut) for cut in buckets(gradients, cap, first)]
        self.buckets = [tape.new(Dim("n", size), 1, "DDP gradient buckets", category="buffers") for size in sizes]
        self.late = not recipe.sharding.sync_each_batch

    def took(self, param: Param, scope: object, *, is_new: bool) -> None:
        """Its gradient is copied into the bucket, and a view of that takes its place."""
        if self.views and self.reduces:
            del self.tape.stored[param]
