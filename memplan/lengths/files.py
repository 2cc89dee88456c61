"""A file of lengths: one number a line, a JSON list, or JSON lines of numbers or of objects."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.files import instead_of_missing
from memplan.spec.lengths import MOST_TOKENS

MOST_LENGTHS = 20_000_000
MOST_BYTES = 2 << 30
LONGEST_LINE = 10_000
MOST_OF_A_LIST = 256 << 20
"""Bytes of a file that is one JSON list, which is read whole."""
HINT = 'write one number a line, or objects such as {"prompt": 120, "chosen": 340, "rejected": 290}'
KEYS = ("prompt", "completion", "chosen", "rejected")


class Counted(NamedTuple):
    """What a file holds, example by example."""

    sequences: array[int]
    """The longer of an example's sequences, which decides how far a batch is padded."""
    paired: bool = False
    """Every example names both halves of a pair."""


def read_lengths(path: str) -> Counted:
    """The lengths of a file. Raises InvalidJob, naming the line, for what is none."""
    try:
        size = os.stat(path).st_size if os.path.isfile(path) else -1
        if size < 0:
            hint = instead_of_missing(path, "name a file of lengths; memplan lengths makes one")
            raise InvalidJob(f"lengths: no such file: {path}", hint)
        if size > MOST_BYTES:
            raise InvalidJob(f"lengths: {path} is larger than {MOST_BYTES >> 30} GiB", "draw a sample of its lines")
        with open(path, encoding="utf-8", errors="replace") as file:
            return _counted(_records(file, path, size), path)
    except OSError as error:
        raise InvalidJob(f"lengths: cannot read {path}: {error.strerror}", "name a file that can be read") from None


def _records(file: IO[str], path: str, size: int) -> Iterator[tuple[int, Any]]:
    """(line, value) of everything in the file."""
    first = file.read(4096).lstrip("\ufeff \t\r\n")[:1]
    file.seek(0)
    if first == "[":
        if size > MOST_OF_A_LIST:
            raise InvalidJob(f"lengths: {path}: a JSON list of {size >> 20} MiB is too large", "write one a line")
        values = _parsed(file.read(), path, 1)
        yield from ((1, value) for value in values)
        return
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), start=1):
        if line.strip():
            yield number, _parsed(line, path, number)


def _parsed(text: str, path: str, line: int) -> Any:
    try:
        return json.loads(text.strip().lstrip("\ufeff"))
    except (ValueError, RecursionError):
        raise InvalidJob(f"lengths: {path}, line {line}: {text.strip()[:60]!r} is no length", HINT) from None


def _counted(records: Iterable[tuple[int, Any]], path: str) -> Counted:
    sequences, pairs = array("l"), 0
    for line, value in islice(records, MOST_LENGTHS + 1):
        parts = _sequences(value, path, line)
        if not any(parts):
            continue  # a line without tokens trains nothing: trainers drop it
        sequences.append(max(parts))
        pairs += len(parts) > 1
    if not sequences:
        raise InvalidJob(f"lengths: {path} holds no lengths", HINT)
    if len(sequences) > MOST_LENGTHS:
        raise InvalidJob(f"lengths: {path} holds more than {MOST_LENGTHS:,} lengths", "draw a sample of its lines")
    return Counted(sequences, pairs == len(sequences))


def _sequences(value: Any, path: str, line: int) -> tuple[int, ...]:
    """Tokens of each sequence of an example: one, or the two of a pair, each with the prompt."""
    if not isinstance(value, dict):
        return (_length(value, path, line),)
    if "length" in value:
        return (_length(value["length"], path, line),)
    found = {key: _length(value[key], path, line) for key in KEYS if key in value}
    if not found:
        raise InvalidJob(f"lengths: {path}, line {line}: none of length, {', '.join(KEYS)} is there", HINT)
    prompt = found.get("prompt", 0)
    if "chosen" in found and "rejected" in found:
        return prompt + found["chosen"], prompt + found["rejected"]
    return (sum(found.values()),)


def _length(value: Any, path: str, line: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_TOKENS:
        raise InvalidJob(f"lengths: {path}, line {line}: {str(value)[:60]!r} is no length", HINT)
    if value != int(value):
        raise InvalidJob(f"lengths: {path}, line {line}: {value:g} is no whole number of tokens", HINT)
    return int(value)
