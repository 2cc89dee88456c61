"""Experts that ranks hold different ones of, under FSDP2 (torchtitan's expert parallelism): who divides what."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.engine.tensors import Weight
    from memplan.spec.recipe import Recipe


def of_rank(weight: Weight, recipe: Recipe) -> tuple[Weight, int]:
    """What FSDP divides, and over how many ranks: of experts that are spread, those of the rank's own, over the ranks
    that have the same."""
    spread = recipe.parallel.expert if weight.name.startswith("experts.") and recipe.sharding.name == "fsdp2" else 1
    if spread == 1:
        return weight, recipe.sharding.ranks
    own = weight._replace(rows=weight.rows // spread, first=weight.first // spread)
    return own, recipe.sharding.ranks // spread
