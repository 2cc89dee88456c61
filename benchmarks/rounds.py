"""Every round of unseen jobs: the figures of the engine that was frozen when it was drawn, today's, and what is off.

``data/rounds.json`` holds the frozen figures, which never change, and a reason for each phase that today's engine still
misses by more than 2 %; ``data/unseen-SEED.json`` holds the rows that the tracer of today makes too. Exits 1 where a
miss has no reason, or a reason no miss.

    python benchmarks/rounds.py [--format markdown]
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from memplan.accuracy import Figure, accuracy

DATA = Path(__file__).parent / "data"
PHASES = ("peak", "forward", "backward", "step")
MISS = 0.02


def rounds() -> dict[str, Any]:
    """The frozen figures of every round, and the reasons."""
    found: dict[str, Any] = json.loads((DATA / "rounds.json").read_text(encoding="utf-8"))
    return found


def rows_of(seed: int) -> Path:
    """The traced rows of a round."""
    return DATA / f"unseen-{seed}.json"


def summary(figures: list[Figure]) -> dict[str, list[float]]:
    """Rows, median, 95th percentile and the worst error of each phase."""
    found = {}
    for phase in PHASES:
        errors = sorted((figure.error for figure in figures if figure.phase == phase), key=abs)
        sizes = [abs(error) for error in errors]
        middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2
        found[phase] = [len(errors), middle, sizes[-(-len(sizes) * 95 // 100) - 1], errors[-1]]
    return found


def missed(figures: list[Figure]) -> dict[str, list[Figure]]:
    """Phases that are off by more than 2 %, by row."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.phase != "peak" and abs(figure.error) > MISS:
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
    parser.parse_args()
    known = rounds()
    head = ["| round | phase | rows | median % | p95 % | worst % |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    frozen, today, off = head.copy(), head.copy(), dict[str, list[Figure]]()
    for each in known["rounds"]:
        figures = list(accuracy([rows_of(each["seed"])]).figures)
        frozen += lines_of(f"{each['seed']}, {each['traced']} of {each['drawn']} traced", each["frozen"])
        today += lines_of(f"{each['seed']}, {each['kept']} kept", summary(figures))
        off |= missed(figures)
    print("Frozen, when each round was drawn:\n")
    print("\n".join(frozen))
    print("\nToday, on the rows that today's tracer makes too:\n")
    print("\n".join(today))
    print("\nWhat is still off by more than 2 %:\n")
    for row, figures in off.items():
        phases = ", ".join(f"{figure.phase} {100 * figure.error:+.1f} %" for figure in figures)
        print(f"- {row} ({phases}): {known['reasons'].get(row, 'no reason is known yet')}")
    return int(set(off) != set(known["reasons"]))


if __name__ == "__main__":
    sys.exit(main())
