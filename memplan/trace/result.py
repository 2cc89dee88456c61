"""What a trace found: bytes of each phase, what they are, where the peak is, the timeline. Plain data.

The timeline of a trace as an SVG: bytes by category over the two steps, stacked, the peak marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplan import errors, timeline
from memplan.render import svg
from memplan.render.svg import LEFT
from memplan.render.timeline_svg import GAP, HEAD, PANEL, PHASES, panel
from memplan.report import plain
from memplan.units import format_count

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


FIRST = "-1"
"""What names of phases of the first step end in."""


def timeline_svg(trace: Trace) -> str:
    """The picture: the timeline as one curve, whose peak is named by the operation that made it."""
    largest = max(trace.phases, key=lambda phase: phase.allocated_bytes)
    said = f"{largest.operation} in {largest.module}"
    points = [timeline.Point(said, _words(at.phase), at.allocated_bytes, at.by_category, None, at.event)
              for at in trace.timeline]  # fmt: skip
    curve = timeline.Curve(timeline.TRACED, _title(trace), "allocated", 1, said, trace.allocated_bytes, tuple(points))
    parts = [svg.text(LEFT, 30, _title(trace), "ink title"), svg.text(LEFT, 50, _subtitle(trace), "faint small")]
    parts += panel(curve, timeline.Timeline((), None, None, None, (curve,)), HEAD + GAP)
    return svg.document(_title(trace), HEAD + GAP + PANEL + PHASES + 10, parts)


def _words(phase: str) -> str:
    return f"first {phase.removesuffix(FIRST)}" if phase.endswith(FIRST) else phase


def _title(trace: Trace) -> str:
    job = trace.job
    gpus = f" on {job['num_gpus']} GPUs, {job['sharding']}: rank 0" if job.get("num_gpus", 1) > 1 else ""
    return f"{job.get('method')} with {job.get('optimizer')}, {format_count(trace.parameters)} parameters{gpus}"


def _subtitle(trace: Trace) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in trace.versions.items())
    return f"memory allocated over two traced steps: the first makes the optimizer's states · {versions}"
