"""From a recipe to its speed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp

from memplan.cost.fitting import PUBLISHED, spread
from memplan.cost.peak import least_seconds
from memplan.cost.rates import EXPECTED, Device, device
from memplan.cost.step import PARTS, Prepared, prepared, step
from memplan.engine.totals import remembered
from memplan.gpus import load_gpus
from memplan.spec.gpu import Gpu
from memplan.spec.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a job runs, by arithmetic: good for ranking, not a promise."""

    step_seconds: float
    """Of one optimizer step."""
    tokens_per_second: float
    """Of all GPUs; the tokens that enter the model, both halves of a pair."""
    examples_per_second: float
    """Of all GPUs; a pair is one example."""
    tokens_range: tuple[float, float]
    """Where tokens_per_second is to lie 90 times in 100 (``fitting``), never above what the cards can."""
    parts: dict[str, float]
    """Seconds of a step by what they go to."""
    limited_by: str
    """The largest of these."""


def card(gpu: Gpu) -> Device:
    """The card's rates. Raises ValueError where nothing like it is known."""
    if gpu.vendor != "custom" and gpu.bf16_tflops and gpu.memory_bandwidth_gbps:
        return _of_known(gpu.name, gpu)
    return device(gpu, tuple(load_gpus().values()))


_CARDS: dict[str, tuple[Gpu, Device]] = {}


def _of_known(name: str, gpu: Gpu) -> Device:
    known = _CARDS.get(name)
    if known is None or known[0] is not gpu:
        made = device(gpu)
        known = _CARDS[name] = gpu, made.with_factors(*gpu.calibration.factors) if gpu.calibration else made
    return known[1]


def examples_per_step(recipe: Recipe) -> int:
    """Over all GPUs; where nothing is divided and nothing is reduced, of one."""
    return recipe.batch.size * recipe.batch.accumulation * recipe.parallel.data


def seconds(recipe: Recipe, on: Device, ready: Prepared | None = None) -> float:
    """Expected seconds of one optimizer step. ``ready``: what ``prepare`` made of the same with another batch."""
    return step(recipe, on, EXPECTED, ready or _prepared_on(on)(recipe)).seconds


def prepare(recipe: Recipe, on: Device) -> Prepared:
    """What all batches of a recipe share."""
    return prepared(recipe, on, EXPECTED)


@lru_cache(maxsize=8)
def _prepared_on(device: Device) -> Callable[[Recipe], Prepared]:
    """The same, remembered by what it reads of a recipe."""
    return remembered(lambda parts: prepared(parts.recipe, device, EXPECTED))


def speed(recipe: Recipe) -> Speed:
    """The speed of a recipe whose card is named."""
    assert recipe.hardware.gpu is not None, "a speed is that of a card"
    on = card(recipe.hardware.gpu)
    found = step(recipe, on, EXPECTED)
    examples = examples_per_step(recipe)
    tokens = recipe.rows // recipe.batch.size * examples * recipe.batch.sequence_length
    own = recipe.hardware.gpu.calibration
    wide = exp(spread(recipe, on, own if own and own.runs else PUBLISHED))
    parts = {name: getattr(found, name) for name in PARTS}
    return Speed(
        found.seconds,
        tokens / found.seconds,
        examples / found.seconds,
        (tokens / found.seconds / wide, tokens / max(found.seconds / wide, least_seconds(recipe))),
        parts,
        max(parts, key=lambda name: parts[name]),
    )
