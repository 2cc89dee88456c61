"""What a trace found: bytes of each phase, what they are, where the peak is, the timeline. Plain data.

The timeline of a trace as an SVG: bytes by category over the two steps, stacked, the peak marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from memplan import errors
from memplan.render import svg
from memplan.render.svg import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale
from memplan.report import plain
from memplan.tables.categories import stacked
from memplan.units import GiB, format_bytes, format_count

SCHEMA_VERSION = 1


@dataclass(slots=True, eq=False)
class Phase:
    """The most that is allocated within a phase of the second step."""

    name: str
    """forward (with the loss, and scoring passes), backward or step."""
    allocated_bytes: int
    operation: str
    """The operation whose result made the peak."""
    module: str
    """The module that ran it, or whose forward made the node that ran."""
    by_category: dict[str, int]


@dataclass(slots=True, eq=False)
class Point:
    """The timeline at one event."""

    event: int
    phase: str
    """As a phase's name; those of the first step end in -1."""
    allocated_bytes: int
    by_category: dict[str, int]


@dataclass(slots=True, eq=False)
class Trace:
    """A traced job."""

    schema_version: int
    job: dict[str, Any]
    """The resolved job."""
    device: str
    """cuda for fake CUDA tensors; cpu for fake CPU tensors with CUDA's choices, where no compiler was found."""
    versions: dict[str, str]
    """Of torch, transformers and peft."""
    parameters: int
    trainable: int
    allocated_bytes: int
    """The largest of the phases."""
    steady_bytes: int
    """What stays between steps."""
    phases: tuple[Phase, ...]
    timeline: tuple[Point, ...]
    """Both steps, thinned; every slice keeps its largest."""
    seconds: float

    def phase(self, name: str) -> Phase:
        """A phase by its name."""
        return next(phase for phase in self.phases if phase.name == name)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Trace:
        """A trace from its JSON."""
        values = dict(found)
        values["phases"] = tuple(Phase(**phase) for phase in values["phases"])
        values["timeline"] = tuple(Point(**point) for point in values["timeline"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The JSON, as plain dicts, lists, numbers and strings."""
        found: dict[str, Any] = plain(self)
        return found


def read_answer(line: str) -> Trace:
    """A trace from its line. Raises the error that the line tells of."""
    found = json.loads(line)
    if "error" in found:
        kind = getattr(errors, found["error"]["kind"], errors.InternalError)
        raise kind(found["error"]["message"], found["error"]["hint"])
    return Trace.from_dict(found)


COLUMNS = 560
"""Points drawn: about one for a pixel and a half."""


def timeline_svg(trace: Trace) -> str:
    """The picture."""
    points = thinned(trace.timeline, COLUMNS)
    ticks = svg.gib_ticks(max(point.allocated_bytes for point in points))
    scale = Scale(points[-1].event, ticks[-1] * GiB)
    kinds = stacked({name for point in points for name in point.by_category})
    held = max(trace.phases, key=lambda phase: phase.allocated_bytes).by_category
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [
        svg.text(LEFT, 30, _title(trace), "ink title"),
        svg.text(LEFT, 50, _subtitle(trace), "faint small"),
        *_phases(points, scale),
        *svg.grid(ticks, scale),
        *svg.areas([(point.event, point.by_category) for point in points], kinds, scale),
        svg.axis(scale),
        svg.text(middle, HEIGHT - 14, "allocations and frees, in the program's order", "faint small", "middle"),
        *svg.legend(kinds, held, TOP),
        *_peak(trace, points, scale),
    ]
    return svg.document(_title(trace), HEIGHT, parts)


def thinned(points: tuple[Point, ...], count: int) -> list[Point]:
    """About so many of them; every slice keeps its largest, and the first and the last stay."""
    width = max(1, -(-len(points) // count))
    slices = (points[start : start + width] for start in range(0, len(points), width))
    picked = [max(each, key=lambda point: point.allocated_bytes) for each in slices]
    return [
        *([] if picked[0] is points[0] else points[:1]),
        *picked,
        *([] if picked[-1] is points[-1] else points[-1:]),
    ]


def _title(trace: Trace) -> str:
    job = trace.job
    gpus = f" on {job['num_gpus']} GPUs, {job['sharding']}: rank 0" if job.get("num_gpus", 1) > 1 else ""
    return f"{job.get('method')} with {job.get('optimizer')}, {format_count(trace.parameters)} parameters{gpus}"


def _subtitle(trace: Trace) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in trace.versions.items())
    return f"memory allocated over two traced steps: the first makes the optimizer's states · {versions}"


def _phases(points: list[Point], scale: Scale) -> list[str]:
    """Names under the axis, every second phase shaded; a line between the two steps."""
    parts, y = [], scale.y(0)
    runs = [(name, list(group)) for name, group in groupby(points, key=lambda point: point.phase)]
    shown = 0.0
    for number, (name, group) in enumerate(runs):
        after = runs[number + 1][1][0].event if number + 1 < len(runs) else scale.events
        left, right = scale.x(group[0].event), scale.x(after)
        if number % 2:
            parts.append(f'<rect class="step" x="{left}" y="{TOP}" width="{right - left:.1f}" height="{y - TOP}"/>')
        words, middle = name.removesuffix("-1"), (left + right) / 2
        if words != "end" and right - left > 7 * len(words) and middle > shown:
            parts.append(svg.text(middle, y + 18, words, "faint small", "middle"))
            shown = middle + 4 * len(words)
    second = next((point.event for point in points if point.phase == "forward"), scale.events)
    parts.append(f'<line class="axis" stroke-dasharray="3 4" x1="{scale.x(second)}" x2="{scale.x(second)}"'
                 f' y1="{TOP}" y2="{y + 40}"/>')  # fmt: skip
    for words, start, end in (("first step", 0, second), ("second step", second, scale.events)):
        parts.append(svg.text((scale.x(start) + scale.x(end)) / 2, y + 36, words, "ink small", "middle"))
    return parts


def _peak(trace: Trace, points: list[Point], scale: Scale) -> list[str]:
    """The largest moment of the second step, and who made it."""
    phase = max(trace.phases, key=lambda phase: phase.allocated_bytes)
    second = [point for point in points if point.phase == phase.name] or points
    at = max(second, key=lambda point: point.allocated_bytes)
    lines = (f"peak {format_bytes(phase.allocated_bytes)}", f"{phase.operation} in {phase.module}")
    return svg.peak(scale.x(at.event), scale.y(at.allocated_bytes), lines, TOP)
