"""Words in the making, and values of variables; what is not known is marked within them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from memplan.frameworks.shell.reader import Word

UNKNOWN = "\ue000"
"""Stands before what is not known, within words as they are worked out."""
_HIDDEN = {" ": "\ue001", "\n": "\ue002", "\t": "\ue003"}
"""Blanks of what is not known: a shell would see its value there, no blank."""
_PRIVATE = str.maketrans({UNKNOWN: "", **{hidden: char for char, hidden in _HIDDEN.items()}})
_HIDE = str.maketrans(_HIDDEN)


def shown(text: str) -> str:
    """A text as it goes out: what is not known as it was written."""
    return text.translate(_PRIVATE)


def unknown(text: str) -> str:
    """What stays as it is written."""
    return UNKNOWN + text.translate(_HIDE)


class Value(NamedTuple):
    """Of a variable: a text, or the words of an array."""

    text: str
    items: tuple[Word, ...] | None = None
    notes: frozenset[str] = frozenset()
    """What must be said where it is used."""


class Fields:
    """The words that one written word comes to."""

    def __init__(self, line: int, split: bool) -> None:
        self.line, self.split = line, split
        self.done: list[Word] = []
        self._now: list[str] = []
        self._begun, self._place = False, 0

    def add(self, text: str, quoted: bool = True) -> None:
        """More text; blanks in what is not quoted end a word."""
        if quoted or not self.split:
            self._now.append(text)
            self._begun = True
            return
        parts = re.split(r"[ \t\n]+", text)
        for place, part in enumerate(parts):
            if place:
                self.end()
            if part:
                self._now.append(part)
                self._begun = True

    def items(self, words: tuple[Word, ...]) -> None:
        """The words of an array, each its own; the first goes on what was begun, and the last stays open."""
        for place, word in enumerate(words):
            if place:
                self.end()
            if not self._begun:
                self._place = word.line
            self._now.append(word.text)
            self._begun = True

    def end(self) -> None:
        """What was begun is a word."""
        if self._begun:
            self.done.append(Word("".join(self._now), self._place or self.line))
        self._now, self._begun, self._place = [], False, 0


_NO_WORDS = re.compile(r"\s*($|[-+~]|[\w.]+=)")


def first_of(values: Sequence[Value]) -> Value:
    """The first; where it is empty, as ``GROUPS="$*"`` is where nobody says the arguments, the first that is words: no
    options, which may be left out as well."""
    empty = not values[0].text and values[0].items is None
    return next((each for each in values if not _NO_WORDS.match(each.text)), values[0]) if empty else values[0]
