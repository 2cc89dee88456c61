"""The rule of thumb beside the engine, term by term, with the reason for each difference."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from memplan.errors import InternalError
from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table
from memplan.render.instants import instant_words
from memplan.report import Report
from memplan.rule_of_thumb import REASONS, Term, rule_of_thumb, subtotal, total
from memplan.units import DTYPE_BYTES, format_bytes, parse_count

REASON_OF = {"gathered_parameters": "buffers", "autocast_weights": "parameters", "extra_models": "reference"}
"""Categories of the engine that the reason of another one covers."""
OTHER_REASONS = {"temporaries": "Missing from the rule: gradients in flight, and what an operation needs for a moment."}


def rule_terms(report: Report) -> list[Term]:
    """The rule's lines for a report's job. Raises InvalidJob for what the rule has no formula for."""
    recipe = report.recipe
    if recipe is None:
        raise InternalError("a report without its recipe has no rule of thumb")
    spec = recipe.model
    params = _parameters(report)
    whole = report.model.params.trainable == report.model.params.total
    return rule_of_thumb(
        params=params,
        trainable=params if whole else report.model.params.trainable,
        hidden=spec.hidden_size,
        heads=spec.num_heads,
        layers=spec.num_layers,
        batch=recipe.batch.size * recipe.batch.group,
        length=recipe.batch.sequence_length,
        dtype_bytes=DTYPE_BYTES[recipe.storage.precision.dtype],
        optimizer=recipe.optimizer.row.name,
        num_gpus=recipe.sharding.ranks,
        zero_stage=3 if recipe.sharding.name == "fsdp2" else max(0, recipe.zero_stage),
        checkpointing=recipe.checkpointing.layers,
        pairs=recipe.method.pairs,
        images_bytes=recipe.image_bytes * recipe.batch.size * recipe.batch.group,
    )


def _parameters(report: Report) -> int:
    """The number that the user wrote, where only a number was given; else the model's own."""
    written = report.job.get("total_params")
    return parse_count(written) if written is not None else report.model.params.total


def largest_by_category(report: Report) -> dict[str, int]:
    """The most that each category has allocated at any instant."""
    position = {instant.name: number for number, instant in enumerate(report.per_gpu.instants)}
    changes: dict[str, list[int]] = {}
    for row in report.per_gpu.ledger:
        if row.meter == "allocated" and row.place == "gpu":
            steps = changes.setdefault(row.category, [0] * (len(position) + 1))
            steps[position[row.born]] += row.bytes
            steps[position[row.dies] + 1] -= row.bytes
    return {category: _highest(steps) for category, steps in changes.items()}


def _highest(steps: list[int]) -> int:
    level = highest = 0
    for step in steps:
        level += step
        highest = max(highest, level)
    return highest


def thumb_data(report: Report) -> dict[str, Any]:
    """The rule, the engine's figure for each of its terms and for what it lacks, and the reasons."""
    terms = rule_terms(report)
    at_peak, largest = report.per_gpu.by_category, largest_by_category(report)
    rows = [
        {
            **asdict(term),
            "engine_peak_bytes": at_peak.get(term.key, 0),
            "engine_largest_bytes": largest.get(term.key, 0),
        }
        for term in terms
        if term.key != "margin"
    ]
    known = {term.key for term in terms}
    for category in sorted(largest.keys() - known, key=lambda name: -largest[name]):
        engine = {"engine_peak_bytes": at_peak.get(category, 0), "engine_largest_bytes": largest[category]}
        name = words.category_title(category)
        rows.append({"name": name, "key": category, "bytes": 0, "formula": "", "numbers": "", **engine})
    for row in rows:
        row["reason"] = reason(str(row["key"])) if row["bytes"] != row["engine_largest_bytes"] else ""
    margin = terms[-1]
    return {
        "terms": rows,
        "subtotal_bytes": subtotal(terms),
        "margin_bytes": margin.bytes,
        "margin_reason": REASONS["margin"],
        "total_bytes": total(terms),
        "engine_allocated_bytes": report.per_gpu.allocated_bytes,
    }


def reason(category: str) -> str:
    """Why the engine's figure of a category is another."""
    return OTHER_REASONS.get(category) or REASONS.get(REASON_OF.get(category, category), "Missing from the rule.")


def thumb_blocks(report: Report) -> list[Block]:
    """The table of terms, the reasons, and the formulas with their numbers."""
    data = thumb_data(report)
    at = instant_words(report.per_gpu.peak_instant)[0]
    return [
        Heading(f"{report.model.name}: the rule of thumb beside the engine, on {report.per_gpu.rank}", "strong"),
        _figures(data),
        Prose(f"The engine's peak is at {at}; the last column is the most of a term at any instant.", "dim"),
        Heading("Why they differ"),
        *_reasons(data),
        Heading("The rule's formulas"),
        Table((Column(wrap=True), Column(wrap=True)), tuple(_formulas(data))),
    ]


def _figures(data: dict[str, Any]) -> Table:
    columns = (
        Column("term"),
        Column("rule", right=True),
        Column("engine,\nat its peak", right=True),
        Column("engine,\nat most", right=True),
    )
    rows: list[tuple[Cell, ...]] = []
    for row in data["terms"]:
        rule = format_bytes(row["bytes"]) if row["formula"] else "–"
        engine = (format_bytes(row["engine_peak_bytes"]), format_bytes(row["engine_largest_bytes"]))
        rows.append((row["name"], rule, *engine))
    peak = format_bytes(data["engine_allocated_bytes"])
    rows.append((Span("sum", "strong"), Span(format_bytes(data["subtotal_bytes"]), "strong"), Span(peak, "strong"), ""))
    rows.append(("margin of 20 %", format_bytes(data["margin_bytes"]), "", ""))
    rows.append((Span("with margin", "strong"), Span(format_bytes(data["total_bytes"]), "strong"), "", ""))
    return Table(columns, tuple(rows))


def _reasons(data: dict[str, Any]) -> Iterator[Block]:
    """One reason for all the terms that share it."""
    named: dict[str, list[str]] = {}
    for row in data["terms"]:
        if row["reason"]:
            named.setdefault(row["reason"], []).append(row["name"])
    named.setdefault(data["margin_reason"], []).append("margin")
    for text, names in named.items():
        yield Prose(f"{', '.join(names)}: {text}")


def _formulas(data: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for row in data["terms"]:
        if row["formula"]:
            yield (row["name"], f"{row['formula']} = {row['numbers']}")
