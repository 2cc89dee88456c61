"""Files of ``memplan calibrate``: a card with its own rates beside the published ones."""

from __future__ import annotations

import json
from functools import lru_cache
from os import stat

from pydantic import ValidationError

from memplan.errors import InvalidJob
from memplan.spec.gpu import FACTORS, Calibration, Gpu

HINT = "memplan calibrate RUNS --output rates.json writes one"


def calibrated(gpu: Gpu, path: str | None) -> tuple[Gpu, str]:
    """The card with a file's rates, and what is said of it; the card as it is without a file, or with another's.

    Raises InvalidJob for a file that is none."""
    if path is None:
        return gpu, ""
    found = read_calibration(path)
    if found.gpu != gpu.name:
        return gpu, f"calibration: {path} is of {found.gpu}: speeds of {gpu.name} are by published rates"
    said = [f"speeds by {path}, of {found.runs} measured run{'s'[: found.runs != 1]}"] if found.runs else []
    if found.engine:
        starts = found.engine.starts
        said.append(f"the engine's own constants by {path}, of {starts} start{'s'[: starts != 1]}")
    return _with(gpu, found), "calibration: " + "; ".join(said)


def read_calibration(path: str) -> Calibration:
    """The file's content. Raises InvalidJob."""
    try:
        known = stat(path)
    except (OSError, ValueError):
        raise InvalidJob(f"calibration: no such file: {path[:200]!r}", HINT) from None
    return _read(path, known.st_mtime_ns, known.st_size)


@lru_cache(maxsize=16)
def _read(path: str, changed: int, size: int) -> Calibration:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        found = Calibration(**{key: data[key] for key in Calibration.model_fields if key in data})
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        raise InvalidJob(f"calibration: {path} is not a file of rates", HINT) from None
    if found.covariance and len(found.covariance) != len(FACTORS):
        raise InvalidJob(f"calibration: covariance of {path} has {len(found.covariance)} rows", HINT)
    return found


@lru_cache(maxsize=16)
def _with(gpu: Gpu, found: Calibration) -> Gpu:
    """The same object for the same card and rates."""
    return gpu.but(calibration=found)
