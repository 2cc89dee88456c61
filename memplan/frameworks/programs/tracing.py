"""Where the values of a program stand, and what those come from that nobody knows."""

import ast
from functools import cache
from itertools import islice
from typing import Any

from memplan.frameworks.programs.operators import written
from memplan.frameworks.programs.values import Frame, Function, Place, Ref, Thing, Unknown, is_plain, root_of
from memplan.frameworks.project.pinned import pinned
from memplan.tables.trainers import newest_read

LOOKED_AT = 24
"""Parts of an expression that are looked at for what it comes from."""


@cache
def handler_of(kind: str) -> str:
    """The name of the method that goes through nodes of this class."""
    return f"_{kind.lower()}"


class Names(dict[tuple[str, int], Frame]):
    """Names of the modules that a program reads. Their functions know them again: these are let go of with the last
    run that has them, or whole syntax trees wait until garbage is looked for."""

    def __init__(self, main: Frame) -> None:
        self.main = main

    def __del__(self) -> None:
        for frame in (self.main, *self.values()):
            frame.names = {}


class Tracing:
    """Where a value stands and what it comes from; what goes through a program is its interpreter's."""

    argv: list[str]
    """The command that starts the program; empty where none is known."""
    start: str
    """The file that it starts with."""
    path: str
    frame: Frame
    """Of the expression that is worked out."""

    def step(self, node: ast.AST) -> None:
        """Count one more step. Raises InvalidJob beyond what a training's script takes."""
        raise NotImplementedError

    def call(self, node: ast.Call, frame: Frame) -> Any:
        """What a call comes to."""
        raise NotImplementedError

    def invoke(self, function: Function, args: list[Any], named: dict[str, Any], place: Place) -> Any:
        """What a function of the program returns."""
        raise NotImplementedError

    def cut(self, node: ast.Slice, bound: Any) -> None:
        """``ids[:MAX_LENGTH]``: a row may be cut here."""
        raise NotImplementedError

    def of_library(self, owner: Ref, name: str) -> Any:
        """``library.name``: its version is what the project pins, else the newest that is read."""
        if name == "__version__" and owner.name in ("transformers", "trl"):
            return pinned(self.start.partition(", cell ")[0], owner.name)[0] or newest_read(owner.name)
        whole = f"{owner.name}.{name}"
        return self.argv or Ref(whole) if whole == "sys.argv" else Ref(whole)

    def place(self, node: ast.AST) -> Place:
        """Where a node stands."""
        return Place(self.path, getattr(node, "lineno", 1))

    def assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Bind a name, an attribute, an element, or several of these."""
        raise NotImplementedError

    def _constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value if is_plain(node.value) else self.unknown(node)

    def unknown(self, node: ast.AST, either: tuple[Any, ...] = ()) -> Unknown:
        """That a node's value is not known."""
        return Unknown(written(node), self.place(node), either, self._root(node))

    def _root(self, node: ast.AST) -> str:
        """What an expression comes from: the first of its names that comes from something."""
        for owner, name in _named(node):
            try:
                value = self.frame.find(owner)
            except KeyError:
                continue
            root = root_of(value.values.get(name) if name and isinstance(value, Thing) else value)
            if root:
                return root
        return ""


def _named(node: ast.AST) -> list[tuple[str, str]]:
    """Names among the first parts of an expression, and their attributes; kept with it, which is met many times."""
    kept: list[tuple[str, str]] | None = getattr(node, "memplan_named", None)
    if kept is None:
        parts = islice(ast.walk(node), LOOKED_AT)
        pairs = ((each.value, each.attr) if isinstance(each, ast.Attribute) else (each, "") for each in parts)
        kept = [(owner.id, name) for owner, name in pairs if isinstance(owner, ast.Name)]
        node.memplan_named = kept  # type: ignore[attr-defined]
    return kept
