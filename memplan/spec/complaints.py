"""Pydantic's complaints about a job in our words: the key, the value, and what to write in its place."""

import math
import re
from collections.abc import Collection
from typing import Any

from memplan.errors import KEYS_ARE_LISTED, InvalidJob, did_you_mean
from memplan.spec.job import Job


def as_invalid_job(error: Any, where: str, options: Collection[str] = ()) -> InvalidJob:
    """The first of Pydantic's complaints, in one line: of those about one value, the one that went furthest into it.
    ``where``: the file; ``options``: keys that are not of it."""
    complaints = error.errors(include_url=False)
    about = [each for each in complaints if each["loc"][0] == complaints[0]["loc"][0]]
    first = max(about, key=lambda each: len(each["loc"]))
    outer = str(first["loc"][0])
    kinds = ("str", "dict", "int", "float", "bool", "Cluster", "function-", "literal[", "tuple[")
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(kinds))
    where = "" if outer in options else where
    field = Job.model_fields.get(outer)
    inner = inner_fields(field.annotation if field else None)
    if first["type"] == "extra_forbidden":
        return InvalidJob(f"{where}unknown key {key!r}", did_you_mean(str(first["loc"][-1]), inner, KEYS_ARE_LISTED))
    if first["type"] == "missing":
        return InvalidJob(f"{where}{key} is missing", f"give {key} a value")
    given = first.get("input")
    what, write = _wrong(first["type"], given, first.get("ctx", {}), inner if key == outer else [])
    hint = re.sub("^write ", f"write {key}: ", write)
    value = "null" if given is None else str(given).lower() if isinstance(given, bool) else str(given)[:80]
    return InvalidJob(f"{where}{key}: {value!r} is {what}", hint)


def _wrong(kind: str, given: Any, context: dict[str, Any], inner: list[str]) -> tuple[str, str]:
    """What a value is not, and what to write."""
    number = meant_number(given)
    if kind in _BOUNDS and number is not None:
        name, said, wanted = _BOUNDS[kind]
        limit, otherwise = context[name], _percent(kind, number, context)
        return f"{said} {_figure(limit)}", otherwise or f"write {wanted.format(_figure(limit))}"
    if kind.startswith("int_"):
        return "no whole number", f"write {'8, say' if number is None else max(1, int(number))}"
    if kind.startswith("float_") or kind in _BOUNDS or kind == "finite_number":
        percent = isinstance(given, str) and given.strip().endswith("%") and number is not None
        return "no number", f"write {number / 100:g}" if percent and number else "write 0.5, say"
    if kind.startswith("bool_"):
        return "neither true nor false", "write true or false"
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", str(context.get("expected")))
        return "unknown", did_you_mean(str(given), known)
    if kind == "string_type":
        return "no word", "write one word, in quotes where it looks like something else"
    if kind in ("tuple_type", "list_type"):
        return "no list", "write [one, another]"
    if inner:
        such = given if isinstance(given, int) and not isinstance(given, bool) else "…"
        return "no set of keys", f"write {{{inner[0]}: {such}}}, say; keys: {', '.join(inner)}"
    return "not what it takes", KEYS_ARE_LISTED


_BOUNDS = {
    "greater_than_equal": ("ge", "less than", "{} or more"),
    "greater_than": ("gt", "not above", "more than {}"),
    "less_than_equal": ("le", "more than", "{} or less"),
    "less_than": ("lt", "not below", "less than {}"),
}
"""By complaint: where its limit stands, what is wrong, and what to write."""


def _figure(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _percent(kind: str, number: float, context: dict[str, Any]) -> str:
    """A share that was given in percent."""
    return f"write {number / 100:g}" if kind == "less_than" and context["lt"] == 1 and 1 < number < 100 else ""


_NUMBER = re.compile(r"[x×]?\s*([+-]?\d[\d_, ]*(?:\.\d+)?(?:e\+?\d{1,2})?)\s*(?:(k|m)i?(?![a-z]))?\D*", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20}


def meant_number(given: Any) -> float | None:
    """The number that a person means by '4k' (4096, as lengths are counted), '8,192', '8192 tokens', '2e3' or 'x8'.
    None for what is no number, nan among them."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        return None
    if not isinstance(given, str):
        return given if math.isfinite(given) else None
    found = _NUMBER.fullmatch(given.strip()[:40])
    if found is None:
        return None
    return float(re.sub("[_, ]", "", found[1])) * _UNITS.get((found[2] or "").lower(), 1)


def inner_fields(annotation: Any) -> list[str]:
    """The keys that a key of a job holds; none for a plain value."""
    from typing import get_args

    for candidate in (annotation, *get_args(annotation)):
        fields = getattr(candidate, "model_fields", None)
        if fields:
            return list(fields)
    return []
