"""The catalogue of GPUs, and how a user's words for one become a ``Gpu``.

A user writes a preset's name (``h100-80gb``), a short form that fits one card only (``h100``, ``a100-80``, ``3060``,
``4090 laptop``), a part of a card (``a100 3g.20gb``, ``a40-24q``), a size (``80GB``, ``79.1GiB``), or ``local`` for the
card of this machine. The catalogue is ``presets/gpus.json``; only the rows that are asked for are checked."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob, UsageError
from memplan.presets import presets_dir
from memplan.spec.gpu import Gpu
from memplan.units import GiB, parse_size

SMALLEST, LARGEST = GiB, 4096 * GiB
"""Bounds of a size that can be a GPU's; outside them it is a slip of the pen, such as 80MB."""

_SIZE = re.compile(r"\.?[0-9][0-9.]*\s*[kmgt](i?b)?", re.ASCII | re.IGNORECASE)
"""A number and a unit of thousands; '910b' is a card, not 910 bytes."""
_VGPU = re.compile(r"(.+?)d?x?-(?:[1-7]-)?([0-9]{1,3})[abcq]", re.ASCII)
"""A card, the GB of a share of it, and its licence: 'a40-48q', NVIDIA's 'GRID A100D-20C'."""
_VGPU_SHARE = 0.93
"""Of a vGPU's frame buffer; below the least that torch reports of any card of the catalogue."""
_LONGEST = 60
LOCAL = "local"


RATES = ("bf16_tflops", "fp16_tflops", "memory_bandwidth_gbps", "link_gbps")


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    """The file as it is."""
    found: dict[str, Any] = json.loads((presets_dir() / "gpus.json").read_bytes())
    return found


@lru_cache(maxsize=1)
def _rows() -> dict[str, dict[str, Any]]:
    """The catalogue's rows by name, in its order, not yet validated; then the slices of its cards."""
    cards = {row["name"]: row for row in _document()["gpus"]}
    return cards | {row["name"]: row for of in _document()["slices"] for row in _sliced(cards[of["of"]], of)}


def _sliced(card: dict[str, Any], of: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The MIG instances of a card as rows: of its compute the g that each has, of its bandwidth as its memory."""
    for profile, gib in of["gib"].items():
        share = int(profile[0]) / of["parts"]
        size = int(gib * GiB)
        yield {
            "name": f"{card['name']}-{profile}",
            "title": f"{card['title']}, MIG {profile}",
            "vendor": card["vendor"],
            "memory_bytes": size,
            "usable_bytes": size,
            "architecture": card["architecture"],
            "form": "slice",
            "bf16_tflops": card.get("bf16_tflops") and round(card["bf16_tflops"] * share, 1),
            "memory_bandwidth_gbps": round(card["memory_bandwidth_gbps"] * size / card["usable_bytes"], 1),
            "link": "none: an instance talks to no other",
            "source": f"{gib} GiB: {of['source']}",
        }


@lru_cache(maxsize=256)
def _preset(name: str) -> Gpu:
    """One card of the catalogue, the same object each time: a search asks a thousand times. Rows are checked by tests:
    to build their validator would cost a start a tenth."""
    row = _rows()[name]
    rates = {key: float(row[key]) for key in RATES if row.get(key) is not None}
    return Gpu.model_construct(**row | rates)


def gpu_names() -> list[str]:
    """Names of all cards, in the catalogue's order; slices of cards are not among them."""
    return [row["name"] for row in _document()["gpus"]]


def load_gpus() -> dict[str, Gpu]:
    """Every card of the catalogue, by name."""
    return {name: _preset(name) for name in gpu_names()}


def listed() -> list[Gpu]:
    """Cards to buy or rent for a job, smallest first: no laptops, none long gone, no rarer sizes of a name."""
    cards = (_preset(row["name"]) for row in _document()["gpus"] if {"form", "usual", "sold"}.isdisjoint(row))
    return sorted(cards, key=lambda gpu: (gpu.usable_bytes, gpu.name))


@lru_cache(maxsize=64)
def _named(text: str) -> Gpu | None:
    """The card, or part of one, that a name means. Raises InvalidJob where it means several, or one without a model."""
    from memplan.gpus.spelling import matches, refuse_others, words_of

    found = matches(words_of(text), _rows())
    if not found:
        refuse_others(text, _rows())
        share = _VGPU.fullmatch("-".join(text.lower().split()))
        cards = [_preset(name) for name in matches(words_of(share[1]), _rows())] if share else []
        return _vgpu(text, max(cards, key=lambda card: card.memory_bytes), int(share[2])) if share and cards else None
    if len(found) > 1:
        raise InvalidJob(f"gpu: {text!r} could be any of several cards", "write " + " or ".join(found[:6]))
    return _preset(found[0])


def find_gpu(text: str) -> Gpu:
    """The card that ``text`` means: a preset, a short form of one, a size, or ``local``.

    Raises InvalidJob when nothing, or more than one card, is meant."""
    return _preset(text) if text in _rows() else _meant(text)


def _meant(text: str) -> Gpu:
    """That of no preset's name."""
    from memplan.gpus.spelling import hint_for, shortened, words_of

    if text.strip().lower() == LOCAL:
        from memplan.local_gpu import local_gpu

        return local_gpu(list(load_gpus().values()), words_of)
    if _SIZE.fullmatch(text.strip()):
        return _from_size(text.strip())
    found = _named(text) if len(text) <= _LONGEST else None
    if found is None:
        raise InvalidJob(f"gpu: no such card: {shortened(text)!r}", hint_for(words_of(text[:_LONGEST]), gpu_names()))
    return found


def _vgpu(text: str, card: Gpu, gigabytes: int) -> Gpu:
    """A share of a card's memory that a virtual machine has."""
    size = gigabytes * GiB
    if not SMALLEST <= size <= card.memory_bytes * 1.1:
        raise InvalidJob(f"gpu: {text!r} is no share of {card.name}", f"write {card.name}, or a size such as 24GB")
    figures = {
        "name": "-".join(text.lower().split()),
        "title": f"{card.title}, vGPU of {gigabytes} GB",
        "form": "vgpu",
        "memory_bytes": size,
        "usable_bytes": int(size * _VGPU_SHARE),
        "usable_is_assumed": True,
        "source": f"{gigabytes} GiB as the profile says; torch's total assumed to be {_VGPU_SHARE:.0%} of it, below "
        "any card's share: no published total of a vGPU was found",
    }
    return card.model_copy(update=figures)


def _from_size(text: str) -> Gpu:
    """A card known by its memory alone: all bytes that the user wrote count as usable."""
    try:
        if len(text) > _LONGEST:
            from memplan.gpus.spelling import shortened

            raise UsageError(f"not a size: {shortened(text)!r}")
        size = parse_size(text)
    except UsageError as error:
        raise InvalidJob(f"gpu: {error.message}", "write a size such as 80GB or 79.1GiB, or a card's name") from error
    if not SMALLEST <= size <= LARGEST:
        raise InvalidJob(f"gpu: {text!r} is no card's memory", "write a size from 1GiB to 4TiB, such as 80GB")
    return Gpu(
        name=text,
        title=f"{text} (by size)",
        vendor="custom",
        memory_bytes=size,
        usable_bytes=size,
        usable_is_assumed=True,
        architecture="unknown",
        source=f"{text} as written: {size} bytes, all taken as usable and counted as a card with bf16 and flash "
        "attention (Ampere, RTX 30, or later): an older one needs its name",
    )
