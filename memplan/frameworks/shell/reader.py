"""A command of a script as words with lines, and its options. How a script comes to its commands is in ``scripts``."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

_NUMBER = re.compile(r"[-+]?(\d+(_\d+)*)")
_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
MAX_WORDS = 5000
MAX_LINE = 64 * 1024
"""Characters of a line once variables are put in."""
MAX_TEXT = 512 * 1024
"""Characters of all words, likewise."""
SHORTER = "leave its training alone"
MAX_KEPT = 500_000
"""Variables that are kept for all commands together."""


class Word(NamedTuple):
    """A word of a command and its line."""

    text: str
    line: int


class Given(NamedTuple):
    """What a script is started with: variables, and arguments."""

    variables: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """One command of a script."""

    words: tuple[Word, ...]
    environment: dict[str, str]
    """Variables set before it, by export or in front of it."""
    place: int = 0
    """The line that it is named by: of a function's command, where the function is called."""
    remarks: tuple[str, ...] = ()
    """Sentences about values in it: of a loop, under a condition."""
    around: tuple[Word, ...] = ()
    """What starts the shell that it is given to in quotes: ``srun --ntasks=8`` of ``srun … bash -c '…'``."""
    within: str = ""
    """The other script that it stands in, which this one starts."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The words without their lines."""
        return tuple(word.text for word in self.words)

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.words[0].line if self.words else 0


def options_of(words: tuple[Word, ...] | list[Word]) -> tuple[dict[str, Any], dict[str, int], list[Word]]:
    """``--key value``, ``--key=value``, ``--flag``, ``--list a b``: values and lines by key; words before them.

    Dashes within a name are underscores. An option without a value is true; one with several is a list."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    loose: list[Word] = []
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word.text):
            key, equals, text = word.text.lstrip("-").partition("=")
            name = key.replace("-", "_")
            lines[name] = word.line
            values[name] = scalar(text) if equals else True
            name = "" if equals else name
        elif not name:
            loose.append(word)
        elif values[name] is True:
            values[name] = scalar(word.text)
        elif isinstance(values[name], list):
            values[name].append(scalar(word.text))
        else:
            values[name] = [values[name], scalar(word.text)]
    return values, lines, loose


def scalar(text: str) -> Any:
    """A word as the value that a parser of arguments makes of it: true, false, null, numbers; else text."""
    word = text.lower()
    if word in ("true", "false"):
        return word == "true"
    if word in ("null", "none"):
        return None
    if _NUMBER.fullmatch(text) and len(text) <= 30:
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) and len(text) <= 30 else text
