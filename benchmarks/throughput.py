"""The cost model against published throughputs: error, rank correlation and regret, by source, seen and held back.

``benchmarks/data/throughput.json`` holds the rows with their sources. ``error`` is estimate over published tokens per
second, less one; ``before`` the same of an earlier memplan; ``<=30`` how many of 100 are within 30 %; ``ranks`` is
Spearman's correlation within a source; ``regret`` what the layout that memplan ranks first loses against the best of a
model, length and number of cards, in the median over these; ``in band`` how many published figures lie in the band
that is to hold 90 of 100. Sources that are held back were not looked at when rates were chosen. Sources whose figure is
of whole runs, with their starts (``"meter": "run"``), are of another meter, and in no sum.
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memplan.cost import speed
from memplan.errors import MemplanError
from memplan.resolve import resolve
from memplan.spec.reading import read_job

DATA = Path(__file__).resolve().parent / "data" / "throughput.json"
CLOSE = 0.3


class Held(NamedTuple):
    """A row, and what was estimated for it: tokens per second and GPU."""

    set: str
    id: str
    asked: tuple[object, ...]
    """What layouts are compared for: model, card, cards, length."""
    back: bool
    """Of a source that is held back."""
    run: bool
    """Of a source whose figure is of whole runs."""
    published: float
    before: float | None
    low: float
    expected: float
    high: float

    @property
    def error(self) -> float:
        """Share by which the estimate is off."""
        return self.expected / self.published - 1


def rows() -> Iterator[tuple[dict[str, Any], dict[str, Any], bool]]:
    """Each published row, with its source's meter and its whole job, and whether its source is held back."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    for row in data["rows"]:
        model, of = data["models"].get(row["model"], row["model"]), data["sets"][row["set"]]
        yield (
            {"meter": of.get("meter", "step"), **row},
            {**of["job"], **row["job"], "model": model},
            row.get("held_back", of["held_back"]),
        )


def held() -> tuple[list[Held], Counter[tuple[str, str]]]:
    """Every row that memplan can describe, and how many it cannot, by set and reason."""
    found, refused = [], Counter[tuple[str, str]]()
    for row, job, back in rows():
        try:
            estimate = speed(resolve(read_job(job)))
        except MemplanError as error:
            refused[row["set"], error.message] += 1
            continue
        gpus = job["num_gpus"]
        asked = (row["set"], row["model"], job["gpu"], gpus, job["sequence_length"])
        low, expected, high = (
            each / gpus for each in (estimate.tokens_range[0], estimate.tokens_per_second, estimate.tokens_range[1])
        )
        published, run = row["tokens_per_second"], row["meter"] == "run"
        found.append(Held(row["set"], row["id"], asked, back, run, published, row.get("before"), low, expected, high))
    return found, refused


def ranks(values: list[float]) -> list[float]:
    """Rank of each value from 1 on; equal ones share the mean of theirs."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    return [first[value] + (ordered.count(value) + 1) / 2 for value in values]


def correlation(of: list[Held]) -> float:
    """Spearman's rank correlation of estimates and published figures."""
    return statistics.correlation(ranks([row.expected for row in of]), ranks([row.published for row in of]))


def regrets(of: list[Held]) -> list[float]:
    """Of each question with three layouts or more, the speed that the first loses against the best."""
    asked: dict[tuple[object, ...], list[Held]] = {}
    for row in of:
        asked.setdefault(row.asked, []).append(row)
    layouts = [each for each in asked.values() if len(each) > 2]
    best = [max(each, key=lambda row: row.expected).published for each in layouts]
    return [1 - first / max(row.published for row in each) for first, each in zip(best, layouts, strict=True)]


def line(title: str, of: list[Held]) -> str:
    """One group of the table."""
    errors = [row.error for row in of]
    absolute = sorted(map(abs, errors))
    former = [abs(row.before / row.published - 1) for row in of if row.before]
    before = f"{100 * statistics.median(former):>7.1f} %" if former else f"{'':>9}"
    spearman = f"{correlation(of):.3f}" if len(of) > 2 else ""
    lost = regrets(of)
    regret = f"{100 * statistics.median(lost):.1f} %" if lost else ""
    close = 100 * sum(error <= CLOSE for error in absolute) / len(of)
    inside = sum(row.low <= row.published <= row.high for row in of)
    return (
        f"{title:20}{len(of):>5}{100 * statistics.median(errors):>+8.1f} %{before}"
        f"{100 * statistics.median(absolute):>7.1f} %{100 * absolute[int(0.9 * len(of))]:>7.1f} %{close:>6.0f}"
        f"{spearman:>8}{regret:>9}{inside:>9}"
    )


def groups(found: Iterable[Held]) -> Iterator[tuple[str, list[Held]]]:
    """By set; what was seen, what is held back, and all."""
    found = list(found)
    for name in dict.fromkeys(row.set for row in found):
        yield name, [row for row in found if row.set == name]
    found = [row for row in found if not row.run]
    yield "seen", [row for row in found if not row.back]
    yield "held back", [row for row in found if row.back]
    yield "all", found


def main() -> None:
    """Print the table, and each row with --rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", metavar="SET", help="each row too, of these sets or all")
    wanted = parser.parse_args().rows
    found, refused = held()
    print(
        f"{'':20}{'rows':>5}{'error':>10}{'before':>9}{'|error|':>9}{'90 in 100':>9}{'<=30':>6}"
        f"{'ranks':>8}{'regret':>9}{'in band':>9}"
    )
    for title, of in groups(found):
        print(line(title, of))
    for (name, reason), count in refused.items():
        print(f"refused: {count} of {name}: {reason}")
    for row in sorted(found, key=lambda row: row.error) if wanted is not None else ():
        if not wanted or row.set in wanted:
            print(f"{row.set:16} {row.id:40}{row.published:>10.0f}{row.expected:>10.0f}{100 * row.error:>+8.1f} %")


if __name__ == "__main__":
    main()
