"""An answer, kept small: names of keys once for each shape of object, texts once, and no more than the page may hold.

Packed, an object is ``[shape, values…]``, a list ``[-1, items…]``, a text that comes again ``[-2, number]``;
static/base.js opens it. A ledger's rows share keys and most words: a third is left."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

LIST, TEXT = -1, -2
SHORT = 7
"""Texts below this length are not worth a number."""
_MARKUP = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def data(value: Any) -> str:
    """The value packed, as JSON in ASCII in which no character begins markup, for a script element of data."""
    return json.dumps(packed(value), separators=(",", ":"), allow_nan=False).translate(_MARKUP)


def packed(value: Any) -> dict[str, Any]:
    """The value with its keys and its repeated texts written once."""
    again = (text for text, count in Counter(_texts(value)).items() if count > 1)
    texts = {text: number for number, text in enumerate(again)}
    shapes: dict[tuple[str, ...], int] = {}
    root = _packed(value, texts, shapes)
    return {"shapes": [list(shape) for shape in shapes], "texts": list(texts), "root": root}


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value that are long enough to be written once."""
    if isinstance(value, str):
        if len(value) >= SHORT:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _packed(value: Any, texts: Mapping[str, int], shapes: dict[tuple[str, ...], int]) -> Any:
    if isinstance(value, str):
        return [TEXT, texts[value]] if value in texts else value
    if isinstance(value, Mapping):
        shape = shapes.setdefault(tuple(str(key) for key in value), len(shapes))
        return [shape, *(_packed(item, texts, shapes) for item in value.values())]
    if isinstance(value, Sequence):
        return [LIST, *(_packed(item, texts, shapes) for item in value)]
    # JSON has no word for what is no number; the page shows that there is none.
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Room(NamedTuple):
    """How much of an answer is kept: of how many reports the phases, of how many the ledger, and how many at all."""

    phases: int
    ledgers: int
    rows: int


ALL = 1 << 62
EVERYTHING = Room(ALL, ALL, ALL)
ROOMS = (
    Room(8, ALL, ALL), Room(1, ALL, ALL), Room(1, 16, ALL), Room(1, 4, ALL), Room(1, 1, ALL), Room(0, 1, ALL),
    Room(0, 1, 400), Room(0, 1, 100), Room(0, 0, 25), Room(0, 0, 5),
)  # fmt: skip
"""From the most to the least, tried until the answer is small enough."""
LEAST = 40
"""Characters that a ledger's row has at the least: what cannot be small enough is not written to see."""
LEDGERS_LIE_IN = ("rows", "plans", "report", "per_gpu", "moments")
LISTS = ("rows", "plans", "files", "ways", "rejected", "matches")
"""Where an answer has many of a kind, the best first."""


def fitted(payload: Any, largest: int) -> str:
    """The data of a page of at most ``largest`` characters. What is left out for it is said in the page."""
    text = ""
    for room in (EVERYTHING, *ROOMS):
        found = payload if room is EVERYTHING else thinned(payload, room)
        if LEAST * _ledger_rows(found) <= largest:
            text = data(found)
            if len(text) <= largest:
                break
    return text


def _ledger_rows(value: Any) -> int:
    """Rows of all ledgers in an answer."""
    if isinstance(value, Mapping):
        own = value.get("ledger")
        rows = len(own) if isinstance(own, Sequence) else 0
        return rows + sum(_ledger_rows(item) for name, item in value.items() if name in LEDGERS_LIE_IN)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sum(map(_ledger_rows, value))
    return 0


def thinned(payload: Any, room: Room) -> Any:
    """The answer without what has no room, and what that was."""
    if isinstance(payload, Sequence) and not isinstance(payload, str):
        return payload[: room.rows]
    if not isinstance(payload, Mapping):
        return payload
    found = dict(payload)
    for name in LISTS:
        if isinstance(found.get(name), Sequence):
            found[name] = [_row(each, room, number) for number, each in enumerate(found[name][: room.rows])]
    found = _report(found, room, 0)
    left = "Some of the answer is left out to keep this page small: phases beside the step, ledgers, or the last rows."
    return found | {"page": {**found.get("page", {}), "left_out": left}}


def _row(row: Any, room: Room, number: int) -> Any:
    """A row of a comparison or a plan, with less of its report."""
    if not isinstance(row, Mapping) or not isinstance(row.get("report"), Mapping):
        return row
    return {**row, "report": _report(row["report"], room, number)}


def _report(report: Mapping[str, Any], room: Room, number: int) -> dict[str, Any]:
    """A report with less of its ledgers."""
    gpu = report.get("per_gpu")
    if not isinstance(gpu, Mapping):
        return dict(report)
    gpu = dict(gpu)
    if number >= room.phases:
        gpu["moments"] = []
    if number >= room.ledgers:
        gpu["ledger"] = []
    return {**report, "per_gpu": gpu}
