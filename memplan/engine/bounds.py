"""Bounds under what a recipe needs, which searches ask for before its whole price."""

from __future__ import annotations

from memplan.engine.allocator.events import slack_of
from memplan.engine.allocator.reserved import Band, reserved_band
from memplan.engine.critic_engine import has_critic_engine
from memplan.engine.ranks import rank_classes
from memplan.engine.step_and_evaluation import evaluation_of
from memplan.engine.totals import states_alone, without_sharding
from memplan.spec.recipe import Recipe


def floor(recipe: Recipe) -> int:
    """Bytes that the fullest class of ranks holds of model states alone: less than any of its meters says."""
    return max(states_alone(of.recipe) for of in rank_classes(recipe))


def at_least(recipe: Recipe) -> int:
    """Bytes that the high device figure is not below: every kind of row but what a sharding gathers and reduces. Rows
    only add up, and so do the shares that segments lose of what comes and goes; what segments of other streams keep is
    left out. 0 where nothing is proven: in Megatron's layers, beside an evaluation.
    """
    if recipe.in_megatron or evaluation_of(recipe) or has_critic_engine(recipe):
        return 0
    return max(_partly(of.recipe) for of in rank_classes(recipe))


def _partly(recipe: Recipe) -> int:
    """The high device figure of some sections."""
    ledger = without_sharding(recipe)
    allocated = Band(*map(max, ledger.bounds()))
    hardware, layers = recipe.hardware, recipe.checkpointing.layers
    lasting = ledger.lasting()
    slack = slack_of(recipe, lasting)
    reserved = reserved_band(allocated, lasting, hardware.expandable_segments, layers, slack)
    return reserved.high + max(ledger.totals("device", bound="high_bytes"))
