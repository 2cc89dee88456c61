"""Parameters of a command, of which typer is handed those that a command line names: it makes something of each.

Their help is written only when it is shown (see ``helps``)."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple

import typer

from memplan.tables.texts import texts_by_name


class Parameter(NamedTuple):
    """An option that may be absent, a flag where ``kind`` is bool; or a word at its place, where nothing is written."""

    name: str
    kind: Any
    written: tuple[str, ...] = ()
    """--padded/--no-padded; -b."""
    metavar: str = ""

    @property
    def words(self) -> list[str]:
        """Every spelling that asks for it, by itself."""
        return [word for written in self.written for word in written.split("/")]

    def made(self) -> inspect.Parameter:
        """As typer reads it. The command says itself what is missing."""
        of = typer.Option if self.written else typer.Argument
        made = of(*self.written, metavar=self.metavar or None, show_default=False)
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[self.kind | None, made]
        )


@cache
def _rows() -> dict[str, str]:
    """What each command takes, word by word."""
    return texts_by_name(__file__)


def parameters_of(row: str, keys: Callable[[], list[Parameter]]) -> list[Parameter]:
    """Those of a command, or of a row that several have in theirs. ``keys``: what makes those of a job."""
    made = list[Parameter]()
    for word in _rows()[row].split():
        if word == "keys":
            made += keys()
        elif word.startswith("-") or "=" in word:
            made.append(_parameter(word))
        else:
            name, *without = word.split("-")
            made += [each for each in parameters_of(name, keys) if each.name not in without]
    return made


def _parameter(word: str) -> Parameter:
    """NAME=METAVAR, or an option: NAME=--flag,-f:METAVAR, where both ends may be left out."""
    kind, word = {"+": list[str], "#": int}.get(word[-1], str), word.rstrip("+#")
    name, _, written = ("", "", word) if word.startswith("-") else word.partition("=")
    if not written.startswith("-"):
        return Parameter(name, kind, (), written.replace("…", " …"))
    flags, _, metavar = written.partition(":")
    first, *_ = spellings = tuple(flags.split(","))
    return Parameter(name or first[2:].replace("-", "_"), kind if metavar else bool, spellings, metavar)
