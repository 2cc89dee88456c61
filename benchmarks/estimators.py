"""Rules that people estimate by, on memplan's own rows of truth: full training with AdamW on one GPU, allocated.

Each rule gets what it asks for, and is held against the same measured peaks; a row that a rule has no formula for is
left out of its count. A rule that knows nothing of batch and length can only be right by chance: it is here because
people use it for this.

    python benchmarks/estimators.py [--format markdown]
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from memplan.errors import MemplanError
from memplan.render.thumb_view import rule_terms
from memplan.report import Report
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.rule_of_thumb import total
from memplan.spec.reading import read_job
from memplan.truth import read_sets


def sixteen_bytes(report: Report) -> int:
    """Model states under mixed precision: 2 of weights, 2 of gradients, 12 of Adam's. Source: arXiv:1910.02054, 3.1."""
    return 16 * report.model.params.total


def accelerate_rule(report: Report) -> int:
    """Peak of "training using Adam" for a batch of one: 4 × the fp32 model in fp32, 2 × it in 16 bit. Source:
    accelerate, commands/estimate.py, estimate_training_usage: the largest of model, gradients, optimizer and step."""
    assert report.recipe is not None
    whole = report.recipe.storage.precision.dtype == "fp32"
    return (16 if whole else 8) * report.model.params.total


def thumb(report: Report) -> int:
    """memplan's own page of closed formulas, its margin of a fifth with it (memplan/rule_of_thumb.py)."""
    return total(rule_terms(report))


def memplan(report: Report) -> int:
    """What memplan says."""
    return report.per_gpu.allocated_bytes


RULES: dict[str, Callable[[Report], int]] = {
    "16 bytes a parameter (ZeRO's paper)": sixteen_bytes,
    "accelerate estimate-memory, training using Adam": accelerate_rule,
    "closed formulas and 20 % (memplan --rule-of-thumb)": thumb,
    "memplan": memplan,
}


class Row(NamedTuple):
    """One measured peak and the report of its job."""

    id: str
    kind: str
    measured: int
    report: Report


def rows() -> Iterator[Row]:
    """Every estimated row of full training with AdamW on one GPU that tells the allocated peak."""
    for of in read_sets():
        for row in of.rows:
            if row.unusable or "allocated" not in row.meters or row.job.get("num_gpus", 1) != 1:
                continue
            try:
                report = build_report(resolve(read_job(row.job)))
            except MemplanError:
                continue
            params = report.model.params
            if report.job["optimizer"] == "adamw" and params.trainable == params.total:
                yield Row(row.id, of.kind, row.meters["allocated"], report)


def errors(rule: Callable[[Report], int], found: list[Row]) -> Iterator[tuple[float, str]]:
    """Estimated / measured - 1 of each row that the rule has a formula for."""
    for row in found:
        with suppress(MemplanError):
            yield rule(row.report) / row.measured - 1, row.id


def table(found: list[Row]) -> list[str]:
    """A line of Markdown for each rule."""
    lines = ["| rule | rows | too low | median % | worst % | worst row |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    for name, rule in RULES.items():
        each = list(errors(rule, found))
        median = 100 * statistics.median(abs(error) for error, _ in each)
        worst, where = max(each, key=lambda item: abs(item[0]))
        low = sum(error < -0.01 for error, _ in each)
        lines.append(f"| {name} | {len(each)} | {low} | {median:.4g} | {100 * worst:+.4g} | {where} |")
    return lines


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=("markdown",), default="markdown")
    parser.parse_args()
    found = list(rows())
    kinds = ", ".join(
        f"{sum(row.kind == kind for row in found)} {kind}" for kind in dict.fromkeys(r.kind for r in found)
    )
    print(f"{len(found)} rows of one GPU, all parameters trained with AdamW: {kinds}.\n")
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
