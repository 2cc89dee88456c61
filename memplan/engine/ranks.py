"""Classes of ranks: GPUs of one job that hold the same, each class described by a recipe of its own."""

from typing import NamedTuple

from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


class RankClass(NamedTuple):
    """Some GPUs of the job that hold the same."""

    name: str
    gpus: int
    recipe: Recipe


def rank_classes(recipe: Recipe) -> tuple[RankClass, ...]:
    """One class for each pipeline stage; one alone where there is no pipeline.

    Within a class shards are padded to the largest, so that the class stands for its fullest rank.
    """
    degrees = recipe.parallel
    if recipe.method.generates and recipe.generator is not None:
        gpus = recipe.generator.gpus
        return (RankClass("one GPU" if gpus == 1 else f"each of {gpus} GPUs", gpus, recipe),)
    if degrees.pipeline == 1:
        name = "one GPU" if degrees.world == 1 else f"each of {degrees.world} GPUs"
        return (RankClass(name, degrees.world, _of_rank(recipe)),)
    gpus = degrees.world // degrees.pipeline
    return tuple(
        RankClass(
            f"each GPU of pipeline stage {stage + 1} of {degrees.pipeline}",
            gpus,
            _of_rank(recipe._replace(parallel=degrees._replace(stage=stage))),
        )
        for stage in range(degrees.pipeline)
    )


def _of_rank(recipe: Recipe) -> Recipe:
    """What a rank holds of model and sequence under torch's own parallelism; Megatron's engine divides by itself."""
    degrees = recipe.parallel
    if degrees.model == 1 or recipe.in_megatron:
        return recipe
    from memplan.engine.parallel.tensor import part_of

    batch = recipe.batch._replace(
        sequence_length=ceil_div(recipe.batch.sequence_length, degrees.context),
        completion_length=ceil_div(recipe.batch.completion_length, degrees.context),
        scoring=ceil_div(recipe.batch.scoring, degrees.context),
    )
    return recipe._replace(model=part_of(recipe.model, degrees), batch=batch)
