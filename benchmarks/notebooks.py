"""What notebooks of Unsloth printed, against memplan: ``max_memory_reserved`` before training and at its end.

    python benchmarks/notebooks.py [--rows]

``start``: what loading the model and its adapters came to, held against the load phase. ``peak``: of the whole run.
Batches are padded to their own longest row, and few datasets reach the length that a notebook allows and memplan
counts: a peak is a bound from below, so the score is how many lie above the expected and above the high figure; where
a set packs its rows (``reaches``) it is exact. Exits with 1 where a peak is above the high figure and nobody read why.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.units import GiB

DATA = Path(__file__).resolve().parent / "data" / "notebooks.json"


class Case(NamedTuple):
    """A run, in GiB."""

    id: str
    fused: bool
    """Unsloth's kernels are modelled; else transformers' own layers are counted from above."""
    start: float
    load: float
    """memplan's figure of the load phase, allocated."""
    peak: float
    expected: float
    high: float
    reaches: bool
    read: str
    """What was found where the peak is above the high figure."""

    @property
    def above(self) -> bool:
        """Whether memplan's high figure is too low, beyond what three printed decimals leave open."""
        return self.peak > self.high + 0.0005


def rows() -> list[dict[str, Any]]:
    """Every run with its whole job."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return [{**row, "job": {**data["common"], **row["job"]}} for row in data["rows"]]


def cases(fused: bool | None = None) -> Iterator[Case]:
    """Every run with what memplan says of it; ``fused``: of those with Unsloth's kernels alone."""
    for row in rows():
        own = row["job"].get("kernels") == "unsloth"
        if fused is not None and own is not fused:
            continue
        gpu = build_report(resolve(read_job(row["job"])), None).per_gpu
        reserved = gpu.reserved_bytes
        figures = (gpu.phases["load"] / GiB, row["peak"], reserved.expected / GiB, reserved.high / GiB)
        yield Case(row["id"], own, row["start"], *figures, row.get("reaches", False), row.get("read", ""))


def _score(name: str, found: list[Case]) -> None:
    over = [case for case in found if case.above]
    low = sum(case.peak > case.expected for case in found)
    print(f"{name}: {len(found)} peaks, {low} above the expected figure, {len(over)} above the high one")
    print(f"  high over peak, median: {median(case.high / case.peak for case in found):.2f}")
    starts = sorted(case.load / case.start - 1 for case in found)
    near = sum(abs(each) < 0.05 for each in starts)
    print(
        f"  load against start: median {median(starts):+.1%}, {near} within 5 %, {starts[0]:+.1%} to {starts[-1]:+.1%}"
    )
    for case in found:
        if case.reaches:
            print(f"  {case.id} reaches its length: {case.expected / case.peak - 1:+.1%}")


def main() -> int:
    """The scores, and with --rows each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="each run: start, load, peak, expected, high")
    asked = parser.parse_args()
    found = list(cases())
    for case in found if asked.rows else ():
        print(
            f"{case.id:58} {case.start:7.3f} {case.load:7.2f}   {case.peak:7.3f} {case.expected:7.2f} {case.high:7.2f}"
        )
    for name, fused in (("Unsloth's kernels", True), ("layers counted from above", False)):
        _score(name, [case for case in found if case.fused is fused])
    for case in found:
        if case.above:
            print(f"{case.id}: {case.peak} GiB, at most {case.high:.2f}: {case.read or 'NOT READ'}")
    return int(any(case.above and not case.read for case in found))


if __name__ == "__main__":
    sys.exit(main())
