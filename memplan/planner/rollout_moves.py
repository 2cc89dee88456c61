"""What could be changed of a job's generation as it is: the engine's share, sleep, ranks and longest sequence, what the
trainer puts on the host meanwhile, how it scores, what it sends at once, and cards of the engine's own."""

from collections.abc import Iterator
from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.planner.degrees import Keys, twos
from memplan.planner.generating import MOST_TENSOR, NOTHING, row_of, stands_apart
from memplan.planner.shares import Shares, has_shares
from memplan.spec.generation import Generator
from memplan.spec.job import Job
from memplan.spec.recipe import Recipe
from memplan.spec.rollout import share_key
from memplan.units import MiB, ceil_div, format_bytes

SHARE, SLEEP, AWAY, ENGINE_RANKS, LONGEST = "share", "sleep", "trainer_offload", "engine ranks", "max_model_len"
SCORING, BUCKET, PLACE, SHARED = "logprob_token_budget", "bucket", "placement", "shared weights"
UNORDERED = (SHARE, SLEEP, AWAY, ENGINE_RANKS, PLACE)
"""Axes of which any value may hold the least."""
VALUES = 4
"""Of the share, at most."""
LEAST_BUCKET = 128 * MiB


class RolloutMove(NamedTuple):
    """A change of generation alone."""

    axis: str
    title: str
    keys: Keys
    ranks: int
    """Ranks of the trainer that then see other examples."""
    setup: bool = False


def rollout_moves(job: Job, recipe: Recipe) -> Iterator[RolloutMove]:
    """Every move of a job that an engine generates for; some of them may be refused."""
    of, ranks = recipe.generator, recipe.parallel.data
    if of is None or recipe.hardware.gpu is None or recipe.method.generates:
        return
    if of.engine != "hf":
        yield from _longest(of, ranks)
        if not of.separate:
            yield from _beside(job, recipe, of, ranks)
            yield from _shares(recipe, of, ranks)
        yield from _ranks(of, recipe, ranks)
        yield from _apart(job, recipe, of)
        if of.syncing.bucket_bytes > LEAST_BUCKET:
            size = max(LEAST_BUCKET, of.syncing.bucket_bytes // 4)
            words = f"weights sent {format_bytes(size, 0)} at a time"
            yield RolloutMove(BUCKET, words, {"sync": {"bucket_bytes": size}}, ranks)
    yield from _scoring(job, recipe, ranks)


def _longest(of: Generator, ranks: int) -> Iterator[RolloutMove]:
    """The longest sequence where it is more than prompt and completion."""
    needed = of.prompt_length + of.completion_length
    if of.max_model_len > needed:
        yield RolloutMove(LONGEST, f"max_model_len {needed}", {"rollout": {"max_model_len": needed}}, ranks)


def _beside(job: Job, recipe: Recipe, of: Generator, ranks: int) -> Iterator[RolloutMove]:
    """What makes room on the trainer's cards: the engine sleeps, or frees weights too; the trainer is on the host."""
    row, asked, standby = row_of(job), job.rollout or NOTHING, job.kernels == "unsloth" and of.engine == "vllm"
    if standby and asked.shared_weights is None:
        words = "the engine runs the policy's own weights (Unsloth's fast_inference)"
        yield RolloutMove(SHARED, words, {"rollout": {"shared_weights": True}}, ranks)
    level = min(row.asleep or row.sleep, 1 if standby else 2)
    if level and level != of.sleep:
        words = f"engine sleep mode, level {level}"
        yield RolloutMove(SLEEP, words, {"rollout": {"sleep": str(level)}}, ranks)
    if row.can_offload and not of.away.whole:
        own = set(job.trainer_offload or ())
        for names in (set(), {"optimizer"}, {"optimizer", "parameters"}):
            told = names if names < own else own | names  # less of it, where the nodes' memory is what is short
            if told != own:
                words = f"{' and '.join(sorted(told, reverse=True)) or 'nothing'} offloaded to CPU while it generates"
                yield RolloutMove(AWAY, words, {"trainer_offload": tuple(sorted(told))}, ranks)


def _shares(recipe: Recipe, of: Generator, ranks: int) -> Iterator[RolloutMove]:
    """The largest share that fits, all else as it is; else smaller ones, down to the least that starts."""
    if not has_shares(recipe):
        return
    try:
        found = Shares(recipe)
        least, largest = found.least(), found.largest()
    except InvalidJob:
        return
    own, key = round(of.share * 100), share_key(of.engine)
    if least is None:
        return
    step = max(5, (own - least) // VALUES)
    values = [largest] if largest else [*range(own - step, least, -step), least]
    for value in values:
        if value != own:
            yield RolloutMove(SHARE, f"{key} {value / 100:g}", {"rollout": {key: value / 100}}, ranks)


def _ranks(of: Generator, recipe: Recipe, ranks: int) -> Iterator[RolloutMove]:
    """More ranks for each copy of the engine, so that each holds less of the weights."""
    for tensor in twos(min(MOST_TENSOR, recipe.hardware.gpus_per_node, of.gpus)):
        if tensor > of.tensor_parallel and not of.model.num_heads % tensor and not of.gpus % tensor:
            words = f"the engine over {tensor} GPUs (tensor parallel)"
            yield RolloutMove(ENGINE_RANKS, words, {"rollout": {"tensor_parallel": tensor}}, ranks)


def _apart(job: Job, recipe: Recipe, of: Generator) -> Iterator[RolloutMove]:
    """The engine on some of the cards, the trainer on the others."""
    world, asked = recipe.parallel.world, job.rollout or NOTHING
    if of.separate or not stands_apart(job) or "placement" in asked.model_fields_set:
        return
    for cards in twos(world // 2) if world > 1 else ():
        left = world - cards
        if left % recipe.parallel.model or cards % of.tensor_parallel:
            continue
        words = f"{cards} of the {world} GPUs for the engine alone"
        keys: Keys = {"num_gpus": left, "rollout": {"placement": "separate", "num_gpus": cards}}
        yield RolloutMove(PLACE, words, keys, left // recipe.parallel.model, setup=True)


def _scoring(job: Job, recipe: Recipe, ranks: int) -> Iterator[RolloutMove]:
    """Smaller passes that score the rollout, where the trainer packs them to a budget of tokens."""
    budget = job.logprob_token_budget or job.token_budget
    if budget is None or not recipe.trainer.can_be_told("token_budget", budget):
        return
    while (budget := ceil_div(budget, 2)) >= recipe.batch.sequence_length:
        yield RolloutMove(SCORING, f"log-probabilities {budget} tokens at a time", {SCORING: budget}, ranks)
