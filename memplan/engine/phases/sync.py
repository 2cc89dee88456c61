"""Sync: the trainer's side of sending weights to the engine that generates.

trl 1.16 generation/vllm_generation.py (sync_weights), openrlhf 0.11 trainer/ray (broadcast), verl 0.9
utils/fsdp_utils.py, workers/rollout/vllm_rollout/bucketed_weight_transfer.py. What is gathered and sent at once stands
in the recipe (``tables/generation``); the engine's side, awake or asleep, is the report's (``rollout``)."""

from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.phases.parts import units, whole_bytes
from memplan.engine.tensors import Weight
from memplan.spec.generation import Syncing
from memplan.spec.recipe import Recipe

TRANSFER = "sync.transfer"
INSTANTS = (TRANSFER,)
"""The largest of what is gathered, and the buckets that it goes into."""
SOURCES = {
    "model": "trl 1.16 generation/vllm_generation.py: gather_if_zero3",
    "unit": "torch 2.13 FSDP.summon_full_params",
    "tensor": "deepspeed GatheredParameters; torch full_tensor",
}


def enter(ledger: Ledger, parts: Any) -> None:
    """What is gathered at once, and the buckets."""
    recipe: Recipe = parts.recipe
    of = recipe.generator.syncing if recipe.generator is not None else Syncing()
    size = _gathered(recipe, parts.weights, of)
    ledger.add(
        f"the {'whole' if of.gather == 'model' else 'largest'} {of.gather}, gathered",
        "gathered_parameters",
        size,
        at=TRANSFER,
    ).told(size, of="weights for the engine", source=SOURCES.get(of.gather, ""))
    ledger.add(
        "the base, back from the host",
        "gathered_parameters",
        whole_bytes(recipe, parts.weights) * of.again,
        at=TRANSFER,
    ).told()
    ledger.add("buckets that are sent", "buffers", of.bucket_bytes * of.buckets, at=TRANSFER).told(
        of.bucket_bytes, of.buckets
    )


def _gathered(recipe: Recipe, weights: list[Weight], of: Syncing) -> int:
    if of.gather == "model":
        return whole_bytes(recipe, weights)
    if of.gather == "unit":
        return max(units(recipe, weights, None if recipe.sharding.name == "fsdp" else True).values())
    if of.gather != "tensor":
        return 0
    return max(weight.elements // weight.stacked for weight in weights) * of.itemsize
