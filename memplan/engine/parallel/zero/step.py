"""What DeepSpeed's step holds beside states and the gradients that it begins with.

deepspeed 0.19: ``step`` of runtime/zero/stage_1_and_2.py, stage3.py, runtime/bf16_optimizer.py,
runtime/fp16/fused_optimizer.py, unfused_optimizer.py. Norms are taken in fp64 of one tensor at a time."""

from memplan.engine.ledger import Ledger
from memplan.engine.model_states import loop_bytes, step_temporaries
from memplan.engine.optimizer.states import flat
from memplan.engine.parallel.zero.flat_groups import (
    Group,
    groups_of,
    largest,
    sub_groups,
)
from memplan.engine.parallel.zero.offload import moved
from memplan.engine.parallel.zero.reductions import Held
from memplan.engine.parallel.zero.states import adds_in_fp32, persistent_bytes, weight_itemsize
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

FP32, FP64 = 4, 8


def enter_zero_step(
    ledger: Ledger, recipe: Recipe, weights: list[Weight], step: str, played: Held | None = None
) -> None:
    """The row of one step. ``played``: what stages 1 and 2 begin it with."""
    groups = groups_of(recipe, weights)
    moments = _partitioned(recipe, groups, played) if played else None
    size, what = step_bytes(recipe, groups, persistent_bytes(recipe, weights), moments) if groups else (0, "")
    ledger.add("temporaries of DeepSpeed's step", "optimizer_temporaries", size, at=step).formula(what, size).since(
        "the largest moment of the step: norms, fp32 gradients, or the optimizer's own temporaries",
        "deepspeed 0.19 runtime/zero/stage_1_and_2.py, stage3.py: step; runtime/fp16, runtime/bf16_optimizer.py",
    )


def step_bytes(
    recipe: Recipe, groups: list[Group], small: int, moments: dict[str, int] | None = None
) -> tuple[int, str]:
    """(bytes over what stands at the step's begin, the moment that decides); ``small``: what is gathered at its end."""
    moments = moments or STEPS[recipe.sharding.deepspeed.wrapper](recipe, groups)
    moments["persistent parameters × bytes, gathered again"] = small
    what = max(moments, key=lambda moment: moments[moment])
    return max(moments[what], 0), what


def own_bytes(recipe: Recipe, elements: int) -> int:
    """Temporaries of the optimizer on a flat tensor of so many fp32 elements."""
    if recipe.optimizer.implementation == "fused":
        return 0
    if recipe.optimizer.implementation == "foreach":
        return recipe.optimizer.row.foreach_copies * FP32 * elements
    return loop_bytes(recipe, [(flat(elements, FP32), 1)])


def _partitioned(recipe: Recipe, groups: list[Group], played: Held) -> dict[str, int]:
    """Stages 1 and 2, group by group: the rank's gradients are flattened, cast to fp32, stepped on.

    All half-precision gradients are pieces of one buffer, which ends when the last group has been cast."""
    if recipe.sharding.deepspeed.optimizer:
        return {"": 0}
    norm = "largest gradient × 8 (its norm), on the rank where that and its gradients are most"
    held = sum(played.ends.values())
    moments = {norm: played.norms - held}
    for i, group in enumerate(groups):
        e, part = weight_itemsize(recipe, group), group.partition
        if adds_in_fp32(recipe):
            moments[f"group {i + 1}: the optimizer's"] = own_bytes(recipe, part) - FP32 * sum(
                before.partition for before in groups[:i]
            )
            continue
        cast = part * FP32 if e != FP32 else 0
        freed = held if i == len(groups) - 1 else 0
        moments[f"group {i + 1}: partition × ({e} flat + 4 fp32)"] = part * e + cast
        moments[f"group {i + 1}: partition × (4 + the optimizer's)"] = part * FP32 + own_bytes(recipe, part) - freed
    return moments


def _sub_grouped(recipe: Recipe, groups: list[Group]) -> dict[str, int]:
    """Stage 3, sub-group by sub-group; those that are offloaded leave nothing on the card."""
    zero, e = recipe.sharding.deepspeed, recipe.sharding.deepspeed.accumulation
    biggest = ceil_div(max(largest(group) for group in groups), recipe.sharding.ranks)
    moments = {"": 0} if zero.optimizer else {"largest partition × 8 (its norm)": biggest * FP64}
    for group in groups:
        parts = sub_groups(group, recipe.sharding.ranks, zero.sub_group_size)
        for part, away in zip(parts, moved(recipe, groups, group, parts), strict=True):
            if away:
                continue
            if not zero.optimizer:
                cast = part * FP32 if e != FP32 else 0
                moments[f"sub-group × ({e} flat + 4 fp32), {part}"] = part * e + cast
            gradient = 0 if zero.optimizer else part * FP32
            moments[f"sub-group × (4 + the optimizer's), {part}"] = gradient + own_bytes(recipe, part)
    return moments


def _whole_buffer(recipe: Recipe, groups: list[Group]) -> dict[str, int]:
    """BF16_Optimizer steps on a view of its fp32 buffer, all groups in one step."""
    sizes = [own_bytes(recipe, group.partition) for group in groups]
    return {"the optimizer's": sum(sizes) if recipe.optimizer.implementation == "foreach" else max(sizes)}


def _flattened(recipe: Recipe, groups: list[Group]) -> dict[str, int]:
    """FP16_Optimizer: each group's gradients in fp32, one by one and then flat, beside the groups before."""
    moments, before, freed = {}, 0, 0
    for i, group in enumerate(groups):
        copies = 2 if sum(weight.copies for weight in group.weights) > 1 else 1
        moments[f"group {i + 1}: elements × 4 × {copies}"] = before + copies * FP32 * group.elements - freed
        before += FP32 * group.elements
        freed += weight_itemsize(recipe, group) * group.elements
    own = [own_bytes(recipe, group.elements) for group in groups]
    extra = sum(own) if recipe.optimizer.implementation == "foreach" else max(own)
    moments["elements × (4 + the optimizer's)"] = before + extra - freed
    return moments


def _each_by_itself(recipe: Recipe, groups: list[Group]) -> dict[str, int]:
    """FP16_UnfusedOptimizer: an fp32 gradient for each parameter, beside the half-precision one."""
    weights = [weight for group in groups for weight in group.weights]
    elements = sum(group.elements for group in groups)
    return {"elements × 4 + the optimizer's": FP32 * elements + step_temporaries(recipe, weights, FP32, 1)}


STEPS = {"zero3": _sub_grouped, "bf16": _whole_buffer, "fused": _flattened, "unfused": _each_by_itself}
"""What holds most in a step, by DeepSpeed's wrapper."""
