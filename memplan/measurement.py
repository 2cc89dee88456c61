"""What a measurement is: one small JSON file, with the keys of a row of ``presets/measurements``. Plain data.

``memplan measure`` writes it, and so does a training script with the callback."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplan.report import Report

SCHEMA_VERSION = 1
METERS = ("allocated_bytes", "reserved_bytes", "device_bytes")


@dataclass(slots=True, eq=False)
class Measurement:
    """One job on one machine."""

    job: dict[str, Any]
    """The resolved job, at the batch size that was measured; empty where no estimate could be made."""
    measured: dict[str, Any]
    """Bytes by meter, and ``phases``; of the rank that allocated most. Empty where nothing fitted."""
    meter: str
    """How ``allocated_bytes`` was read."""
    estimated: dict[str, Any]
    """memplan's own figures for the same job."""
    out_of_memory: dict[str, Any] | None
    """Where it ran out (phase, step, batch_size): the job itself, or the next batch size of a search."""
    ranks: list[dict[str, Any]]
    """What each rank measured."""
    steps: int
    weights: str
    """random, or where they came from."""
    largest_batch_size: int | None
    """What a search found; 0 where nothing fits, None without a search."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    source: str

    @property
    def id(self) -> str:
        """A name that tells jobs and machines apart."""
        model = self.job.get("model")
        name = model.rstrip("/").split("/")[-1] if isinstance(model, str) else dict(model or {}).get("model_type", "")
        whole = json.dumps([self.job, self.hardware, self.versions, self.weights], sort_keys=True, default=str)
        digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
        shape = f"b{self.job['batch_size']}-s{self.job['sequence_length']}" if self.job else "run"
        words = (name, self.job.get("method", ""), shape, str(self.hardware["device"]), digest)
        return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-")

    def to_dict(self) -> dict[str, Any]:
        """The JSON. What does not apply is absent, never invented."""
        found: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "id": self.id,
            "job": self.job or None,
            "measured": self.measured,
            "meter": self.meter,
            "estimated": self.estimated or None,
        }
        if self.out_of_memory is not None:
            found["out_of_memory"] = self.out_of_memory
        if self.largest_batch_size is not None:
            found["largest_batch_size"] = self.largest_batch_size
        if len(self.ranks) > 1:
            found["ranks"] = self.ranks
        rest = {"steps": self.steps, "weights": self.weights, "hardware": self.hardware}
        return found | rest | {"versions": self.versions, "source": self.source}


def estimated_of(report: Report) -> dict[str, Any]:
    """The figures of an estimate that a measurement can be held against."""
    gpu = report.to_dict()["per_gpu"]
    return {key: gpu[key] for key in (*METERS, "peak_instant", "phases")}


def job_of(report: Report) -> dict[str, Any]:
    """The resolved job without what is left empty, so that it reads as a job again."""
    return {key: value for key, value in report.to_dict()["job"].items() if value is not None}


def of_peak(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The readings of the rank that allocated most."""
    return max(ranks, key=lambda rank: rank["allocated_bytes"])


def errors_of(measurement: Measurement) -> Mapping[str, tuple[int, int]]:
    """(estimated, measured) bytes for each phase and meter that was measured."""
    found: dict[str, tuple[int, int]] = {}
    for phase, size in measurement.measured.get("phases", {}).items():
        found[phase] = (measurement.estimated["phases"][phase], size)
    for key in METERS:
        if key in measurement.measured:
            figure = measurement.estimated[key]
            expected = figure["expected"] if isinstance(figure, dict) else figure
            found[key.removesuffix("_bytes")] = (expected, measurement.measured[key])
    return found
