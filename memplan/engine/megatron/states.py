"""Parameters, gradients and optimizer states of one rank (megatron-core 0.14 distributed/param_and_grad_buffer.py,
optimizer/distrib_optimizer.py, optimizer/optimizer.py)."""

from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

from memplan.engine.allocator.settings import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from memplan.engine.ledger import Ledger
from memplan.engine.megatron.shape import SOURCE as FP8
from memplan.engine.megatron.shape import fp8_of
from memplan.engine.megatron.weights import Share
from memplan.spec.megatron import Megatron
from memplan.spec.parallel import Parallel
from memplan.spec.recipe import Recipe
from memplan.units import DTYPE_BYTES as DTYPES
from memplan.units import MiB, ceil_div, round_up

BUFFER = "megatron-core 0.14 distributed/param_and_grad_buffer.py: _ParamAndGradBuffer"
DISTRIBUTED = "megatron-core 0.14 optimizer/distrib_optimizer.py"
OFFLOADED = "megatron-core 0.14 optimizer/cpu_offloading/hybrid_optimizer.py"
FP32 = 4
WHOLE = "megatron-core 0.14 optimizer/optimizer.py: Float16OptimizerWithFloat16Params"
DTYPE_BYTES = {**DTYPES, "fp8": 1}
REMAINDER = 2
"""Bytes of the lower half of an fp32 main weight beside its bf16 one."""


class Buffer(NamedTuple):
    """Parameters that are reduced over the same ranks."""

    label: str
    elements: int
    """As the buffer holds them, paddings included."""
    shards: int
    """Ranks that its optimizer states are divided over; 1 without the distributed optimizer."""

    experts: bool = False

    def holds(self, share: Share, degrees: Parallel) -> bool:
        """Whether a parameter is in it: experts that are divided over ranks have one of their own, frozen ones none."""
        return share.trained and (share.expert and degrees.expert > 1) is self.experts

    @property
    def shard(self) -> int:
        """Elements whose states this rank holds."""
        return ceil_div(self.elements, self.shards)


def buffers(recipe: Recipe, shares: Sequence[Share]) -> list[Buffer]:
    """The dense parameters' buffer, and that of experts that are divided over ranks, which is reduced over others
    (``allreduce`` of a parameter in megatron-core's linears)."""
    degrees, found = recipe.parallel, []
    divided = recipe.sharding.name == "distributed-optimizer"
    for label, expert, ranks in (("", False, degrees.shards), (" of experts", True, degrees.expert_shards)):
        buffer = Buffer(label, 0, ranks if divided else 1, expert)
        mine = [share for share in shares if buffer.holds(share, degrees)]
        if mine:
            whole = padded_elements(mine, ranks, recipe.megatron) if divided else sum(share.elements for share in mine)
            found.append(buffer._replace(elements=whole))
    return found


def padded_elements(shares: Sequence[Share], ranks: int, settings: Megatron) -> int:
    """Elements of a buffer of the distributed optimizer: each parameter begins at a multiple of 64, each bucket ends
    at a multiple of lcm(ranks, 128). One bucket, or buckets of max(40 M, 1 M × ranks) where communication overlaps;
    how parameters fall into them is taken as even."""
    step = lcm(ranks, 128, 2**16) if settings.pad_buckets_for_high_nccl_busbw else lcm(ranks, 128)
    elements = sum(share.padded for share in shares)
    count = buckets_of(elements, ranks, settings)
    return ceil_div(ceil_div(elements, count), step) * step * count


def pieces_of(shares: Sequence[Share], ranks: int, settings: Megatron) -> list[int]:
    """Elements of each parameter that the first rank steps on: its part of every bucket of the buffer, in which
    parameters lie from the last to the first, as ``shares`` come."""
    found, whole = [], padded_elements(shares, ranks, settings)
    buckets = buckets_of(sum(share.padded for share in shares), ranks, settings)
    bucket, at = whole // buckets, 0
    for share in shares:
        end = at + share.padded
        for number in range(at // bucket, -(-end // bucket)):
            first = number * bucket
            size = min(end, first + bucket // ranks) - max(at, first)
            if size > 0:
                found.append(min(size, share.elements))
        at = end
    return found


def buckets_of(elements: int, ranks: int, settings: Megatron) -> int:
    """Buckets of a buffer of so many elements."""
    if not settings.overlap_grad_reduce:
        return 1
    return max(1, elements // (settings.ddp_bucket_size or max(40_000_000, 1_000_000 * ranks)))


def enter_states(ledger: Ledger, recipe: Recipe, shares: Sequence[Share], last_instant: str) -> None:
    """Rows of weights, gradients, main weights and moments; host rows of what is offloaded."""
    _enter_frozen(ledger, recipe, shares)
    for buffer in buffers(recipe, shares):
        _enter_weights(ledger, recipe, buffer, [share for share in shares if buffer.holds(share, recipe.parallel)])
        _enter_optimizer(ledger, recipe, buffer, last_instant)


def left_of_segments(shares: Sequence[Share], itemsize: int) -> int:
    """What frozen weights, which no buffer takes, leave of the segments that they are cut from: 2 MiB up to 1 MiB each,
    20 MiB up to 10, else rounded up to 2 MiB (c10/cuda/CUDACachingAllocator.cpp: get_allocation_size)."""
    left = 0
    for share in shares:
        size = share.rows * share.columns * itemsize
        segment = LARGE_SEGMENT_BYTES if MiB < size < 10 * MiB else round_up(size, SMALL_SEGMENT_BYTES)
        if size and not share.trained:
            left += int(share.copies * (segment / (segment // size) - size))
    return left


def _enter_frozen(ledger: Ledger, recipe: Recipe, shares: Sequence[Share]) -> None:
    """The base under LoRA, which no buffer takes."""
    frozen = [share for share in shares if not share.trained]
    elements, e = sum(share.elements for share in frozen), recipe.storage.precision.weights
    if recipe.adapter is not None:
        elements -= _enter_narrow(ledger, recipe, frozen, " of the base")
    ledger.add("frozen weights", "parameters", elements * e).told(elements, e)


def _enter_narrow(ledger: Ledger, recipe: Recipe, shares: Sequence[Share], label: str) -> int:
    """What products in FP8 or FP4 read of weights; how many of these have no other form. Adapters have: they come to
    layers that are made (mcore-bridge tuners/lora.py), or run outside of FP8."""
    fp8, instead = fp8_of(recipe.megatron, recipe.hardware), recipe.megatron.narrow_weights
    narrow = sum(share.elements for share in shares if share.in_fp8) if fp8 else 0
    instead = instead and (recipe.adapter is None or not shares[0].trained)
    if fp8 and narrow:
        ledger.add(f"weights in {fp8.name}{label}", "buffers", int(narrow * fp8.weight)).formula(
            "elements of products × bytes", narrow, fp8.weight
        ).since(
            "in place of half-precision ones" if instead else "copies, made in a step's first micro-batch and kept", FP8
        )
    return narrow if instead else 0


def _enter_weights(ledger: Ledger, recipe: Recipe, buffer: Buffer, shares: Sequence[Share]) -> None:
    e, g, source = recipe.storage.precision.weights, gradient_itemsize(recipe), BUFFER
    wide = buffer.elements - _enter_narrow(ledger, recipe, shares, buffer.label)
    ledger.add(f"weights{buffer.label}", "parameters", wide * e).told(wide, e, source=source)
    ledger.add(f"gradient buffer{buffer.label}", "gradients", buffer.elements * g).told(
        buffer.elements, g, source=source
    )


def gradient_itemsize(recipe: Recipe) -> int:
    """Of the gradient buffer: fp32 unless the job, or ``main_grads_dtype``, says otherwise."""
    settings = recipe.megatron
    if settings.use_precision_aware_optimizer and settings.main_grads_dtype != "fp32":
        return DTYPE_BYTES[settings.main_grads_dtype]
    return recipe.storage.gradient_itemsize


def state_itemsizes(recipe: Recipe) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Bytes per element of the main weight (0: none beside the weights), and of each moment by name."""
    settings, optimizer = recipe.megatron, recipe.optimizer.row
    main: float = recipe.storage.precision.master
    names = ("first moment", "second moment") if optimizer.per_element == 2 else ("momentum",)
    moments = tuple((name, float(recipe.storage.precision.states)) for name in names[: optimizer.per_element])
    if settings.use_precision_aware_optimizer:
        halves = settings.store_param_remainders and main and not settings.narrow_weights
        main = REMAINDER if halves else DTYPE_BYTES[settings.main_params_dtype]
        sizes = (DTYPE_BYTES[settings.exp_avg_dtype], DTYPE_BYTES[settings.exp_avg_sq_dtype])
        moments = tuple((name, float(size)) for (name, _), size in zip(moments, sizes, strict=False))
    return main, moments


def _enter_optimizer(ledger: Ledger, recipe: Recipe, buffer: Buffer, last_instant: str) -> None:
    settings, main_and_moments = recipe.megatron, state_itemsizes(recipe)
    main, moments = main_and_moments
    away = settings.optimizer_offload_fraction if settings.optimizer_cpu_offload else 0.0
    here = 1 - away
    ranks = f" / {buffer.shards} ranks" if buffer.shards > 1 else ""
    source = DISTRIBUTED if recipe.sharding.name == "distributed-optimizer" else WHOLE
    rows = [("main weights", "master_weights", main), *((name, "optimizer_states", size) for name, size in moments)]
    for name, category, itemsize in rows:
        for place, part, size in (("gpu", here, itemsize), ("host", away, FP32)):
            numbers: tuple[object, ...] = (buffer.shard, size)
            ledger.add(
                f"{name}{buffer.label}", category, int(buffer.shard * size * part) if itemsize else 0, place=place
            ).formula(
                f"elements{ranks} × bytes" + (" × share" if away else ""),
                *((*numbers, round(part, 4)) if away else numbers),
            ).since(
                "fp32 of what this rank steps on" if size == FP32 else "of what this rank steps on",
                source if place == "gpu" else OFFLOADED,
            )
    if away:
        ledger.add(
            f"gradients on the host{buffer.label}", "gradients", int(buffer.shard * 4 * away), place="host"
        ).told(buffer.shard, 4, round(away, 4))
    narrow = [dtype for dtype in (settings.exp_avg_dtype, settings.exp_avg_sq_dtype) if dtype != "fp32"]
    if settings.use_precision_aware_optimizer and narrow:
        copies = buffer.shard * 4 * len(narrow)
        read = copies if narrow == ["bf16", "bf16"] else 0
        ledger.add(
            f"moments in fp32{buffer.label}", "optimizer_temporaries", copies - read, at=last_instant, high=copies
        ).formula(f"elements{ranks} × 4 × moments", buffer.shard, 4, len(narrow)).since(
            "the step copies narrow moments to fp32; from TransformerEngine 2.13 on it reads two of bf16 as they are",
            "TransformerEngine 2.11 to 2.15 pytorch/optimizers/fused_adam.py: get_unscaled_state, fuse_unscale",
        )
    if gradient_itemsize(recipe) < 4 and not settings.use_precision_aware_optimizer:
        ledger.add(
            f"gradients in fp32{buffer.label}", "optimizer_temporaries", buffer.shard * 4, at=last_instant
        ).formula(f"elements{ranks} × 4", buffer.shard, 4).since(
            "the step copies the gradients of its shard to fp32", source
        )


def dummy_shapes(recipe: Recipe, shares: Sequence[Share]) -> list[int]:
    """Elements of each of the empty gradients that TransformerEngine hands to autograd, one for each shape of a weight
    whose true gradient went into the buffer; kept in a dictionary for good. The head's too, be it the embedding
    (megatron-core 0.14 tensor_parallel/layers.py: LinearWithGradAccumulationAndAsyncCommunication)."""
    if not recipe.megatron.gradient_accumulation_fusion:
        return []
    looks_up = () if recipe.model.head_is_tied and recipe.parallel.last else ("word embedding",)
    products = [share for share in shares if share.product and share.trained and share.name not in looks_up]
    return [rows * columns for rows, columns in dict.fromkeys((share.rows, share.columns) for share in products)]
