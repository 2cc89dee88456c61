"""Time of estimates inside one process: CPU milliseconds on one core; with --check, of one call of ``memplan check``.

The first lines are medians over jobs that differ, so that no cache answers. A search is told apart: many ways to run
one model, priced by ``memplan.reporting.peak`` (the meters, phases and verdict of a report, to the byte),
resolved once for each combination of everything but the batch, and varied by ``Recipe.in_batches``.

--check FILE-OR-FOLDER …: CPU time of all processes of the call, start included, a file that it answers, in pairs with a
process that imports typer and pydantic and does nothing, or (--against TREE) with the same call of another tree's
memplan: medians, and the median of the ratios. The answers of both must be the same. Without pairs (--pairs 0), one
call, and one where every step is played (--play).
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

from startup import BASELINE

import memplan
from memplan.engine import totals as quick
from memplan.errors import InvalidJob
from memplan.reporting import build_report, peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

JOB: dict[str, Any] = {"model": "llama-3.1-8b", "method": "simpo", "num_gpus": 8, "zero_stage": 3, "gpu": "h100-80gb"}
SEARCHED: dict[str, Any] = {"model": "llama-3.1-8b", "method": "dpo", "trainer": "trl", "gpu": "h100-80gb"}
AXES: dict[str, tuple[Any, ...]] = {
    "sharding": ("ddp", "zero1", "zero2", "zero3", "fsdp2"),
    "num_gpus": (8, 16, 32, 64),
    "gradient_checkpointing": ("none", "full"),
    "optimizer": ("adamw", "adamw-8bit", "adafactor", "lion"),
    "optimizer_impl": ("auto", "foreach", "fused"),
    "lora": (None, {"r": 16}, {"r": 64}),
    "pair_pass": ("concatenated", "split"),
}
BATCHES = (1, 2, 4, 8, 16)
ACCUMULATIONS = (1, 2, 4, 8)


def timed(run: Callable[[Any], object], given: Any) -> float:
    """CPU milliseconds of one call."""
    start = time.process_time()
    run(given)
    return (time.process_time() - start) * 1000


def milliseconds(run: Callable[[int], object], count: int) -> float:
    """Median CPU milliseconds of ``run(i)`` for i from 0 to ``count``."""
    return statistics.median(timed(run, i) for i in range(count))


def combinations() -> Iterator[Recipe]:
    """Every combination of the axes that frameworks do not refuse."""
    for values in product(*AXES.values()):
        keys = {key: value for key, value in zip(AXES, values, strict=True) if value is not None}
        try:
            yield resolve(read_job(SEARCHED | keys))
        except InvalidJob:
            continue


def search() -> None:
    """Price every combination with every batch, once cold, and once more with everything remembered."""
    start = time.process_time()
    recipes = list(combinations())
    resolved = (time.process_time() - start) * 1000
    plans = [recipe.in_batches(batch, steps) for recipe in recipes for batch, steps in product(BATCHES, ACCUMULATIONS)]
    print(f"{'resolve a combination':50} {resolved / len(recipes):8.3f} ms  {len(recipes):,} allowed")
    for title in ("a plan of a search, nothing known before", "a plan of the same search again"):
        times = sorted(timed(peak, plan) for plan in plans)
        total = sum(times)
        print(
            f"{title:50} {total / len(plans):8.3f} ms  {len(plans):,} plans, {len(plans) / total * 1000:,.0f} a second"
        )
        print(f"{'  the median plan':50} {times[len(times) // 2]:8.3f} ms")


class Call(NamedTuple):
    """What one process, with those that it starts, answered and took."""

    found: list[dict[str, Any]]
    cpu: float
    wall: float


def called(command: list[str], tree: str | None = None) -> Call:
    """A command, of memplan as it is installed or as it lies in a folder."""
    environment = {**os.environ, "PYTHONPATH": tree} if tree else {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    written = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Call(json.loads(written or "[]"), cpu, wall)


def check(paths: list[str], pairs: int, against: str | None) -> None:
    """Calls over the files."""
    command = [sys.executable, "-m", "memplan", "check", *paths, "--gpu", "h100-80gb", "--num-gpus", "8", "--json"]
    if not pairs:
        told("memplan check", [called(command)])
        told("memplan check --play", [called([*command, "--play"])])
        return
    both = [(called(command if against else BASELINE, against), called(command)) for _ in range(pairs)]
    others, own = ([pair[i] for pair in both] for i in range(2))
    told("memplan check", own)
    if against:
        told(f"memplan check of {against}", others)
        differ = sum(one != other for one, other in zip(others[0].found, own[0].found, strict=True))
        print(f"{differ} answers differ")
    files = 1 if against else len({each["file"] for each in own[0].found})
    ratio = statistics.median(mine.cpu / theirs.cpu / files for theirs, mine in both)
    print(
        f"ratio {ratio:.3f}, " + ("of the call" if against else "of a file to a process that imports and does nothing")
    )


def told(title: str, calls: list[Call]) -> None:
    """A line of the medians."""
    found = calls[0].found
    cpu, wall = statistics.median(each.cpu for each in calls), statistics.median(each.wall for each in calls)
    files, played = len({each["file"] for each in found}), sum(each["played"] for each in found)
    print(
        f"{title:50} {cpu / files * 1000:8.0f} ms  {files:,} files, {files / wall:.0f} a second on the clock, "
        f"{played:,} played; {cpu:.1f} s of CPU, {wall:.1f} s on the clock"
    )


def main() -> None:
    """Print one line a kind of call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=200, help="calls of each kind")
    parser.add_argument("--no-search", action="store_true", help="leave the search out")
    parser.add_argument("--check", nargs="+", metavar="PATH", help="time a check of these files or folders instead")
    parser.add_argument("--pairs", type=int, default=3, help="calls of it, each beside one to compare with")
    parser.add_argument("--against", metavar="TREE", help="folder of another memplan to compare it with")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.check, arguments.pairs, arguments.against)
        return
    count = arguments.n
    recipes = [resolve(read_job({**JOB, "sequence_length": 4000 + i})) for i in range(count)]
    memplan.estimate(JOB)
    for title, run in (
        ("memplan.estimate", lambda i: memplan.estimate({**JOB, "sequence_length": 1000 + i})),
        ("report alone", lambda i: build_report(resolve(read_job({**JOB, "sequence_length": 2000 + i})))),
        ("peak of a resolved job, its layers not met before", lambda i: peak(recipes[i])),
        ("peak of a resolved job met before", lambda i: peak(recipes[0])),
    ):
        print(f"{title:50} {milliseconds(run, count):8.3f} ms")
    quick.forget()
    if not arguments.no_search:
        search()


if __name__ == "__main__":
    main()
