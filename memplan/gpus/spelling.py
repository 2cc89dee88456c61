"""What people call a card, and which of the catalogue's names they mean.

A name is a set of words: its model (``rtx``, ``4070``, ``ti``), what kind it is (``laptop``, ``pcie``), its size
(``12gb``). A text means the names that have all of its words, and of these the ones with the fewest words more:
``3060`` is the RTX 3060, not its Ti; ``h100`` the SXM card, not the PCIe one. Of one model in several sizes all are
meant, but for a size that is marked as rare (``usual: false``), which has to be said."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob, nearest

_SIZE_WORD = re.compile(r"[0-9]+gb", re.ASCII)
_BRANDS = {"rtx", "gtx", "geforce", "nvidia", "amd", "huawei", "intel", "instinct", "tesla", "grid", "gpu", "graphics"}
_FILLERS = {"sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "hbm2", "hbm2e", "hbm3", "hbm3e", "mig", "card", "blackwell"}
_FILLERS |= {"generation", "edition", "workstation", "server", "desktop", "design", "with", "ac", "colab", "kaggle"}
_FILLERS |= {"aws", "azure", "gcp", "lambda", "modal", "runpod", "vast"}
"""Words that tell no two cards of the catalogue apart."""
_NO_WORDS = _BRANDS | _FILLERS
_SAME = {"mobile": "laptop", "notebook": "laptop", "maxq": "laptop", "portable": "laptop"}
_JOINED = re.compile(
    r"(?<![0-9a-z.])((?:[rg]tx)?(?:[1-5]0[5-9]0|16[56]0))(ti|super|s|d|m)(super|s)?(?![0-9a-z])", re.ASCII
)
"""'4070ti', '4090d', '2070super', 'rtx4070tisuper'."""
_SUFFIXES = {"s": "super", "m": "laptop"}
_GLUED = re.compile(r"(?<![0-9a-z])[rg]tx(?=[0-9])", re.ASCII)
_PAIRS = re.compile(r"(?:([0-9]{1,3}) ?[x×*] ?([a-z0-9].*)|(.*[a-z0-9]) ?[x×*] ?([0-9]{1,3}))", re.ASCII)
_NUMBER = re.compile(r"[0-9]{4}", re.ASCII)
_LONGEST = 60

APPLE = re.compile(r"(apple[- ])?m[1-9]([- ](pro|max|ultra))?([- ][0-9]+ ?gb?)?|(apple|mps|macbook|mac).*", re.ASCII)
INTEL = re.compile(r"(intel[- ])?(arc[- ]?)?(a[357][1-8]0|b[56][0-9]0|max[- ]1[15]50).*|arc.*|xpu", re.ASCII)
RADEON = re.compile(
    r"(amd[- ])?(radeon[- ]?)?(rx|w)[- ]?[5-9][0-9]{3}.*|radeon.*|(amd[- ])?[5-9][0-9]{3}[- ]?(xtx?|gre)", re.ASCII
)
OTHERS = (
    (APPLE, "Apple's GPUs", "MPS keeps the attention scores, which CUDA's kernels do not, and has no bitsandbytes"),
    (INTEL, "Intel's Arc and Max GPUs", "nothing is measured of what a step keeps under XPU; Gaudi is known"),
    (RADEON, "Radeon cards", "nothing is measured of them; Instinct (MI250X, MI300X, …) is known"),
    (re.compile(r"(google[- ])?tpu.*|v[2-6][ep]?-[0-9]+", re.ASCII), "TPUs", "XLA plans memory in another way"),
    (re.compile(r"cpu", re.ASCII), "training on a CPU", "it is the machine's memory then, and no card's"),
)
SHARED = re.compile(
    r"(nvidia[- ])?(dgx[- ]spark|gb10|(jetson|orin|thor)\b.*)|strix[- ]?halo.*|(ryzen )?ai max.*", re.ASCII
)
"""Chips whose GPU has the machine's own memory."""
LENT = {
    "kaggle": "--gpu t4-16gb --num-gpus 2 or --gpu p100-16gb",
    "colab": "--gpu t4-16gb, l4-24gb or a100-40gb",
    "mig": "the card and its slice, such as --gpu a100-80gb-1g.10gb",
    "vgpu": "its profile, such as --gpu grid-a100d-20c",
}
"""What those lend who lend several cards, and how a part of a card is named."""
"""Kinds of cards that memplan has no model of: how they are written, what they are, why."""


@lru_cache(maxsize=1024)
def words_of(text: str) -> tuple[str, ...]:
    """The words of a name or of a user's text, in order, those that tell nothing left out."""
    folded = text[:_LONGEST].lower().replace("_", "-").replace("max-q", "maxq")
    folded = _JOINED.sub(lambda found: "-".join(_SUFFIXES.get(each, each) for each in found.groups() if each), folded)
    folded = _GLUED.sub("rtx-", folded)
    words = (_SAME.get(word, word) for word in re.split(r"[\s\-/()]+", folded) if word)
    sized = (f"{word}b" if re.fullmatch(r"[0-9]+g", word) else word for word in words)
    return tuple(word for word in sized if word not in _NO_WORDS)


def _model(words: Iterable[str]) -> set[str]:
    """Words without the size."""
    return {word for word in words if not _SIZE_WORD.fullmatch(word)}


def matches(wanted: tuple[str, ...], rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the catalogue that words can mean, in its order; none where nothing does."""
    given = set(wanted)
    if not given:
        return []
    found = {name: len(_model(words_of(name)) - given) for name in rows if _means(given, words_of(name))}
    if found:
        least = min(found.values())
        nearest_names = [name for name, left in found.items() if left == least]
        usual = [name for name in nearest_names if rows[name].get("usual", True)]
        return usual or nearest_names
    packed = "".join(wanted).replace("rtx", "").replace("gtx", "")
    whole = [name for name in rows if packed in ("".join(words_of(name)), "".join(_unsized(name)))]
    return whole or [name for name in rows if len(packed) > 1 and "".join(words_of(name)).startswith(packed)]


def _unsized(name: str) -> list[str]:
    return [word for word in words_of(name) if not _SIZE_WORD.fullmatch(word)]


def _means(given: set[str], words: tuple[str, ...]) -> bool:
    """Whether a name has all words of a text, one of which at least is not its size, however that is written."""
    sizes = {word[:-2] for word in words if _SIZE_WORD.fullmatch(word)}
    return given <= {*words, *sizes} and not given.isdisjoint(_model(words))


def refuse_others(text: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise InvalidJob for several cards in one, and for kinds of cards that memplan has no model of."""
    folded = " ".join(text.lower().split())
    pair = _PAIRS.fullmatch(folded)
    if pair:
        count, card = (pair[1], pair[2]) if pair[1] else (pair[4], pair[3])
        names = [card] if re.fullmatch(r"[0-9.]+ ?gi?b?", card) else matches(words_of(card), rows)[:6]
        if names:
            meant = f"write --gpu {' or '.join(names)}{', and' * (len(names) > 1)} --num-gpus {count}"
            raise InvalidJob(f"gpu: {text!r} is several cards", meant)
    if folded in LENT:
        raise InvalidJob(f"gpu: {text!r} is several cards", f"write {LENT[folded]}")
    its = _size_of(words_of(text), "16gb")
    if SHARED.fullmatch(folded):
        said = f"gpu: {text!r} has no memory of its own: what a job may take of the machine's is not known"
        raise InvalidJob(said, f"write what is free of it, such as --gpu {_size_of(words_of(text), '64gb')}")
    for pattern, kind, why in OTHERS:
        if pattern.fullmatch(folded):
            raise InvalidJob(
                f"gpu: {text!r}: memplan has no model of {kind}: {why}",
                f"a size with --attention eager is a rough guide, as if it were a CUDA card: --gpu {its}",
            )


def hint_for(wanted: tuple[str, ...], names: list[str]) -> str:
    """What to type for words that are no card's: cards of that model in another size, else what is written alike."""
    text = "-".join(wanted)
    if text.isdecimal() and len(text) <= 3:  # four digits are a card's number
        return f"did you mean {text}GB? {_ELSE}"
    model = _model(wanted)
    meant = [name for name in names if model and model == _model(words_of(name))]
    if text and not meant:
        numbered = any(map(_NUMBER.fullmatch, wanted))
        names = [name for name in names if any(map(_NUMBER.fullmatch, words_of(name))) or not numbered]
        short = {"-".join(_unsized(name)): name for name in reversed(names)}
        whole = {"-".join(words_of(name)): name for name in names}
        close = nearest(text, [*whole, *short])
        meant = list(dict.fromkeys(short.get(name) or whole[name] for name in close))
    if meant:
        return f"did you mean {' or '.join(meant[:3])}? {_ELSE}"
    return f"give its memory instead, such as --gpu {_size_of(wanted, '12gb')}; `memplan show gpus` lists what is known"


def _size_of(wanted: Iterable[str], else_: str) -> str:
    """The size that words say of a card."""
    return next((word for word in wanted if _SIZE_WORD.fullmatch(word)), else_).upper()


_ELSE = "`memplan show gpus` lists all; a size such as 80GB, or local, works too"


def shortened(text: str) -> str:
    """The text itself, or its beginning when it would not fit a line."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
