"""Parameters of a command, of which typer is handed those that a command line names: it makes something of each.

Their help is written only when it is shown (see ``helps``)."""

import inspect
from typing import Annotated, Any, NamedTuple

import typer


class Parameter(NamedTuple):
    """An option that may be absent, a flag where ``kind`` is bool; or a word at its place, where nothing is written."""

    name: str
    kind: Any
    written: tuple[str, ...] = ()
    """--padded/--no-padded; -b."""
    metavar: str | None = None

    @property
    def words(self) -> list[str]:
        """Every spelling that asks for it, by itself."""
        return [word for written in self.written for word in written.split("/")]

    def made(self) -> inspect.Parameter:
        """As typer reads it. The command says itself what is missing."""
        of = typer.Option if self.written else typer.Argument
        made = of(*self.written, metavar=self.metavar, show_default=False)
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[self.kind | None, made]
        )


def option(name: str, kind: Any, *written: str, metavar: str | None = None) -> Parameter:
    """An option that may be absent."""
    return Parameter(name, kind, written, metavar)


def argument(name: str, metavar: str, kind: Any = str) -> Parameter:
    """A word at its place, or several."""
    return Parameter(name, kind, (), metavar)
