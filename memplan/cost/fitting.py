"""A machine's own rates out of measured steps: four factors, as few runs tell them, and how sure each then is.

The logarithm of a step's seconds is the model's, with the published seconds of four kinds met so many times
(``FACTORS``), and noise. Before any run a factor is 1, give or take ``BEFORE``; each run moves those that its step
feels. That is linear least squares with a prior, solved around the last solution a few times (Gauss-Newton). What no
run feels stays as published, and as unsure: a speed's band is what is left of both doubts, for that very job
(``python benchmarks/calibrated.py`` says how well it holds)."""

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import NamedTuple

from memplan.cost.rates import EXPECTED, Device
from memplan.cost.step import step
from memplan.spec.gpu import FACTORS, Calibration
from memplan.spec.recipe import Recipe

BEFORE = (0.25, 0.6, 0.4, 0.8)
"""Standard deviations of the factors' logarithms before any run: compute, host, link, network. Assumed: the clock's
published rates hold within a quarter of products, and networks differ by more than twice."""
NOISE, COUNTS_AS = 0.12, 4
"""What the model itself is off between jobs of one machine, and the runs that this counts as beside the measured."""
UNSEEN = 0.2
"""The same between tables of many machines and trainers: with it 59 of the 65 speeds that were drawn last lie in the
band that was given before anything was looked at (docs/accuracy.md)."""
GENERATED = 0.6
"""Standard deviation of the logarithm of a generation's seconds, assumed: completions end when they will, and all wait
for the longest."""
TIMES = 8
"""Rounds until the solution stays."""
FARTHEST = 0.7
"""How far a factor's logarithm may go in one round."""
STEP = 1e-3
PUBLISHED = Calibration(
    gpu="",
    covariance=tuple(
        (row[0], row[1], row[2], row[3])
        for row in ([doubt**2 * (i == j) for j in range(len(BEFORE))] for i, doubt in enumerate(BEFORE))
    ),
    noise=UNSEEN,
)
"""What is known of a card before any run."""
INSIDE = 1.645
"""Standard deviations on either side that hold 90 in 100."""
Vector = list[float]
Matrix = list[Vector]


class Run(NamedTuple):
    """A measured step."""

    name: str
    recipe: Recipe
    seconds: float


class Fitted(NamedTuple):
    """What runs say of their machine."""

    calibration: Calibration
    before: tuple[float, ...]
    """Of each run: estimated over measured seconds, less one, by the published rates."""
    after: tuple[float, ...]
    """The same by its own."""


def fit(runs: Sequence[Run], gpu: str, on: Device) -> Fitted:
    """The factors of one card's runs; ``on``: the card by published rates."""
    theta, noise = [0.0] * len(FACTORS), NOISE
    measured = [log(run.seconds) for run in runs]
    for _ in range(TIMES):
        rows = [_slopes(run.recipe, on, theta) for run in runs]
        misses = [want - _logarithm(run.recipe, on, theta) for want, run in zip(measured, runs, strict=True)]
        precision = _precision(rows, noise)
        pull = [
            sum(row[i] * miss for row, miss in zip(rows, misses, strict=True)) / noise**2 - theta[i] / BEFORE[i] ** 2
            for i in range(len(theta))
        ]
        steps = [sum(one * other for one, other in zip(row, pull, strict=True)) for row in _inverse(precision)]
        theta = [at + max(-FARTHEST, min(FARTHEST, by)) for at, by in zip(theta, steps, strict=True)]
        squares = sum((want - _logarithm(run.recipe, on, theta)) ** 2 for want, run in zip(measured, runs, strict=True))
        noise = sqrt((COUNTS_AS * NOISE**2 + squares) / (COUNTS_AS + len(runs)))
    inverse = _inverse(_precision([_slopes(run.recipe, on, theta) for run in runs], noise))
    found = Calibration(
        gpu=gpu,
        **dict(zip(FACTORS, map(exp, theta), strict=True)),
        covariance=tuple((row[0], row[1], row[2], row[3]) for row in inverse),
        noise=noise,
        runs=len(runs),
    )
    nothing = [0.0] * len(theta)
    return Fitted(found, _errors(runs, on, nothing), _errors(runs, on, theta))


def spread(recipe: Recipe, on: Device, by: Calibration) -> float:
    """How far a speed's logarithm may be off either way, 90 times in 100: by what the job feels of unsure factors, and
    by what no factor explains. ``on``: the card as it was measured."""
    whole = step(recipe, on, EXPECTED)
    variance = by.noise**2 + (GENERATED * whole.generation / whole.seconds) ** 2
    if by.covariance:
        slopes = _slopes(recipe, on, [0.0] * len(FACTORS))
        variance += sum(
            one * other * by.covariance[i][j] for i, one in enumerate(slopes) for j, other in enumerate(slopes)
        )
    return INSIDE * sqrt(variance)


def _logarithm(recipe: Recipe, on: Device, theta: Vector) -> float:
    """Of the step's seconds where the factors are multiplied by these."""
    compute, host, link, network = map(exp, theta)
    there = on.with_factors(compute, host, link, network)
    return log(step(recipe, there, EXPECTED).seconds)


def _slopes(recipe: Recipe, on: Device, theta: Vector) -> Vector:
    """What the logarithm of the seconds gains for each of the factors'."""
    here = _logarithm(recipe, on, theta)
    moved = ([at + STEP * (i == j) for j, at in enumerate(theta)] for i in range(len(theta)))
    return [(_logarithm(recipe, on, each) - here) / STEP for each in moved]


def _errors(runs: Sequence[Run], on: Device, theta: Vector) -> tuple[float, ...]:
    return tuple(exp(_logarithm(run.recipe, on, theta)) / run.seconds - 1 for run in runs)


def _precision(rows: Sequence[Vector], noise: float) -> Matrix:
    size = range(len(BEFORE))
    return [[sum(row[i] * row[j] for row in rows) / noise**2 + (i == j) / BEFORE[i] ** 2 for j in size] for i in size]


def _inverse(matrix: Matrix) -> Matrix:
    """Of a positive definite matrix, by Gauss and Jordan: its pivots are above nothing in their own order."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = [each / pivot for each in rows[i]]
        for j in range(size):
            if j != i and rows[j][i]:
                factor = rows[j][i]
                rows[j] = [one - factor * other for one, other in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]
