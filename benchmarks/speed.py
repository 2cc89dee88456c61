"""Time of estimates inside one process: CPU milliseconds, median over jobs that differ, so that no cache answers.

``full`` is ``memplan.estimate`` with a card named; ``totals`` is what a search asks for: the meters and no more.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import memplan
from memplan.reporting import build_report, totals_of
from memplan.resolve import resolve
from memplan.spec.reading import read_job

JOB: dict[str, Any] = {"model": "llama-3.1-8b", "method": "simpo", "num_gpus": 8, "zero_stage": 3, "gpu": "h100-80gb"}


def milliseconds(run: Callable[[int], object], count: int) -> float:
    """Median CPU milliseconds of ``run(i)`` for i from 0 to ``count``."""
    times = []
    for i in range(count):
        start = time.process_time()
        run(i)
        times.append((time.process_time() - start) * 1000)
    return statistics.median(times)


def main() -> None:
    """Print one line a kind of call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=200, help="calls of each kind")
    count = parser.parse_args().n
    recipes = [resolve(read_job({**JOB, "sequence_length": 4000 + i})) for i in range(count)]
    memplan.estimate(JOB)
    for title, run in (
        ("memplan.estimate", lambda i: memplan.estimate({**JOB, "sequence_length": 1000 + i})),
        ("report alone", lambda i: build_report(resolve(read_job({**JOB, "sequence_length": 2000 + i})))),
        ("totals of a resolved job", lambda i: totals_of(recipes[i])),
        ("totals of a job whose layers were traced before", lambda i: totals_of(recipes[0])),
    ):
        print(f"{title:50} {milliseconds(run, count):8.3f} ms")


if __name__ == "__main__":
    main()
