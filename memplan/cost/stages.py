"""How a pipeline's stages share the layers: the fullest one is the step's pace, unless the last, with its head, is."""

from functools import lru_cache
from typing import NamedTuple

from memplan.engine.megatron.stages import layers_of_chunk
from memplan.engine.parallel.tensor import stage_layers
from memplan.spec.megatron import Megatron
from memplan.spec.parallel import Parallel
from memplan.spec.recipe import Recipe


class Shares(NamedTuple):
    """Of the model's layers, as fractions."""

    fullest: float
    last: float
    """Of the stage with the head."""


def shares(recipe: Recipe) -> Shares:
    """What the stages of a recipe have, layers that predict tokens beyond the next among them."""
    degrees = recipe.parallel
    more = predictors(recipe) / recipe.model.num_layers
    if degrees.pipeline == 1:
        return Shares(1.0 + more, 1.0 + more)
    settings = recipe.megatron if recipe.trainer.megatron else None
    found = _shares(recipe.model.num_layers, degrees._replace(world=degrees.model), settings)
    return found._replace(last=found.last + more)


def predictors(recipe: Recipe) -> int:
    """Megatron's MTP layers: each has a pass through the head too."""
    return recipe.megatron.mtp_num_layers if recipe.trainer.megatron else 0


@lru_cache(maxsize=1024)
def _shares(layers: int, degrees: Parallel, settings: Megatron | None) -> Shares:
    """Megatron's settings; none for torch's own pipeline."""
    if settings is None:
        counts = stage_layers(layers, degrees.pipeline)
    else:
        counts = [
            sum(layers_of_chunk(layers, degrees, settings, stage, chunk) for chunk in range(degrees.virtual))
            for stage in range(degrees.pipeline)
        ]
    return Shares(max(counts) / layers, counts[-1] / layers)


def layers_of_chunks(recipe: Recipe) -> list[int]:
    """Layers of every chunk of every stage of a recipe in Megatron."""
    degrees, of = recipe.parallel, recipe.megatron
    return [
        layers_of_chunk(recipe.model.num_layers, degrees, of, stage, chunk)
        for stage in range(degrees.pipeline)
        for chunk in range(degrees.virtual)
    ]
