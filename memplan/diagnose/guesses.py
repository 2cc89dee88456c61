"""What a size can be where no job is known: of the models that the text names, or of all that memplan knows."""

import re
from collections.abc import Iterator
from math import isqrt
from typing import Any

from memplan.diagnose import readings
from memplan.diagnose.messages import Printed
from memplan.diagnose.phases import Place
from memplan.errors import MemplanError
from memplan.models import load_model
from memplan.presets import find_preset, model_names

_NAME = re.compile(r"(?<![\w./-])(?:[\w.-]{2,60}/)?[\w.-]{4,80}")
MOST_NAMES, MOST, ENDS = 2000, 6, 200_000
ROUND = 256
"""Tokens of a batch that was cut or padded to a length are a multiple of it."""


HEADS = 32
"""Of the model that stands for any where scores are read."""


def guesses(requested: Printed, text: str, place: Place) -> list[readings.Match]:
    """Readings without a job that fit the moment, likelier first; none for sizes that every small tensor has."""
    if readings.is_anything(requested):
        return []
    named = _named(text)
    if named:
        try:
            return readings.readings_of_model(requested, load_model(named))
        except MemplanError:
            return []
    bucket = readings.bucket_of(requested)
    special = [*(readings.sub_groups(bucket) if "deepspeed" in text.lower() else ()), *_scores(bucket, place)]
    found = {
        (each.name, each.shape): each
        for each in (*special, *_of_all(bucket))
        if place.phase == "unknown" or not each.phases or place.phase in each.phases
    }
    of_loss = place.phase == "loss" or "logits" in place.what
    return sorted(found.values(), key=lambda each: (of_loss and place.phase not in each.phases, each.rank))[:MOST]


def _named(text: str) -> str:
    """The preset that a text's beginning or end names, by its Hub id or its own name; empty for none."""
    ends = text if len(text) <= 2 * ENDS else text[:ENDS] + "\n" + text[-ENDS:]
    seen = dict.fromkeys(match.group().strip(".-") for match in _NAME.finditer(ends))
    for word in list(seen)[:MOST_NAMES]:
        if any(letter.isdigit() for letter in word) and find_preset(word) is not None:
            return word
    return ""


def _scores(bucket: readings.Bucket, place: Place) -> Iterator[readings.Match]:
    """Whole scores, where it is attention that asked: one row's length follows from the heads."""
    for itemsize, dtype in readings.ITEMSIZES if "attention" in place.what else ():
        length = isqrt(bucket.high // (HEADS * itemsize))
        size = HEADS * length**2 * itemsize
        if size in bucket:
            shape = f"{HEADS} heads × {length:,}² × {itemsize} B"
            why = f"one row of {HEADS} heads; other rows and heads give other lengths"
            yield readings.Match(
                f"attention scores in {dtype}", size, shape, None, why, 4 - itemsize, ("forward", "backward")
            )


def _of_all(bucket: readings.Bucket) -> Iterator[readings.Match]:
    """Matrices of feed-forwards, embeddings and heads, and logits of a round number of tokens (the rounder the
    likelier), of every preset."""
    shapes: dict[tuple[int, int, str], str] = {}
    vocabularies: dict[int, str] = {}
    for name in model_names():
        config: dict[str, Any] = (find_preset(name) or {}).get("config", {})
        hidden, inner, vocabulary = (config.get(key) for key in ("hidden_size", "intermediate_size", "vocab_size"))
        for rows, what in ((inner, "a feed-forward weight"), (vocabulary, "an embedding or head")):
            if isinstance(hidden, int) and isinstance(rows, int):
                shapes.setdefault((rows, hidden, what), name)
        if isinstance(vocabulary, int):
            vocabularies.setdefault(vocabulary, name)
    for itemsize, dtype in readings.ITEMSIZES:
        for (rows, columns, what), name in shapes.items():
            if rows * columns * itemsize in bucket:
                size, shape = rows * columns * itemsize, f"{rows:,} × {columns:,} × {itemsize} B"
                yield readings.Match(f"{what} in {dtype}", size, shape, None, f"as {name} has it", 0)
        for vocabulary, name in vocabularies.items():
            yield from _logits(bucket, vocabulary, itemsize, dtype, name)


def _logits(bucket: readings.Bucket, vocabulary: int, itemsize: int, dtype: str, name: str) -> Iterator[readings.Match]:
    found = bucket.units(vocabulary * itemsize)
    tokens = found and -(-found[0] // ROUND) * ROUND
    if found and tokens and tokens <= found[1] and found[1] - found[0] < ROUND // 4:
        size, odd = tokens * vocabulary * itemsize, 20 - (tokens & -tokens).bit_length() + (4 - itemsize)
        shape = f"{tokens:,} tokens × {vocabulary:,} (vocabulary) × {itemsize} B"
        yield readings.Match(f"logits in {dtype}", size, shape, tokens, f"as {name} has them", odd, readings.OF_LOGITS)
