"""The cost model against published throughputs: rank correlation and error, by source and by card.

``benchmarks/data/throughput.json`` holds the rows with their sources. ``error`` is estimate over published tokens per
second, less one; ``ranks`` is Spearman's correlation of the two within a group; ``in band`` says how many published
figures lie between those at the low and the high rates.
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


class Held(NamedTuple):
    """A row, and what was estimated for it: tokens per second and GPU."""

    set: str
    id: str
    gpu: str
    published: float
    low: float
    expected: float
    high: float

    @property
    def error(self) -> float:
        """Share by which the estimate is off."""
        return self.expected / self.published - 1


def rows() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each published row with its whole job."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    for row in data["rows"]:
        model = data["models"].get(row["model"], row["model"])
        yield row, {**data["sets"][row["set"]]["job"], **row["job"], "model": model}


def held() -> tuple[list[Held], Counter[tuple[str, str]]]:
    """Every row that memplan can describe, and how many it cannot, by set and reason."""
    found, refused = [], Counter[tuple[str, str]]()
    for row, job in rows():
        try:
            estimate = speed(resolve(read_job(job)))
        except MemplanError as error:
            refused[row["set"], error.message] += 1
            continue
        gpus = job["num_gpus"]
        low, high = estimate.tokens_range
        figures = (low / gpus, estimate.tokens_per_second / gpus, high / gpus)
        found.append(Held(row["set"], row["id"], job["gpu"], row["tokens_per_second"], *figures))
    return found, refused


def ranks(values: list[float]) -> list[float]:
    """Rank of each value from 1 on; equal ones share the mean of theirs."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    return [first[value] + (ordered.count(value) + 1) / 2 for value in values]


def correlation(of: list[Held]) -> float:
    """Spearman's rank correlation of estimates and published figures."""
    return statistics.correlation(ranks([row.expected for row in of]), ranks([row.published for row in of]))


def line(title: str, of: list[Held]) -> str:
    """One group of the table."""
    errors = [row.error for row in of]
    spearman = f"{correlation(of):.3f}" if len(of) > 2 else ""
    inside = sum(row.low <= row.published <= row.high for row in of)
    median, absolute = statistics.median(errors), statistics.median(map(abs, errors))
    worst = max(errors, key=abs)
    return (
        f"{title:28}{len(of):>6}{spearman:>8}{100 * median:>+9.1f} %{100 * absolute:>8.1f} %{100 * worst:>+8.1f} %"
        f"{inside:>9}"
    )


def groups(found: Iterable[Held]) -> Iterator[tuple[str, list[Held]]]:
    """By set, by set and card where a set has several, and all."""
    found = list(found)
    for name in dict.fromkeys(row.set for row in found):
        of = [row for row in found if row.set == name]
        yield name, of
        cards = dict.fromkeys(row.gpu for row in of)
        for gpu in cards if len(cards) > 1 else ():
            yield f"  {gpu}", [row for row in of if row.gpu == gpu]
    yield "all", found


def main() -> None:
    """Print the table, and each row with --rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="each row too")
    found, refused = held()
    print(f"{'':28}{'rows':>6}{'ranks':>8}{'error':>11}{'|error|':>10}{'worst':>10}{'in band':>9}")
    for title, of in groups(found):
        print(line(title, of))
    for (name, reason), count in refused.items():
        print(f"refused: {count} of {name}: {reason}")
    if parser.parse_args().rows:
        for row in sorted(found, key=lambda row: row.error):
            print(f"{row.set:16} {row.id:40}{row.published:>10.0f}{row.expected:>10.0f}{100 * row.error:>+8.1f} %")


if __name__ == "__main__":
    main()
