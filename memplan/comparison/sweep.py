"""Sweeps: a grid of jobs from a file, and the row of each, from the engine's totals alone.

A row's id is a hash of its job's keys, so it is the same in every run, part and order, and says which rows are there
already. ::

    base: {model: llama-3.1-8b, method: dpo, gpu: h100-80gb, gradient_checkpointing: full}
    vary: {batch_size: [1, 2, 4], zero_stage: [2, 3], lora.r: [8, 16]}
    jobs: [{num_gpus: 8}, {num_gpus: 16, offload: [optimizer]}]"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from memplan.comparison.grid import Axis, applied, axis, known_key, placed, point_of, size_of
from memplan.cost import card, examples_per_step, seconds
from memplan.errors import InvalidJob, MemplanError, UsageError
from memplan.lengths.longest import at_longest
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, build_job, normalise
from memplan.spec.recipe import Recipe
from memplan.tables.choices import TRAINING_ONLY
from memplan.units import words_of
from memplan.yaml_lines import Fields, fields_of, read_yaml

FIGURES = words_of(
    """fits allocated_bytes allocated_low_bytes allocated_high_bytes reserved_bytes device_bytes device_high_bytes
    forward_bytes backward_bytes step_bytes host_bytes_per_node usable_bytes headroom_bytes tokens_per_second"""
)
"""What a row says of a job, as a report does; empty where there is an error."""
LONGEST = 300
"""Characters of an error's message in a row."""


class Grid(NamedTuple):
    """Every job of ``jobs``, over ``base``, at every point of the axes."""

    base: dict[str, Any]
    """Keys that all jobs share."""
    jobs: tuple[dict[str, Any], ...]
    """Keys of each job; one without keys where the file lists none."""
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.jobs) * size_of(self.axes)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that are not the same in all rows, in the order of the file; columns of the rows."""
        own = (key for job in self.jobs for key in job)
        return tuple(dict.fromkeys((*own, *(each.key for each in self.axes))))

    @property
    def columns(self) -> tuple[str, ...]:
        """What every row has."""
        return ("id", *self.keys, *FIGURES, "error", "hint", "warnings")

    def point(self, number: int) -> dict[str, Any]:
        """The keys of row ``number`` that are its own."""
        job, at = divmod(number, size_of(self.axes))
        return {**self.jobs[job], **point_of(self.axes, at)}

    def part(self, number: int, parts: int) -> range:
        """The rows of part ``number``, from 1; parts one after the other are all rows in order."""
        return range((number - 1) * self.size // parts, number * self.size // parts)


def read_grid(path: Path, over: Mapping[str, Any]) -> Grid:
    """The grid of a file, with ``over`` (canonical keys) over its base. Raises InvalidJob, naming file and line."""
    fields = fields_of(read_yaml(path, "jobs"), path, "the file", ("base", "vary", "jobs"))
    base, _ = normalise(_keys(fields.mapping("base")))
    axes = tuple(_axis(fields.mapping("vary"), key) for key in fields.mapping("vary").values)
    jobs = tuple(_jobs(fields))
    grid = Grid(applied(base, over), jobs, axes)
    for key in over:
        if key in (each.split(".")[0] for each in grid.keys):
            raise UsageError(f"{key} is given, and varies in {path}", "leave one of them out")
    if not (axes or fields.values.get("jobs")):
        raise InvalidJob(f"{path}: nothing varies", "list values under `vary:`, or jobs under `jobs:`")
    twice = [each.key for each in axes if sum(each.key == other.key for other in axes) > 1]
    both = twice or [each.key for each in axes if any(each.key in job for job in jobs)]
    if both:
        raise InvalidJob(f"{path}: {both[0]} is there twice", "keep it under `vary:` once, or under `jobs:`")
    return grid


def _keys(fields: Fields) -> dict[str, Any]:
    """The keys of a mapping, dotted ones put inside. Raises InvalidJob for one that is unknown, with its line."""
    found = {}
    for key, value in fields.values.items():
        found[key if key.replace("-", "_") in TRAINING_ONLY else _known(fields, key)] = value
    return placed(found)


def _known(fields: Fields, key: str) -> str:
    try:
        return known_key(key)
    except InvalidJob as error:
        raise fields.error(key, error.message, error.hint) from None


def _axis(fields: Fields, key: str) -> Axis:
    values = fields.values[key]
    if not isinstance(values, list):
        raise fields.error(key, "not a list of values", f"write {key}: [1, 2]")
    try:
        return axis(key, values)
    except UsageError as error:
        raise fields.error(key, error.message.removeprefix(f"{key}: "), error.hint) from None


def _jobs(fields: Fields) -> list[dict[str, Any]]:
    """The keys of each entry under ``jobs``; one without keys where there is no list."""
    if "jobs" not in fields:
        return [{}]
    node = fields.nested["jobs"]
    if not isinstance(fields.values["jobs"], list) or not node.value:
        raise fields.error("jobs", "not a list of jobs", "write one `- key: value` under `jobs:` for each")
    return [_keys(fields_of(item, fields.path, f"job {number}")) for number, item in enumerate(node.value, start=1)]


def row_id(grid: Grid, number: int) -> str:
    """16 hexadecimal digits that stand for the keys of a row's job, in whatever order they are written."""
    point = grid.point(number)
    try:
        values = applied(grid.base, point)
    except MemplanError:
        values = grid.base | point
    text = json.dumps(values, sort_keys=True, default=str, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]


def row_of(grid: Grid, number: int) -> dict[str, Any]:
    """The row of one job; what goes wrong with it is in the row itself."""
    point = grid.point(number)
    row = {"id": row_id(grid, number), **{key: point.get(key) for key in grid.keys}}
    try:
        values = applied(grid.base, point)
        recipe = resolve(at_longest(JobInput(build_job(values), dict.fromkeys(values, "file"))))
        return row | figures(recipe) | {"warnings": _short("; ".join(recipe.provenance.warnings)) or None}
    except MemplanError as error:
        return row | {"error": _short(error.message), "hint": _short(error.hint)}
    except Exception as error:  # a bug in one row is told there, and does not cost the others
        return row | {"error": _short(f"internal error: {type(error).__name__}: {error}"), "hint": "please report it"}


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"


def figures(recipe: Recipe) -> dict[str, Any]:
    """Every figure of a recipe, as ``build_report`` has it, to the byte."""
    found = peak(recipe)
    verdict = found.verdict
    values = (
        verdict.fits if verdict else None,
        found.allocated.expected,
        found.allocated.low,
        found.allocated.high,
        found.reserved.expected,
        found.device.expected,
        found.device.high,
        *(found.phases.get(phase) for phase in ("forward", "backward", "step")),
        found.host.bytes_per_node,
        verdict.usable_bytes if verdict else None,
        verdict.headroom_bytes if verdict else None,
        tokens_per_second(recipe),
    )
    return dict(zip(FIGURES, values, strict=True))


def tokens_per_second(recipe: Recipe) -> float | None:
    """Of all GPUs, expected, by the cost model; None without a card."""
    if recipe.hardware.gpu is None:
        return None
    tokens = recipe.rows // recipe.batch.size * examples_per_step(recipe) * recipe.batch.sequence_length
    return round(tokens / seconds(recipe, card(recipe.hardware.gpu)), 1)
