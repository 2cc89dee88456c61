"""What a few runs of a machine are worth: calibrated on some published speeds of a source, held against its others.

Of each source and card with rows enough, ``runs`` rows are drawn, and the others estimated with what they say; many
times over. ``before`` and ``after`` are median errors of the others by published rates and by the machine's own, ``90
in 100`` the ninth decile after, ``in band`` how many of 100 lie in the band that is to hold 90 (``plain``: in that of
the published rates). Sources that are held back were not looked at when the fit's doubts were chosen.
"""

import argparse
import random
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from memplan.cost import card, speed
from memplan.cost.fitting import Run, fit
from memplan.errors import MemplanError
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

sys.path.insert(0, str(Path(__file__).resolve().parent))
from throughput import rows

LEAST = 6
"""Rows of a source and card."""


class Row(NamedTuple):
    """A published speed."""

    recipe: Recipe
    tokens: float
    """Per second, of all cards."""
    back: bool


def sources() -> dict[tuple[str, str], list[Row]]:
    """Rows by source and card."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row, job, back in rows():
        try:
            recipe = resolve(read_job(job))
        except MemplanError:
            continue
        tokens = row["tokens_per_second"] * job["num_gpus"]
        found.setdefault((row["set"], str(job["gpu"])), []).append(Row(recipe, tokens, back))
    return {key: of for key, of in found.items() if len(of) >= LEAST}


def with_rates(recipe: Recipe, calibration: Any) -> Recipe:
    """The recipe on a card with these rates."""
    gpu = recipe.hardware.gpu
    assert gpu is not None
    return recipe._replace(hardware=recipe.hardware._replace(gpu=gpu.model_copy(update={"calibration": calibration})))


def tried(of: list[Row], runs: int, times: int, drawn: random.Random) -> list[tuple[float, float, bool, bool]]:
    """(error before, after, in the band, in the plain one) of rows that were not fitted."""
    found = []
    for _ in range(times):
        chosen = set(drawn.sample(range(len(of)), runs))
        fitted = []
        for i in chosen:
            before = speed(of[i].recipe)
            fitted.append(Run(str(i), of[i].recipe, before.step_seconds * before.tokens_per_second / of[i].tokens))
        gpu = of[0].recipe.hardware.gpu
        assert gpu is not None
        made = fit(fitted, gpu.name, card(gpu)).calibration
        for i, row in enumerate(of):
            if i in chosen:
                continue
            plain, own = speed(row.recipe), speed(with_rates(row.recipe, made))
            inside = [each.tokens_range[0] <= row.tokens <= each.tokens_range[1] for each in (own, plain)]
            found.append(
                (plain.tokens_per_second / row.tokens - 1, own.tokens_per_second / row.tokens - 1, inside[0], inside[1])
            )
    return found


def line(title: str, of: list[tuple[float, float, bool, bool]]) -> str:
    """One row of the table."""
    before, after = (sorted(abs(each[i]) for each in of) for i in (0, 1))
    inside, plain = (100 * sum(each[i] for each in of) / len(of) for i in (2, 3))
    return (
        f"{title:40}{100 * statistics.median(before):>7.1f} %{100 * statistics.median(after):>7.1f} %"
        f"{100 * after[int(0.9 * len(after))]:>8.1f} %{inside:>8.0f}{plain:>7.0f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="rows that are fitted")
    parser.add_argument("--times", type=int, default=3, help="draws of them")
    asked = parser.parse_args()
    print(f"{'':40}{'before':>9}{'after':>9}{'90 in 100':>10}{'in band':>8}{'plain':>7}")
    sums: dict[bool, list[tuple[float, float, bool, bool]]] = {False: [], True: []}
    for (name, gpu), of in sources().items():
        found = tried(of, asked.runs, asked.times, random.Random(f"{name} {gpu}"))
        sums[of[0].back] += found
        print(line(f"{name} {gpu}{' (held back)' if of[0].back else ''}", found))
    for back, found in sums.items():
        print(line("held back" if back else "seen", found))


if __name__ == "__main__":
    main()
