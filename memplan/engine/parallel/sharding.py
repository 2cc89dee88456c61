"""What one rank holds under each way of splitting model states, and the buffers that splitting needs.

DeepSpeed 0.19 (runtime/zero), torch 2.13 DDP (nn/parallel/distributed.py, reducer.cpp) and FSDP2
(distributed/fsdp/_fully_shard). ``N`` is the number of ranks that share the states."""

from functools import lru_cache
from typing import NamedTuple

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp2.units import FP32, adds_in_place, gathers, has_tail, upcasts, waits_for_reduction
from memplan.engine.tensors import Weight, model_weights
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.tables.styles import Bucket, GradientMode


class KeptGradients(NamedTuple):
    """What stays whole of gradients after their layer's backward: all, or those outside the layers until they are
    reduced. What is left of the others is in rows of the sharding."""

    layers: bool
    root: bool
    tail: str = ""
    """The point at which those of head and final norm are reduced, where they are a unit of their own."""
    into_step: bool = True
    """Whole gradients are still there in the optimizer's step."""
    views: bool = False
    """FSDP1: those of another forward's views wait until the root of this one's runs back."""
    until: str = ""
    """The last instant of what remains, where an engine of its own steps before the end."""

    def last(self, ledger: Ledger, name: str) -> str:
        """The last instant of gradients that are kept whole."""
        if self.layers:
            return self.until if self.into_step else ledger.schedule[-2]
        return f"{name}.reduce"


class Held(NamedTuple):
    """Divisors and element sizes of one rank's model states."""

    parameter_shards: int
    gradient_shards: int
    optimizer_shards: int
    parameter_itemsize: int
    """Of stored weights."""
    gathers: bool
    """Weights are gathered for use, a unit at a time."""

    def stored_itemsize(self, recipe: Recipe, weight: Weight) -> int:
        """Element size of a weight as it is stored."""
        if weight.adapter and recipe.adapter:
            return weight.itemsize or recipe.adapter.itemsize
        return kept_itemsize(recipe, weight) or self.parameter_itemsize

    def stepped_itemsize(self, recipe: Recipe, weight: Weight) -> int:
        """Element size of the tensor that the optimizer steps on, which its states follow."""
        return recipe.storage.precision.master or self.stored_itemsize(recipe, weight)


def kept_itemsize(recipe: Recipe, weight: Weight) -> int:
    """Element size of a weight that is kept in another dtype than the rest; 0: it is not. DeepSpeed casts them all."""
    if upcasts(recipe, weight):  # of a unit that is never gathered, original parameters are views of the shard before
        stays = weight.apart and not weight.trained and recipe.model.tower_idle and recipe.sharding.fsdp.use_orig_params
        return FP32 + recipe.storage.precision.weights % FP32 * stays
    own = 0 if recipe.storage.precision.master else weight.itemsize
    numerics = recipe.numerics
    return own or (numerics.norm_itemsize if weight.norm else numerics.stack_itemsize if weight.of_experts else 0)


def held(recipe: Recipe) -> Held:
    """Which states are split: ZeRO-1's and Megatron's the optimizer's, ZeRO-2 gradients too, ZeRO-3 and FSDP2 all."""
    ranks, stage = recipe.sharding.ranks, recipe.zero_stage
    everything = stage == 3 or recipe.sharding.name in ("fsdp", "fsdp2")
    return Held(
        parameter_shards=ranks if everything else 1,
        gradient_shards=ranks if everything or stage == 2 else 1,
        optimizer_shards=ranks if everything or stage >= 1 or recipe.sharding.name == "distributed-optimizer" else 1,
        parameter_itemsize=recipe.storage.precision.weights,
        gathers=recipe.in_units or (stage == 3 and recipe.several),
    )


def gradient_itemsize(recipe: Recipe, weight: Weight) -> int:
    """Element size of a stored gradient: an adapter's own, else the job's."""
    if weight.adapter and recipe.adapter:
        return weight.itemsize or recipe.adapter.itemsize
    if upcasts(recipe, weight) or (weight.itemsize and not recipe.storage.precision.master):
        return kept_itemsize(recipe, weight)
    return recipe.storage.gradient_itemsize if recipe.zero_stage < 0 else recipe.storage.precision.weights


def gradient_mode(recipe: Recipe) -> GradientMode:
    """What becomes of gradients in a step's backward."""
    if recipe.fused_backward and not gathers(recipe):
        return recipe.fused_backward
    if gathers(recipe):
        return "add" if recipe.accumulates and adds_in_place(recipe) else "keep"
    if takes_gradients(recipe):
        return gradient_mode_of_zero(recipe)
    there = recipe.accumulates or main_gradients(recipe) or in_buckets(recipe)
    return "add" if there else "keep"


def second_mode(recipe: Recipe) -> GradientMode:
    """The mode of a step's second backward (see ``gradient_mode``), where the halves of pairs have one each.

    FSDP2's whole gradients are new in every backward, unless those of the first wait unreduced in the same dtype."""
    if gathers(recipe):
        return "add" if adds_in_place(recipe) else "keep"
    return gradient_mode_of_zero(recipe) if takes_gradients(recipe) else "add"


def in_buckets(recipe: Recipe) -> bool:
    """Whether each gradient is copied into DDP's bucket as it comes, and freed (reducer.cpp: bucket views)."""
    halves = recipe.method.pairs and recipe.loss.pair_pass in ("split", "gradcache")
    views = recipe.sharding.name == "ddp" and recipe.several and recipe.sharding.gradient_as_bucket_view
    return views and (recipe.sharding.sync_each_batch or not halves)


def gone_in_step(recipe: Recipe) -> bool:
    """Whether whole gradients end with the last backward: partitions, shards or bucket views are left of them."""
    if recipe.in_units or (recipe.sharding.name == "ddp" and recipe.several):
        return recipe.sharding.gradient_as_bucket_view if recipe.sharding.name == "ddp" else waits_for_reduction(recipe)
    return recipe.sharding.deepspeed.wrapper == "zero"


def main_gradients(recipe: Recipe) -> bool:
    """Megatron's gradient buffer is there all along: each gradient is added to it and freed."""
    return recipe.trainer.megatron and bool(recipe.storage.precision.master)


def kept_gradients(recipe: Recipe, waits: bool = False) -> KeptGradients:
    """Which gradients stay whole after their layer's backward. ``waits``: for those of the same weights' other use."""
    if (recipe.fused_backward and not gathers(recipe)) or (takes_gradients(recipe) and not waits):
        return KeptGradients(layers=False, root=False)
    if not gathers(recipe):
        return KeptGradients(layers=True, root=True, into_step=not gone_in_step(recipe))
    return KeptGradients(
        layers=False,
        root=True,
        tail="tail-reduce" if has_tail(recipe) else "",
        views=waits and recipe.sharding.name == "fsdp",
    )


def takes_gradients(recipe: Recipe) -> bool:
    """Whether each gradient goes into the bucket as it comes, and its own memory is free then.

    Stages 2 and 3; stage 1 with overlap_comm where every backward is reduced and each fits into the bucket (it keeps
    those of other ranks that do not to the epilogue: stage_1_and_2.py, ``reduce_ipg_grads``); BF16_Optimizer with
    immediate_grad_update, whose bucket is its fp32 buffer."""
    zero = recipe.sharding.deepspeed
    if zero.wrapper == "zero" and recipe.zero_stage == 1:
        fits = zero.contiguous_gradients and _largest(recipe.model, recipe.adapter) <= zero.reduce_bucket_size
        return zero.overlap_comm and not recipe.accumulates and (fits or not recipe.several)
    return zero.wrapper == "zero3" or recipe.zero_stage == 2 or (zero.wrapper == "bf16" and zero.immediate_grad_update)


@lru_cache(maxsize=64)
def _largest(spec: ModelSpec, adapter: Adapter | None) -> int:
    """Elements of the largest trained parameter."""
    return max(
        (weight.elements for weight in model_weights(spec, adapter is None, adapter) if weight.trained), default=0
    )


def gradient_mode_of_zero(recipe: Recipe) -> Bucket:
    """How gradients arrive (``GradientMode``): those of more elements than a bucket wait for the next one's coming."""
    zero = recipe.sharding.deepspeed
    limit = zero.reduce_bucket_size if zero.contiguous_gradients or zero.wrapper == "bf16" else 0
    return Bucket(limit)
