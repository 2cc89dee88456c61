"""Norm and head under FSDP2: whether they are a unit, and who gathers it."""

from __future__ import annotations

from memplan.engine.losses.scored import CALLING, FUSED_PROGRAMS
from memplan.engine.parallel.fsdp2.units import gathers
from memplan.spec.recipe import Recipe


def has_tail(recipe: Recipe) -> bool:
    """Whether head and final norm are a unit that is reduced when it has run back."""
    if wraps_copies(recipe):
        return recipe.adapter is not None and recipe.model.head.name in recipe.adapter.saved
    return gathers(recipe) and recipe.sharding.fsdp.own_ends and not recipe.model.head_is_tied


def wraps_copies(recipe: Recipe) -> bool:
    """FSDP1 around what PEFT trains, linear by linear."""
    return gathers(recipe) and recipe.sharding.name == "fsdp" and recipe.sharding.fsdp.wraps_adapters


def reads_head(recipe: Recipe) -> bool:
    """Whether the head's weight is read within the model's forward and its module never called: a tail of norm and head
    has then no hook of its own in backward, and the root begins it (trl 1.16, trainer/utils.py: _fused_forward)."""
    return recipe.loss.head in FUSED_PROGRAMS and recipe.loss.head not in CALLING


def head_gathered_whole(recipe: Recipe) -> bool:
    """Whether the head alone is accelerate's tail, and is never called: no hook gathers it, and the loss that reads it
    takes its ``full_tensor()``, in the dtype it is stored in (trl 1.16, trainer/utils.py: _fused_forward). PEFT hides
    the final norm from accelerate."""
    adapter = recipe.adapter
    untied = has_tail(recipe) and recipe.sharding.name == "fsdp2"
    return untied and reads_head(recipe) and adapter is not None and recipe.model.head.name not in adapter.saved
