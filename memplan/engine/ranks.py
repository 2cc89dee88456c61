"""Classes of ranks: GPUs of one job that hold the same, each class described by a recipe of its own; and the whole
ledger of one of them: a critic's training beside the policy's, the step, and the evaluation after it."""

from collections.abc import Hashable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from memplan.engine.at_hand import at_hand, at_hand_totals
from memplan.engine.build import build_ledger
from memplan.engine.critic_engine import critic_and_policy, critic_and_policy_totals, has_critic_engine
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.tensor import part_of
from memplan.engine.step_and_evaluation import Joined, JoinedTotals, evaluation_of
from memplan.engine.sums import Totalled
from memplan.engine.tensors import count, model_weights
from memplan.engine.totals import totalled
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


class RankClass(NamedTuple):
    """Some GPUs of the job that hold the same."""

    name: str
    gpus: int
    recipe: Recipe


def rank_classes(recipe: Recipe) -> tuple[RankClass, ...]:
    """One class for each pipeline stage; one alone where there is no pipeline.

    Within a class shards are padded to the largest, so that the class stands for its fullest rank."""
    return tuple(rank_class(recipe, stage) for stage in range(_stages(recipe)))


def few_classes(recipe: Recipe) -> tuple[RankClass, ...]:
    """The first, the one in the middle and the last."""
    stages = _stages(recipe)
    return tuple(rank_class(recipe, at) for at in sorted({0, stages // 2, stages - 1}))


def _stages(recipe: Recipe) -> int:
    return 1 if recipe.method.generates and recipe.generator is not None else recipe.parallel.pipeline


def rank_class(recipe: Recipe, stage: int = 0) -> RankClass:
    """That of one stage."""
    degrees = recipe.parallel
    if recipe.method.generates and recipe.generator is not None:
        gpus = recipe.generator.gpus
        return RankClass("one GPU" if gpus == 1 else f"each of {gpus} GPUs", gpus, recipe)
    if degrees.pipeline == 1:
        name = "one GPU" if degrees.world == 1 else f"each of {degrees.world} GPUs"
        return RankClass(name, degrees.world, _of_rank(recipe))
    name = f"each GPU of pipeline stage {stage + 1} of {degrees.pipeline}"
    of = recipe._replace(parallel=_on_stage(degrees, stage))
    return RankClass(name, degrees.world // degrees.pipeline, _of_rank(of))


@lru_cache(maxsize=4096)
def _on_stage(degrees: Parallel, stage: int) -> Parallel:
    """Of one stage: the same object again, which what is remembered by it knows without asking for its value."""
    return degrees._replace(stage=stage)


def leading_classes(recipe: Recipe) -> tuple[RankClass, ...]:
    """Of a pipeline's stages that differ in the micro-batches that wait alone, the first, in which the most do: a stage
    enters the ledger as the first, as the last, and by its layers. All that a search has to price."""
    if recipe.in_megatron and _stages(recipe) > 1:
        specs = recipe.model, *(model.spec for model in recipe.others.residents)
        settings = recipe.megatron, recipe.batch.accumulation, recipe.checkpointing.layers
        return tuple(rank_class(recipe, stage) for stage in _leading(specs, recipe.parallel, *settings))
    classes = rank_classes(recipe)
    found: dict[Hashable, RankClass] = {}
    for each in classes if len(classes) > 1 else ():
        degrees = each.recipe.parallel
        found.setdefault((degrees.first, degrees.last, each.recipe.model), each)
    return tuple(found.values()) or classes


@lru_cache(maxsize=4096)
def _leading(
    specs: tuple[ModelSpec, ...], degrees: Parallel, settings: Megatron, batches: int, again: bool
) -> tuple[int, ...]:
    """The first of Megatron's stages that have the same of each model."""
    from memplan.engine.megatron.stages import chunks_of  # of an engine that most jobs never load

    found: dict[Hashable, int] = {}
    for stage in range(degrees.pipeline):
        here = _on_stage(degrees, stage)
        chunks = chain(*(chunks_of(spec, here, settings, batches, again) for spec in specs))
        found.setdefault((here.first, here.last, *(chunk._replace(in_flight=0) for chunk in chunks)), stage)
    return tuple(found.values())


def _of_rank(recipe: Recipe) -> Recipe:
    """What a rank holds of model and sequence under torch's own parallelism; Megatron's engine divides by itself."""
    degrees = recipe.parallel
    if degrees.model * degrees.expert == 1 or recipe.in_megatron:
        return recipe

    batch = recipe.batch._replace(
        sequence_length=ceil_div(recipe.batch.sequence_length, degrees.context),
        completion_length=ceil_div(recipe.batch.completion_length, degrees.context),
        scoring=ceil_div(recipe.batch.scoring, degrees.context),
    )
    own = Parallel(
        tensor=degrees.tensor, pipeline=degrees.pipeline, stage=degrees.stage, expert=degrees.expert,
        expert_tensor=degrees.expert_tensor, whole_stream=degrees.whole_stream,
        whole_embedding=degrees.whole_embedding,
    )  # fmt: skip
    return recipe._replace(model=part_of(recipe.model, own), batch=batch)


def ledger_of(recipe: Recipe) -> Ledger:
    """The ledger of one rank: the step, and the evaluation after it where there is one."""
    if recipe.method.generates:
        return _engine(recipe)
    if has_critic_engine(recipe):
        return at_hand(critic_and_policy(recipe), recipe)
    after = evaluation_of(recipe)
    return at_hand(Joined(build_ledger(recipe), build_ledger(after)) if after else build_ledger(recipe), recipe)


def totals_of_rank(recipe: Recipe) -> Totalled | Ledger:
    """The same without rows."""
    if recipe.method.generates:
        return _engine(recipe)
    if has_critic_engine(recipe):
        return at_hand_totals(critic_and_policy_totals(recipe), recipe)
    after = evaluation_of(recipe)
    return at_hand_totals(JoinedTotals(totalled(recipe), totalled(after)) if after else totalled(recipe), recipe)


def _engine(recipe: Recipe) -> Ledger:
    """Of an engine alone."""
    from memplan.engine.generation.rows import engine_ledger  # which no training job loads

    assert recipe.generator is not None
    assert recipe.hardware.gpu is not None
    return engine_ledger(recipe.generator, recipe.hardware.gpu)


def trained_elements(recipe: Recipe) -> int:
    """Elements of the policy that train, on all ranks together."""
    if recipe.in_megatron and recipe.adapter:
        from memplan.engine.megatron.weights import adapted_elements  # of an engine that most jobs never load

        return adapted_elements(recipe)
    return count(
        [weight for weight in model_weights(recipe.model, recipe.adapter is None, recipe.adapter) if weight.trained]
    )
