"""Every round of unseen jobs: the figures of the engine that was frozen when it was drawn, today's, and what is off.

``data/rounds.json`` holds the frozen figures, which never change, and a reason for each phase that today's engine still
misses by more than 2 %; ``data/unseen-SEED.json`` holds the rows that the tracer of today makes too. Exits 1 where a
miss has no reason, or a reason no miss. Jobs of many ranks are rounds of their own (``rank_rounds.json``,
``ranks-SEED.json``), whose misses are those over 4 %.

    python benchmarks/rounds.py [--ranks] [--format markdown]
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from memplan.accuracy import Figure, accuracy

DATA = Path(__file__).parent / "data"
PHASES = ("peak", "forward", "backward", "step")


class Kind(NamedTuple):
    """What is drawn: where its rounds and rows are, and what a miss is."""

    rounds: str
    rows: str
    miss: float


ONE_GPU = Kind("rounds.json", "unseen", 0.02)
RANKS = Kind("rank_rounds.json", "ranks", 0.04)


def rounds(kind: Kind = ONE_GPU) -> dict[str, Any]:
    """The frozen figures of every round, and the reasons."""
    found: dict[str, Any] = json.loads((DATA / kind.rounds).read_text(encoding="utf-8"))
    return found


def rows_of(seed: int, kind: Kind = ONE_GPU) -> Path:
    """The traced rows of a round."""
    return DATA / f"{kind.rows}-{seed}.json"


def summary(figures: list[Figure]) -> dict[str, list[float]]:
    """Rows, median, 95th percentile and the worst error of each phase."""
    found = {}
    for phase in PHASES:
        errors = sorted((figure.error for figure in figures if figure.phase == phase), key=abs)
        sizes = [abs(error) for error in errors]
        middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2
        found[phase] = [len(errors), middle, sizes[-(-len(sizes) * 95 // 100) - 1], errors[-1]]
    return found


def missed(figures: list[Figure], miss: float) -> dict[str, list[Figure]]:
    """Phases that are off by more, by row."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.phase != "peak" and abs(figure.error) > miss:
            found.setdefault(figure.id, []).append(figure)
    return found


def lines_of(title: str, phases: dict[str, list[float]]) -> list[str]:
    """A line of the table for each phase."""
    return [
        f"| {title} | {phase} | {count:.0f} | {100 * median:.4f} | {100 * p95:.4f} | {100 * worst:+.4f} |"
        for phase, (count, median, p95, worst) in phases.items()
    ]


def main() -> int:
    """Print the page's part; 1 where misses and reasons do not match."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("markdown",), default="markdown")
    parser.add_argument("--ranks", action="store_true", help="jobs of 2 to 64 GPUs")
    kind = RANKS if parser.parse_args().ranks else ONE_GPU
    known = rounds(kind)
    head = ["| round | phase | rows | median % | p95 % | worst % |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    frozen, today, off = head.copy(), head.copy(), dict[str, list[Figure]]()
    for each in known["rounds"]:
        figures = list(accuracy([rows_of(each["seed"], kind)]).figures)
        frozen += lines_of(f"{each['seed']}, {each['traced']} of {each['drawn']} traced", each["frozen"])
        today += lines_of(f"{each['seed']}, {each['kept']} kept", summary(figures))
        off |= missed(figures, kind.miss)
    print("Frozen, when each round was drawn:\n")
    print("\n".join(frozen))
    print("\nToday, on the rows that today's tracer makes too:\n")
    print("\n".join(today))
    print(f"\nWhat is still off by more than {100 * kind.miss:.0f} %:\n")
    for row, figures in off.items():
        phases = ", ".join(f"{figure.phase} {100 * figure.error:+.1f} %" for figure in figures)
        print(f"- {row} ({phases}): {known['reasons'].get(row, 'no reason is known yet')}")
    if not off:
        print("- nothing")
    return int(set(off) != set(known["reasons"]))


if __name__ == "__main__":
    sys.exit(main())
