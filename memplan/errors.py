"""Every error that memplan raises on purpose.

::

    MemplanError                    exit code 70 unless a subclass says otherwise
    ├── UsageError                  2   the command line or the Python call is wrong
    │   └── InvalidJob              2   a job key, value or combination cannot be
    │       └── NoTraining          2   a program that starts no training
    ├── ModelError                  3
    │   ├── ModelNotFound           3   no such preset, file or Hub repository, or it cannot be reached
    │   └── UnknownArchitecture     3   the config is readable, but memplan has no description of its kind
    └── InternalError               70  a bug in memplan

``message`` names the value at fault in one line; ``hint`` says what to type instead. ``DoesNotFit`` is no error: it is
an exit code (1) that the commands return."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

EXIT_DONE, EXIT_DOES_NOT_FIT, EXIT_USAGE, EXIT_MODEL, EXIT_BUG = 0, 1, 2, 3, 70


MOST_SHOWN = 2000
"""Characters of a message: what a value at fault holds may be a megabyte."""


def shortened(text: str) -> str:
    """A text of at most so many characters, its middle left out."""
    half = MOST_SHOWN // 2
    return text if len(text) <= MOST_SHOWN else f"{text[:half]} … {text[-half:]}"


class MemplanError(Exception):
    """Base of all: one line of message, one line of hint, one exit code."""

    exit_code: int = EXIT_BUG

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = shortened(message), shortened(hint)
        super().__init__(self.message)


class UsageError(MemplanError):
    """The command line, or a call from Python, cannot be understood."""

    exit_code = EXIT_USAGE


class InvalidJob(UsageError):
    """A job key is unknown, a value is out of range, or a combination is impossible."""

    given: Any = None
    """The job at fault, where there is one."""

    def __init__(self, message: str, hint: str = "", changes: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, hint)
        self.changes = changes or {}
        """The hint as keys of the job, which a file may have words of its own for."""


class NoTraining(InvalidJob):
    """A program or a notebook that starts no training."""


class ModelError(MemplanError):
    """The model cannot be described."""

    exit_code = EXIT_MODEL


class ModelNotFound(ModelError):
    """No such preset, file or repository, or it cannot be reached."""


class UnknownArchitecture(ModelError):
    """The config is readable, but nothing here describes its kind of model."""


class InternalError(MemplanError):
    """A bug in memplan."""


def printable(text: str) -> str:
    """The text as it may be shown: its lines stay, and what steers a terminal or is no character becomes an escape."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\u00a0" else char.encode("unicode_escape").decode() for char in text
    )


def printable_json(text: str) -> str:
    """The same JSON with the characters escaped that steer a terminal and that JSON leaves as they are."""
    found = [char for char in map(chr, range(0x7F, 0xA0)) if char in text]
    return text.translate({ord(char): f"\\u{ord(char):04x}" for char in found}) if found else text


ALIKE = 0.75
"""Likeness from which on a name may be meant."""
AS_GOOD = 0.08
"""Names that are so much less alike than the best are left out."""


def nearest(value: str, known: Iterable[str], count: int = 3, a_word_more: bool = True) -> list[str]:
    """The known names closest to what was typed, best first; empty when nothing is close."""
    names = {name: likeness(value, name, a_word_more) for name in known}
    least = max([ALIKE, *(each - AS_GOOD for each in names.values())])
    return sorted((name for name, alike in names.items() if alike >= least), key=lambda name: -names[name])[:count]


def likeness(value: str, name: str, a_word_more: bool = True) -> float:
    """How much what was typed looks like a name, from 0 to 1: a slip (sympo), words shortened or left out (seq-len),
    or, where that may be, a word too many (flash-attention). Another number is another thing: 65b is no slip of 8b."""
    typed, whole = _letters_and_numbers(value), _letters_and_numbers(name)
    packed, target = "".join(typed), "".join(whole)
    if not packed or not target:
        return 0.0
    if packed == target:
        return 1.0
    if len(packed) > 1 and _shorten(typed, whole):
        return ALIKE + (1 - ALIKE) * len(packed) / len(target)
    if a_word_more and len(target) > ENOUGH * len(packed) and _shorten(whole, typed, exactly=True):
        return ALIKE + (1 - ALIKE) * len(target) / len(packed)
    if sorted(packed) == sorted(target) and packed[0] == target[0]:
        return SWAPPED
    numbers, others = (re.sub("[a-z]", "", text) for text in (packed, target))
    slip = len(numbers) == len(others) and set(numbers) == set(others)
    if not (slip or others.startswith(numbers) or (others and numbers.startswith(others))):
        return 0.0
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, packed, target, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= ALIKE else 0.0


ENOUGH, SWAPPED = 0.45, 0.9
"""Share of what was typed that a name must be, with words beside it; likeness of the same letters in another order."""


def _letters_and_numbers(text: str) -> list[str]:
    return re.findall("[a-z]+|[0-9]+", text[:LONGEST_NAME].lower())


LONGEST_NAME = 100
"""Characters of a name that are compared."""


def _shorten(words: list[str], whole: list[str], exactly: bool = False) -> bool:
    """Whether words stand, in their order, for words of the whole: cut short, or with letters left out (ckpt for
    checkpointing), numbers alone as they are; each as it is, where ``exactly``."""
    left = iter(whole)
    return all(any(word == other or (not exactly and _shortens(word, other)) for other in left) for word in words)


def _shortens(word: str, other: str) -> bool:
    if word.isdecimal() or other.isdecimal() or word[0] != other[0]:
        return False
    letters = iter(other)
    return other.startswith(word) or (len(word) > 2 and all(letter in letters for letter in word))


KEYS_ARE_LISTED = "memplan estimate --help-all lists what a job takes"


def did_you_mean(value: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint that names the closest known values, or all of them when they are few, or where they are listed."""
    names = list(known)
    close = nearest(value, names)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(names) if len(names) <= 20 else otherwise
