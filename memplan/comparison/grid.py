"""Keys that take several values: axes, the points of their grid, and the job at each point."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from memplan.comparison.pricing import Case
from memplan.errors import KEYS_ARE_LISTED, InvalidJob, UsageError, did_you_mean
from memplan.gpus import find_gpu
from memplan.spec.job import Job
from memplan.spec.lora import Lora
from memplan.spec.plain import check_plain
from memplan.spec.reading import JobInput, build_job, canonical_key, merged, normalise, unanswered
from memplan.tables.choices import ALIASES, TRAINING_ONLY

SHORTHANDS = ("use_lora", "load_in_4bit", "load_in_8bit")
MOST_CASES = 2000
"""Full reports in one comparison; more is a sweep."""


class Axis(NamedTuple):
    """A job key, dotted where it is inside another, and the values that it takes."""

    key: str
    values: tuple[Any, ...]


def axis(key: str, values: Sequence[Any]) -> Axis:
    """An axis whose key is known and whose values differ. Raises InvalidJob or UsageError."""
    if not isinstance(key, str) or not isinstance(values, (list, tuple)):
        raise UsageError("what varies is no key with a list of values", 'write {"batch_size": [1, 2]}')
    name = known_key(key)
    check_plain({key: values})
    if not values:
        raise UsageError(f"{key}: no values to vary", f"write several, such as {key}=1,2")
    written = [json.dumps(value, sort_keys=True, default=str) for value in values]
    twice = next((value for value, text in zip(values, written, strict=True) if written.count(text) > 1), None)
    if twice is not None:
        raise UsageError(f"{key}: {value_words(twice)[:60]} is there twice", "leave one of them out")
    if name == "gpu":
        for value in values:
            find_gpu(str(value))
    return Axis(name, tuple(values))


def known_key(key: str) -> str:
    """'lora-r' -> 'lora.r'. Raises InvalidJob for a key that no job has."""
    first, *inner = key.strip().split(".")
    name = canonical_key(first)
    if name.startswith("lora_") and name.removeprefix("lora_") in Lora.model_fields:
        name = f"lora.{name.removeprefix('lora_')}"
    if name.split(".")[0] not in Job.model_fields and name not in SHORTHANDS:
        if name in TRAINING_ONLY:
            raise InvalidJob(f"{name} has no effect on memory", "vary a key that has, such as batch_size")
        hint = did_you_mean(name, [*Job.model_fields, *ALIASES], KEYS_ARE_LISTED)
        raise InvalidJob(f"unknown key {first[:80]!r}", hint)
    return ".".join((name, *inner))


def placed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'lora.r': 8} -> {'lora': {'r': 8}}; None stays, and means that the key is not given."""
    values: dict[str, Any] = {}
    for path, value in flat.items():
        first, *inner = path.split(".")
        nested = value
        for name in reversed(inner):
            nested = {name: nested}
        both = isinstance(nested, dict) and isinstance(values.get(first), dict) and first != "model"
        values[first] = _joined(values[first], nested) if both else nested
    return values


def _joined(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    found = dict(low)
    for key, value in high.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _joined(found[key], value) if both else value
    return found


def applied(values: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a job with those of a point over them; None takes one away."""
    point, _ = normalise(placed(flat))
    found = merged(dict(values), point)
    return {key: value for key, value in found.items() if key not in point or value is not None}


def size_of(axes: Sequence[Axis]) -> int:
    """How many points a grid has; one without axes."""
    return prod(len(each.values) for each in axes)


def point_of(axes: Sequence[Axis], number: int) -> dict[str, Any]:
    """Point ``number`` of the grid, the last axis running fastest."""
    found = []
    for each in reversed(axes):
        number, at = divmod(number, len(each.values))
        found.append((each.key, each.values[at]))
    return dict(reversed(found))


def varied(given: JobInput, flat: Mapping[str, Any]) -> JobInput:
    """The job at a point. Raises InvalidJob for a value that cannot be."""
    values = applied(given.job.model_dump(exclude_unset=True), flat)
    keys = placed(flat)
    sources = {key: "option" if key in keys else given.sources.get(key, "option") for key in values}
    return given._replace(
        job=build_job(values),
        sources=sources,
        spec=None if "model" in keys else given.spec,
        unread=unanswered(given.unread, keys),
    )


def cases_of(jobs: Sequence[tuple[str, JobInput]], axes: Sequence[Axis]) -> list[Case]:
    """Every job at every point of the grid; the first of each is the baseline."""
    repeated = [key for key in dict.fromkeys(each.key for each in axes) if sum(key == e.key for e in axes) > 1]
    if repeated:
        raise UsageError(f"{repeated[0]} is varied twice", "put all its values into one list")
    names = [name for name, _ in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is there twice", "name each model or file once")
    count = len(jobs) * size_of(axes)
    if count > MOST_CASES:
        raise UsageError(f"{count} jobs are too many for one table", "write a sweep: memplan compare --grid grid.yaml")
    first = jobs[0][1].job.model_dump(exclude_unset=True)
    cases = []
    for (name, given), values in product(jobs, product(*(each.values for each in axes))):
        point = dict(zip((each.key for each in axes), values, strict=True))
        own = _unlike(first, given) if len(jobs) > 1 else {}
        words = [name] if len(jobs) > 1 or not axes else []
        title = ", ".join([*words, *(f"{key} {value_words(value)}" for key, value in point.items())])
        written = " ".join([*words, *(f"{key}={value_words(value)}" for key, value in point.items())])
        cases.append(Case(written, title, own | point, varied(given, point) if point else given))
    return cases


def _unlike(first: Mapping[str, Any], given: JobInput) -> dict[str, Any]:
    """The keys given to a job that the first job has not, or has otherwise; None for what only the first has."""
    own = given.job.model_dump(exclude_unset=True)
    return {
        key: own.get(key) for key in (*own, *(key for key in first if key not in own)) if own.get(key) != first.get(key)
    }


def value_words(value: Any) -> str:
    """A value as one writes it on a command line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, default=str)
