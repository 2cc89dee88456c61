"""The parts of a script: commands, conditions, loops, functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Union

from memplan.frameworks.shell.syntax import Raw


class Redirect(NamedTuple):
    """``> file``, or a here-document with its text."""

    sign: str
    target: Raw
    body: list[str]
    """One text, once it is read: of ``<<``."""

    @property
    def quoted(self) -> bool:
        """Whether a here-document's text stands as it is written."""
        return any(char in self.target.text for char in "'\"\\")


@dataclass(frozen=True)
class Simple:
    """A command: words, redirections; ``form`` sum or test for a bracket of its own."""

    words: tuple[Raw, ...]
    redirects: tuple[Redirect, ...] = ()
    form: str = ""


@dataclass(frozen=True)
class Chain:
    """Commands joined by ``&&``, ``||`` (before each the sign), or a pipe (``|``); ``negated`` by ``!``."""

    parts: tuple[tuple[str, Node], ...]
    negated: bool = False


@dataclass(frozen=True)
class Block:
    """``{ … }``, ``( … )``."""

    body: tuple[Node, ...]
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class Branch:
    """``if``: conditions with what follows each; the last without one is ``else``."""

    arms: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True)
class Choice:
    """``case``: a word, and patterns with what follows each."""

    word: Raw
    arms: tuple[tuple[tuple[Raw, ...], tuple[Node, ...]], ...]


@dataclass(frozen=True)
class Loop:
    """``for name in words``, ``for ((…))`` (``words`` None, ``name`` its text), ``while`` (``name`` empty)."""

    name: str
    words: tuple[Raw, ...] | None
    condition: tuple[Node, ...]
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True)
class Function:
    """``name() { … }``."""

    name: str
    body: tuple[Node, ...]
    line: int


Node = Union[Simple, Chain, Block, Branch, Choice, Loop, Function]  # noqa: UP007 - Python 3.10 makes it when it runs
