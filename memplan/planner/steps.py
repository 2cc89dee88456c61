"""What of a recipe hangs on its micro-batch, and on how many of them a step has."""

from memplan.resolve.megatron_stages import check_interleaved
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


def depends_on_batch(recipe: Recipe) -> bool:
    """Whether anything beside batch and accumulation follows from them: groups of completions, refusals but that of
    Megatron's interleaved schedule."""
    return recipe.method.online or "accumulation" in recipe.optimizer.row.refusals


def with_same_step(first: Recipe, size: int, steps: int) -> Recipe | None:
    """An online method's recipe with another batch of as many completions a step: so many an engine generates, and
    whether groups divide them is the same. A row that Megatron scores is of the batch (``packing.scoring_row``, without
    a budget). None where more hangs on it, or another step is meant. Raises InvalidJob as ``check_interleaved``."""
    batch, degrees, critic = first.batch, first.parallel, first.others.critic
    other = size * steps != batch.size * batch.accumulation or (critic is not None and critic.own is not None)
    if other or "accumulation" in first.optimizer.row.refusals:
        return None
    scoring = batch.scoring
    if scoring and first.in_megatron:
        parts = degrees.tensor * degrees.context * (2 if degrees.context > 1 else 1)
        was, scoring = (ceil_div(each * batch.sequence_length, parts) * parts for each in (batch.size, size))
        if was != batch.scoring:
            return None
    check_interleaved(degrees, steps)
    return first._replace(batch=batch._replace(size=size, accumulation=steps, scoring=scoring))


def accumulation_class(recipe: Recipe, accumulation: int = 0) -> int:
    """What of the accumulation memory depends on: whether there is any; in a pipeline, how many micro-batches, of which
    no schedule holds more than its stages, Megatron's interleaved one than twice as many."""
    stages = recipe.parallel.pipeline
    return min(
        accumulation or recipe.batch.accumulation, 2 * stages if recipe.in_megatron and stages > 1 else max(2, stages)
    )
