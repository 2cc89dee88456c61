"""The play of a step against traces of the real one: every row of every round that is played, phase by phase, beside
the ledger's own figures.

    python benchmarks/played.py [--worst N] [--format markdown]
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.replay import StepEvents
from memplan.engine.step_and_evaluation import EVALUATE
from memplan.errors import MemplanError
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job

DATA = Path(__file__).parent / "data"
HALVES = {"loss": "forward", "optimizer": "step"}


class Compared(NamedTuple):
    """One phase of one row: errors of the play and of the ledger."""

    row: str
    phase: str
    several: bool
    play: float
    ledger: float


def phases_of(events: StepEvents) -> dict[str, int]:
    """The most bytes alive in each phase of the last step."""
    found: dict[str, int] = {}
    starts = {position: name for position, name in events.marks if "." in name}
    live, phase = 0, ""
    for position, (_, size) in enumerate(events.events):
        if position in starts:
            name, half = starts[position].rsplit(".", 1)
            phase = EVALUATE if name.startswith("evaluation-") else HALVES.get(half, half)
            if position >= events.start:
                found[phase] = max(found.get(phase, 0), live)
        live += size
        if position >= events.start:
            found[phase] = max(found.get(phase, 0), live)
    return found


def rows() -> Iterator[dict[str, Any]]:
    """The traced rows of all rounds."""
    for file in sorted([*DATA.glob("unseen-*.json"), *DATA.glob("ranks-*.json")]):
        yield from json.loads(file.read_text(encoding="utf-8"))["rows"]


def compared(row: dict[str, Any]) -> list[Compared] | None:
    """The phases of one row; None where its step is not played."""
    try:
        recipe = resolve(read_job(row["job"]))
    except MemplanError:
        return None
    events = step_events(recipe)
    if events is None:
        return None
    played, ledger, measured = phases_of(events), build_report(recipe).per_gpu.phases, row["measured"]["phases"]
    return [
        Compared(
            row["id"], phase, recipe.several, played[phase] / measured[phase] - 1, ledger[phase] / measured[phase] - 1
        )
        for phase in ("forward", "backward", "step")
        if phase in measured and phase in played
    ]


def line(title: str, errors: list[float], count: int) -> str:
    """Median, 95th percentile and worst of absolute errors, in percent."""
    sizes = sorted(map(abs, errors))
    figures = sizes[len(sizes) // 2], sizes[-(-len(sizes) * 95 // 100) - 1], sizes[-1]
    return f"| {title} | {count} | {len(sizes)} | " + " | ".join(f"{100 * figure:.4f}" for figure in figures) + " |"


def main() -> None:
    """A table, and the rows that the play misses most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worst", type=int, default=0, help="so many of the play's worst phases")
    parser.add_argument("--format", choices=("markdown",), default="markdown")
    worst, every = parser.parse_args().worst, list(rows())
    found = [each for row in every for each in compared(row) or ()]
    print("| figures of | rows | phases | median % | p95 % | worst % |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for title, several in (("one GPU", False), ("several GPUs", True)):
        own = [each for each in found if each.several == several]
        count = len({each.row for each in own})
        print(line(f"the play, {title}", [each.play for each in own], count))
        print(line(f"the ledger, {title}", [each.ledger for each in own], count))
    print(f"\n{len({each.row for each in found})} of {len(every)} traced rows are played.")
    for each in sorted(found, key=lambda each: -abs(each.play))[:worst]:
        print(f"- {each.row} {each.phase}: {100 * each.play:+.3f} %, the ledger {100 * each.ledger:+.3f} %")


if __name__ == "__main__":
    main()
