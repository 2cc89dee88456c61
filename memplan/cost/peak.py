"""What a step must compute at least, counted apart from the clock, and so how fast no card can be."""

from math import inf

from memplan.cost.rates import TERA
from memplan.cost.work import Work, model_work
from memplan.spec.recipe import Recipe


def least_seconds(recipe: Recipe) -> float:
    """Of one optimizer step, where every card did what its data sheet says in dense bf16, or twice that in FP8; 0 where
    that says nothing."""
    gpu = recipe.hardware.gpu
    peak = (gpu.bf16_tflops or gpu.fp16_tflops or inf) * TERA if gpu else inf
    doubled = 2 if recipe.megatron.fp8_format or recipe.operators.kernels.float8 else 1
    return least_flop(recipe) / (doubled * peak * recipe.parallel.world)


def least_flop(recipe: Recipe) -> float:
    """Of one optimizer step over all cards: the products of every token with the layers' matrices that it visits, and
    causal attention's, forward and backward; no head, and nothing twice."""
    batch = recipe.batch
    rows = recipe.rows * batch.accumulation * recipe.parallel.data
    work = model_work(recipe.model)
    trained = 0.0 if recipe.adapter else work.trained_share
    return rows * batch.sequence_length * sum(count * _layer(each, recipe, trained) for count, each in work.layers)


def _layer(each: Work, recipe: Recipe, trained: float) -> float:
    """Of one token."""
    length = recipe.batch.sequence_length
    pairs = length / 2 if each.causal else length
    pairs = min(pairs, each.window / 2) if each.window else pairs
    return 2 * each.weights * (2 + trained) + 3 * pairs * each.per_pair
