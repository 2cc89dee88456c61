"""How fast cards can be: no step is faster than its work at the data sheet's rate, counted apart from the clock, and
none faster than its slowest card."""

from functools import lru_cache
from math import inf
from statistics import NormalDist

from memplan.cost.rates import NARROW, OTHER_NARROW, TERA, Device
from memplan.cost.work import Work, model_work
from memplan.spec.recipe import Recipe

VARIATION = 0.08 / 5.4
"""Standard deviation of the pace of cards of one kind, by their power management: 8 % between the whiskers of a box
plot, which are 5.4 of it apart, in the mean of five clusters (arXiv:2208.11035, abstract). Outliers are ignored."""


@lru_cache(maxsize=1024)
def slowest(on: Device, cards: int) -> Device:
    """The slowest of so many, for which the others wait, as it is to be expected (Blom's rule for the last of a sorted
    sample): 1.00, 1.02 and 1.04 times the seconds for one card, 8 and 256."""
    if cards == 1:
        return on
    return on.slower(1 + VARIATION * NormalDist().inv_cdf((cards - 0.375) / (cards + 0.25)))


def least_seconds(recipe: Recipe) -> float:
    """Of one optimizer step, where every card did what its data sheet says in dense bf16, twice that in FP8, or so many
    times in FP4; 0 where that says nothing."""
    gpu = recipe.hardware.gpu
    peak = (gpu.bf16_tflops or gpu.fp16_tflops or inf) * TERA if gpu else inf
    times = 2.0 if recipe.megatron.fp8_format or recipe.operators.kernels.float8 else 1.0
    if gpu and recipe.megatron.fp4_format:
        times = NARROW.get(gpu.architecture, OTHER_NARROW)[1]
    return least_flop(recipe) / (times * peak * recipe.parallel.world)


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
