"""The catalogue of GPUs, and how a user's words for one become a ``Gpu``.

A user writes a preset's name (``h100-80gb``), a short form that fits one card only (``h100``, ``a100-80``, ``4090``),
a size (``80GB``, ``79.1GiB``), or ``local`` for the card of this machine. The catalogue is ``presets/gpus.json``.
"""

import json
import re
from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob, UsageError, nearest
from memplan.presets import presets_dir
from memplan.spec.gpu import Gpu
from memplan.units import GiB, parse_size

SMALLEST, LARGEST = GiB, 4096 * GiB
"""Bounds of a size that can be a GPU's; outside them it is a slip of the pen, such as 80MB."""

_SIZE = re.compile(r"\.?[0-9][0-9.]*\s*[kmgt](i?b)?", re.ASCII | re.IGNORECASE)
"""A number and a unit of thousands; '910b' is a card, not 910 bytes."""
_SIZE_SUFFIX = re.compile(r"-([0-9]+)gb$")
_LONGEST = 60


@lru_cache(maxsize=1)
def _rows() -> dict[str, dict[str, Any]]:
    """The catalogue's rows by name, in its order, not yet validated."""
    text = (presets_dir() / "gpus.json").read_text(encoding="utf-8")
    return {row["name"]: row for row in json.loads(text)["gpus"]}


@lru_cache(maxsize=256)
def _preset(name: str) -> Gpu:
    """One card of the catalogue, the same object each time: a search asks a thousand times."""
    return Gpu.model_validate(_rows()[name])


def gpu_names() -> list[str]:
    """Names of all presets, in the catalogue's order."""
    return list(_rows())


def load_gpus() -> dict[str, Gpu]:
    """Every card of the catalogue, by name."""
    return {name: Gpu.model_validate(row) for name, row in _rows().items()}


def find_gpu(text: str) -> Gpu:
    """The card that ``text`` means: a preset, a short form of one, a size, or ``local``.

    Raises InvalidJob when nothing, or more than one card, is meant.
    """
    if text in _rows():
        return _preset(text)
    wanted = "-".join(text.lower().replace("_", " ").split())
    if wanted == "local":
        from memplan.local_gpu import local_gpu

        return local_gpu(list(load_gpus().values()))
    if _SIZE.fullmatch(text.strip()):
        return _from_size(text.strip())
    matches = _matches(wanted)
    if len(matches) == 1:
        return _preset(matches[0])
    if matches:
        raise InvalidJob(f"gpu: {text!r} could be any of several cards", "write " + " or ".join(matches))
    raise InvalidJob(f"gpu: no such card: {_shortened(text)!r}", _hint(wanted))


def _from_size(text: str) -> Gpu:
    """A card known by its memory alone: all bytes that the user wrote count as usable."""
    try:
        if len(text) > _LONGEST:
            raise UsageError(f"not a size: {_shortened(text)!r}")
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
        source=f"{text} as written: {size} bytes, all taken as usable",
    )


def _matches(wanted: str) -> list[str]:
    """Preset names that a text can mean, by the first of these rules that any name satisfies.

    The name itself; the name without its size (``h100``, of which PCIe and NVL cards are other models); all the words
    of the text are words of the name (``4090``, ``a100-80``); the text begins the name (``gaudi``). Dashes, makers'
    names and SXM, the plain form of the cards that also come as PCIe, do not count.
    """
    wanted = re.sub(r"\b(nvidia|amd|huawei|intel|geforce|instinct|tesla|sxm[0-9]?)\b-?", "", wanted).strip("-")
    words = set(re.sub(r"\b([0-9]+)g\b", r"\1gb", wanted).split("-"))
    packed = wanted.replace("-", "")
    if not packed:
        return []
    names = gpu_names()
    rules = (
        lambda name: packed == name.replace("-", ""),
        lambda name: packed == _SIZE_SUFFIX.sub("", name).replace("-", ""),
        lambda name: words <= _words(name) and not words.isdisjoint(name.split("-")[:-1]),
        lambda name: name.replace("-", "").startswith(packed),
    )
    return next((found for rule in rules if (found := [name for name in names if rule(name)])), [])


def _words(name: str) -> set[str]:
    """Words of a preset's name; its size counts with and without the unit."""
    words = set(name.split("-"))
    return words | {word[:-2] for word in words if word.endswith("gb")}


def _hint(wanted: str) -> str:
    """What to type instead of a name that is no card's: the nearest, several of one by their number, or a size."""
    many = _MANY.fullmatch(wanted)
    number, card = ((many[1] or many[4]), (many[2] or many[3])) if many else ("", "")
    cards = [card] if _SIZE.fullmatch(card) else _matches(card)
    if cards:
        return f"write gpu: {' or '.join(cards)}, and num_gpus: {number}"
    short = {_SIZE_SUFFIX.sub("", name): name for name in reversed(gpu_names())}
    close = nearest(wanted, [*gpu_names(), *short])
    names = list(dict.fromkeys(short.get(name, name) for name in close))
    if wanted.isdecimal() and len(wanted) < len("1080"):  # a memory; cards are called by four figures
        names = [f"{wanted}GB"]
    if names:
        meant = f"did you mean {' or '.join(names)}? "
        return meant + "`memplan show gpus` lists all; a size such as 80GB, or local, works too"
    size = _SIZE_SUFFIX.search(wanted)
    its = f"{size[1] if size else 12}GB"
    return f"give its memory instead, such as gpu: {its}; `memplan show gpus` lists what is known"


_MANY = re.compile(r"(\d{1,3})-?[x×*]-?([a-z0-9].*)|(.+?)-?[x×*]-?(\d{1,3})", re.ASCII)
"""8xa100, h100x8: a number of cards."""


def _shortened(text: str) -> str:
    """The text itself, or its beginning when it would not fit a line."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
