"""What one rank holds under each way of splitting model states, and the buffers that splitting needs.

DeepSpeed 0.19 (runtime/zero), torch 2.13 DDP (nn/parallel/distributed.py, reducer.cpp) and FSDP2
(distributed/fsdp/_fully_shard). ``N`` is the number of ranks that share the states.
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.engine.deepspeed import enter_zero
from memplan.engine.ledger import Ledger
from memplan.engine.pass_rows import KeptGradients
from memplan.engine.tensors import Weight, count
from memplan.engine.units_of_model import Units
from memplan.spec.recipe import Recipe

FSDP2 = "torch 2.13 distributed/fsdp/_fully_shard"
DDP = "torch 2.13 nn/parallel/distributed.py: gradient_as_bucket_view"


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
        return (recipe.norm_itemsize if weight.norm else 0) or self.parameter_itemsize

    def stepped_itemsize(self, recipe: Recipe, weight: Weight) -> int:
        """Element size of the tensor that the optimizer steps on, which its states follow."""
        return recipe.precision.master or self.stored_itemsize(recipe, weight)


def held(recipe: Recipe) -> Held:
    """Which states are split: ZeRO-1 the optimizer's, ZeRO-2 gradients too, ZeRO-3 and FSDP2 everything."""
    ranks, stage = recipe.ranks, recipe.zero_stage
    everything = stage == 3 or recipe.sharding == "fsdp2"
    return Held(
        parameter_shards=ranks if everything else 1,
        gradient_shards=ranks if everything or stage == 2 else 1,
        optimizer_shards=ranks if everything or stage >= 1 else 1,
        parameter_itemsize=recipe.precision.weights,
        gathers=everything and ranks > 1,
    )


def gradient_itemsize(recipe: Recipe, weight: Weight) -> int:
    """Element size of a stored gradient: an adapter's own, else the job's."""
    if weight.adapter and recipe.adapter:
        return weight.itemsize or recipe.adapter.itemsize
    return recipe.gradient_itemsize


def keeps_whole(recipe: Recipe) -> bool:
    """Whether gradients stay whole on the rank: unsharded, ZeRO-0 and 1, or FSDP2 between unsynchronised
    micro-steps.
    """
    if recipe.sharding == "fsdp2" and recipe.ranks > 1:
        return recipe.accumulation > 1 and not recipe.sync_each_batch
    return recipe.zero_stage < 2


def gradient_mode(recipe: Recipe) -> str:
    """Add: a gradient is added to the one there. Keep: it is new in each micro-step (see ``Tape``).

    Fused: the weight is updated when the next gradient comes.
    """
    half, single = recipe.optimizer.fused_backward
    if half:
        return f"fused-{half}-{single}"
    return "add" if (recipe.accumulation > 1 or main_gradients(recipe)) and keeps_whole(recipe) else "keep"


def main_gradients(recipe: Recipe) -> bool:
    """Megatron's gradient buffer is there all along: each gradient is added to it and freed."""
    return recipe.trainer.megatron and bool(recipe.precision.master)


def kept_gradients(recipe: Recipe) -> KeptGradients:
    """Which gradients stay whole after their layer's backward, and how large the shard is that remains of the others.

    Shards are added to those of the micro-steps before, where there are some: then nothing new remains.
    """
    stage, whole, shard = recipe.zero_stage, recipe.compute_itemsize, recipe.gradient_itemsize
    fsdp2 = recipe.sharding == "fsdp2" and recipe.ranks > 1
    if recipe.optimizer.fused_backward[0]:
        return KeptGradients(layers=False, root=False, shards=0, whole_itemsize=1, shard_itemsize=1)
    if stage < 2 and not fsdp2:
        return KeptGradients(
            layers=True,
            root=True,
            shards=1,
            whole_itemsize=1,
            shard_itemsize=1,
            into_step=stage != 1 or not recipe.precision.master,
        )
    there = stage == 3 or recipe.accumulation > 1
    return KeptGradients(
        layers=False, root=fsdp2, shards=0 if there else recipe.ranks, whole_itemsize=whole, shard_itemsize=shard
    )


def enter_sharding(book: Ledger, recipe: Recipe, weights: list[Weight], unit: Units, name: str) -> None:
    """Buffers of the chosen strategy; ``name`` is the pass whose backward reduces gradients."""
    if recipe.zero_stage >= 0:
        enter_zero(book, recipe, unit, name)
    elif recipe.ranks > 1 and recipe.sharding == "ddp":
        _enter_ddp(book, recipe, weights)
    elif recipe.ranks > 1 and recipe.sharding == "fsdp2":
        _enter_fsdp2(book, recipe, unit, name)


def _enter_ddp(book: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """Buckets are a second copy of every gradient, unless gradients are views of them."""
    if recipe.gradient_as_bucket_view or main_gradients(recipe):
        return
    trained = [weight for weight in weights if weight.trained]
    size = sum(weight.elements * weight.copies * gradient_itemsize(recipe, weight) for weight in trained)
    book.add(
        "DDP gradient buckets",
        "buffers",
        size,
        template="trained elements × gradient bytes",
        numbers=(count(trained), recipe.gradient_itemsize),
        why="gradient_as_bucket_view=False keeps buckets beside the gradients",
        source=DDP,
    )


def _enter_fsdp2(book: Ledger, recipe: Recipe, unit: Units, name: str) -> None:
    """Gathered weights: the root from its first use to the end of backward, one or two layers at a time, or all of
    them.
    """
    e, reduce = recipe.compute_itemsize, recipe.reduce_itemsize
    last, end = f"{name}.embedding-backward", f"{name}.reduce"
    layers = unit.total - unit.root
    book.add(
        "gathered root (embedding, norm, head)",
        "gathered_parameters",
        unit.root * e,
        "",
        last,
        template="root elements × bytes",
        numbers=(unit.root, e),
        why="FSDP2 does not reshard the root after forward",
        source=FSDP2,
    )
    keeps = not recipe.reshard_after_forward
    if keeps:
        top = (
            f"{name}.attention-backward"
            if f"{name}.attention-backward" in book.index
            else f"{name}.first-layer-backward"
        )
        book.add(
            "gathered layers",
            "gathered_parameters",
            (layers - unit.layer) * e,
            "",
            top,
            template="elements of all layers × bytes",
            numbers=(layers - unit.layer, e),
            why="reshard_after_forward=False keeps them from forward to backward",
            source=FSDP2,
        )
    book.add(
        "gathered layer",
        "gathered_parameters",
        unit.layer * e,
        "",
        last if not keeps else f"{name}.first-layer-backward",
        template="layer elements × bytes",
        numbers=(unit.layer, e),
        why="the layer in use, or the one gathered ahead of the backward",
        source=FSDP2,
    )
    for instant in _layer_instants(book, name, forward_only=keeps):
        book.add(
            "layer gathered ahead",
            "gathered_parameters",
            unit.layer * e,
            instant,
            instant,
            template="layer elements × bytes",
            numbers=(unit.layer, e),
            why="an all-gather's output is held until the next layer's has arrived",
            source=FSDP2,
        )
    for instant in _backward_instants(book, name):
        book.add(
            "reduce-scatter input of the layer before",
            "buffers",
            unit.trained_layer * reduce,
            instant,
            instant,
            template="layer elements × reduce bytes",
            numbers=(unit.trained_layer, reduce),
            why="kept until the next layer's reduction",
            source=FSDP2,
        )
    book.add(
        "reduce-scatter input of the root",
        "buffers",
        unit.trained_root * reduce,
        end,
        end,
        template="root elements × reduce bytes",
        numbers=(unit.trained_root, reduce),
        why="gradients are cast to reduce_dtype for the reduction",
        source=FSDP2,
    )


def _layer_instants(book: Ledger, name: str, forward_only: bool) -> list[str]:
    """Instants at which a second gathered layer is there: inside layers, and in forward up to the loss when layers
    stay gathered.
    """
    own = [instant for instant in book.schedule if instant.startswith(name + ".")]
    if forward_only:
        return [instant for instant in own if not instant.endswith("backward") and not instant.endswith("reduce")]
    return [instant for instant in own if "layer" in instant or "attention" in instant]


def _backward_instants(book: Ledger, name: str) -> list[str]:
    """Instants of layers after whose predecessor's gradients were sent off."""
    inside = ("first-layer-backward", "layer-")
    own = [instant for instant in book.schedule if instant.startswith(name + ".") and instant.endswith("backward")]
    return [instant for instant in own if instant.removeprefix(name + ".").startswith(inside)]
