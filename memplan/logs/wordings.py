"""What engines and trainers say of memory, in their words: a row of the text a wording, below where it was read.

A group of a pattern is a term and its unit: ``weights_GiB``; digits behind it tell two of one line apart, and they are
added up. Engines write GB for 2^30 bytes (vLLM to 0.6 ``/ float(2**30)``, SGLang ``1 << 30``, verl ``1024**3``)."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from memplan.tables.texts import parts_of
from memplan.units import GiB, KiB, MiB

UNITS = {"GiB": GiB, "MiB": MiB, "KiB": KiB, "B": 1, "n": 1}
"""n: a number that is no size."""
_NUMBER = r"-?\d[\d,]{0,24}(?:\.\d{1,24})?(?:e[-+]?\d{1,2})?"
_GIB = r" ?(?:GiB|Gib|GB)"


class Wording(NamedTuple):
    """One sentence."""

    whose: str
    """vllm, sglang or trainer."""
    word: str
    """What is looked for: a piece of it that never changes."""
    pattern: str
    """``<weights_GiB>`` stands for a number; ``{GiB}`` for that unit however it is spelled."""
    adds: bool = False
    """Said once a pool or a model, and all count: SGLang's draft model, its pools for sliding windows."""


def _wordings() -> Iterator[Wording]:
    """``word ~ pattern`` of a line, ``word ~+ pattern`` where it adds."""
    for whose, text in parts_of(__file__).items():
        for line in re.sub(r"\n +", " ", text.strip("\n")).split("\n"):
            word, _, pattern = line.partition(" ~")
            yield Wording(whose, word, pattern.removeprefix("+").strip(), pattern.startswith("+"))


WORDINGS = tuple(_wordings())
_GROUP = re.compile(r"<(\w+)>")
_SAID_BY_TRAINERS = (group for row in WORDINGS if row.whose == "trainer" for group in _GROUP.findall(row.pattern))
TRAINER_TERMS = frozenset(group.rstrip("0123456789").rpartition("_")[0] for group in _SAID_BY_TRAINERS) - {"total"}
"""Those that a new start of an engine leaves as they are."""


class Compiled(NamedTuple):
    """A wording that is ready to be looked for."""

    wording: Wording
    pattern: re.Pattern[str]
    terms: tuple[tuple[str, str, int], ...]
    """Group, term, and the bytes of its unit."""


@cache
def compiled() -> tuple[Compiled, ...]:
    """Every wording."""
    return tuple(map(_compiled, WORDINGS))


def _compiled(wording: Wording) -> Compiled:
    text = wording.pattern.replace("{GiB}", _GIB).replace("{is}", r"['\"]?(?: ?[:=] ?| +)(?:np\.float\d+\()?")
    pattern = re.compile(_GROUP.sub(lambda name: f"(?P<{name[1]}>{_NUMBER})", text), re.IGNORECASE)
    return Compiled(wording, pattern, tuple((group, *_term(group)) for group in pattern.groupindex))


def _term(group: str) -> tuple[str, int]:
    term, _, unit = group.rstrip("0123456789").rpartition("_")
    return term, UNITS[unit]
