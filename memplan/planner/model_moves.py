"""What could be changed of the models beside the policy: a critic's own micro-batch and checkpoints, the share of the
card and the ranks of a reward model's engine."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from memplan.engine.generation.figures import engine_figures
from memplan.planner.degrees import Keys, twos
from memplan.planner.generating import MOST_TENSOR
from memplan.planner.rollout_moves import VALUES, RolloutMove
from memplan.resolve.rollouts import has_own_batch
from memplan.spec.generation import Generator, indivisible
from memplan.spec.gpu import Gpu
from memplan.spec.other_models import MODELS
from memplan.spec.recipe import Recipe
from memplan.spec.rollout import share_key
from memplan.units import ceil_div

CRITIC_BATCH, CRITIC_AGAIN = "critic batch", "critic checkpoints"
REWARD_SHARE, REWARD_RANKS = "reward engine's share", "reward engine's ranks"
OF_MODELS = (REWARD_SHARE, REWARD_RANKS)
"""Axes of which any value may hold the least."""


def model_moves(recipe: Recipe) -> Iterator[RolloutMove]:
    """Every move of a critic that is trained by itself, and of a reward model's engine."""
    scorer, gpu = recipe.generator.scorer if recipe.generator else None, recipe.hardware.gpu
    if has_own_batch(recipe):
        yield from _critic(recipe)
    if scorer is not None and gpu is not None:
        yield from _shares(recipe, scorer, gpu)
        yield from _ranks(recipe, scorer, gpu)


def with_models(recipe: Recipe, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The job's models beside the policy, changed; a critic that it does not name is named then."""
    models: list[dict[str, Any]] = deepcopy(recipe.provenance.job[MODELS])
    for path, value in changes.items():
        role, *keys = path.split(".")
        if not keys:
            models = [model for model in models if model["role"] != role]
            continue
        inner = next((model for model in models if model["role"] == role), None)
        if inner is None:
            models.append(inner := {"role": role})
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
    return models


def _critic(recipe: Recipe) -> Iterator[RolloutMove]:
    """Smaller micro-batches of its own, and all of its layers again in backward."""
    critic, ranks = recipe.others.critic, recipe.parallel.data
    assert critic is not None
    batch, again = critic.own or (recipe.batch, recipe.checkpointing)
    longest = batch.longest or batch.sequence_length
    rows = batch.size if not batch.longest else batch.size * batch.sequence_length // longest
    while rows > 1:
        rows //= 2
        if batch.longest:
            words, change = f"critic {rows * longest} tokens at a time", {"critic.token_budget": rows * longest}
        else:
            words, change = f"critic batch {rows}", {"critic.batch_size": rows}
        yield RolloutMove(CRITIC_BATCH, words, {MODELS: change}, ranks)
    if again.form == "none" and not recipe.in_megatron:
        keys: Keys = {MODELS: {"critic.gradient_checkpointing": "full"}}
        yield RolloutMove(CRITIC_AGAIN, "activation checkpointing of the critic", keys, ranks)


def least_share(scorer: Generator, gpu: Gpu) -> int | None:
    """Hundredths of the card with which an engine starts at the least; None where no share is enough."""
    hundredths = range(1, 100)
    return next((each for each in hundredths if engine_figures(scorer._replace(share=each / 100), gpu).starts), None)


def _shares(recipe: Recipe, scorer: Generator, gpu: Gpu) -> Iterator[RolloutMove]:
    """Smaller shares, down to the least that starts."""
    least, own, key = least_share(scorer, gpu), round(scorer.share * 100), share_key(scorer.engine)
    if least is None or least >= own:
        return
    step = max(5, (own - least) // VALUES)
    for value in (*range(own - step, least, -step), least):
        change: Keys = {MODELS: {f"reward.rollout.{key}": value / 100}}
        yield RolloutMove(REWARD_SHARE, f"reward model's {key} {value / 100:g}", change, recipe.parallel.data)


def _ranks(recipe: Recipe, scorer: Generator, gpu: Gpu) -> Iterator[RolloutMove]:
    """More ranks for each copy of it, each with less of its weights, and so with a smaller share."""
    key = share_key(scorer.engine)
    for tensor in twos(min(MOST_TENSOR, recipe.hardware.gpus_per_node, scorer.gpus)):
        if tensor <= scorer.tensor_parallel or indivisible(scorer.model, tensor) or scorer.gpus % tensor:
            continue
        least = least_share(scorer._replace(tensor_parallel=tensor), gpu)
        if least is None:
            continue
        share = min(scorer.share, 0.1 + ceil_div(least, 5) / 20)
        words = f"the reward model's engine over {tensor} GPUs (tensor parallel) at {share:g}"
        change: Keys = {MODELS: {"reward.rollout.tensor_parallel": tensor, f"reward.rollout.{key}": share}}
        yield RolloutMove(REWARD_RANKS, words, change, recipe.parallel.data)
