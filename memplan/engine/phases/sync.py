"""Sync: the trainer's side of sending weights to the engine that generates. (The engine itself is not counted.)

trl 1.16 generation/vllm_generation.py (sync_weights), openrlhf 0.11 trainer/ray (broadcast), verl 0.9
utils/fsdp_utils.py, workers/rollout/vllm_rollout/bucketed_weight_transfer.py.
"""

from __future__ import annotations

from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.phases.parts import largest_bytes, units, whole_bytes
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe
from memplan.units import MiB

GATHER = "sync.gather"
INSTANTS = (GATHER,)
"""The largest of what is gathered."""
BUCKET = 2048 * MiB
"""verl 0.9: update_weights_bucket_megabytes."""


def enter(ledger: Ledger, parts: Any) -> None:
    """What is gathered at once, and verl's bucket."""
    recipe: Recipe = parts.recipe
    what, size, source = _gathered(recipe, parts.weights)
    ledger.add(
        f"{what}, gathered",
        "gathered_parameters",
        size,
        GATHER,
        GATHER,
        template="elements × bytes",
        numbers=(size,),
        why="whole on every card while it is sent to the engine",
        source=source,
    )
    if recipe.trainer.name == "verl":
        ledger.add(
            "the bucket that is sent",
            "buffers",
            BUCKET,
            GATHER,
            GATHER,
            template="bytes",
            numbers=(BUCKET,),
            why="tensors are copied into a bucket of 2,048 MiB",
            source="verl 0.9 workers/rollout: update_weights_bucket_megabytes",
        )


def _gathered(recipe: Recipe, weights: list[Weight]) -> tuple[str, int, str]:
    """(what, bytes, source): under ZeRO-3 a tensor, or with adapters all; under FSDP1 a unit; under FSDP2 a tensor."""
    if not recipe.several:
        return "nothing", 0, ""
    if recipe.zero_stage == 3 and recipe.adapter is not None and recipe.trainer.name == "trl":
        return (
            "the whole model",
            whole_bytes(recipe, weights),
            "trl 1.16 generation/vllm_generation.py: gather_if_zero3",
        )
    if recipe.sharding.name == "fsdp":
        return "the largest unit", max(units(recipe, weights).values()), "torch 2.13 FSDP.summon_full_params"
    if recipe.zero_stage == 3 or recipe.sharding.name == "fsdp2":
        return "the largest tensor", largest_bytes(recipe, weights), "deepspeed GatheredParameters; torch full_tensor"
    return "nothing", 0, ""
