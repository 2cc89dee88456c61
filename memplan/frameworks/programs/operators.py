"""Operators that are worked out, on values that stay small; parts of paths; an expression as it is written."""

import ast
import operator
import posixpath
import re
from collections.abc import Callable
from typing import Any

from memplan.frameworks.programs.values import MAX_TEXT, Method, Place, Thing, Unknown, known, root_of
from memplan.presets import find_by_hub_id, find_preset
from memplan.units import pairs_of

MAX_ITEMS = 400

"""Elements of a list or a mapping that is looked into."""

MAX_NUMBER = 10**18

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    getattr(ast, name): getattr(operator, word)
    for name, word in pairs_of(
        "Add=add Sub=sub Mult=mul Div=truediv FloorDiv=floordiv Mod=mod Pow=pow BitOr=or_"
    ).items()
}

COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{getattr(ast, name): getattr(operator, name.lower()) for name in ("Eq", "Lt", "Gt")},
    ast.NotEq: operator.ne,
    ast.LtE: operator.le,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


def open_(value: object) -> bool:
    """Whether it is a text of a command's with a variable in it that its script leaves to who starts it."""
    return isinstance(value, str) and _VARIABLE.search(value) is not None


_VARIABLE = re.compile(r"\$[\w{(@]")


def path_of(path: Thing, text: str) -> Thing:
    """Another path."""
    return Thing(path.name, path.place, {"*0": text})


PATHS: dict[str, Callable[[Thing], Any]] = {
    "parent": lambda path: path_of(path, posixpath.dirname(path.values["*0"]) or "."),
    "parents": lambda path: [path_of(path, posixpath.normpath(f"{path.values['*0']}/..{'/..' * n}")) for n in range(6)],
    "name": lambda path: posixpath.basename(path.values["*0"]),
}

"""Attributes of a path."""


def are_pairs(value: Any) -> bool:
    """Whether it is a list of pairs."""
    return isinstance(value, list) and all(isinstance(each, tuple) and len(each) == 2 for each in value)


def small(value: Any) -> bool:
    """Whether a value is small enough to be worked with."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if isinstance(value, (list, dict)):
        return len(value) <= MAX_ITEMS
    return isinstance(value, (int, float)) and abs(value) < MAX_NUMBER


def tame(op: ast.AST, left: Any, right: Any) -> bool:
    """Whether a power or a product stays small."""
    if isinstance(op, ast.Pow):
        return (
            isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(right) <= 30 >= abs(left) / 1e3
        )
    return all(isinstance(each, (int, float)) for each in (left, right)) or (
        isinstance(left, str) and isinstance(right, int) and len(left) * right <= MAX_TEXT
    )


def written(node: ast.AST) -> str:
    """An expression as it is written, in short; worked out once."""
    found: str | None = getattr(node, "memplan_written", None)
    if found is None:
        found = _written(node)
        node.memplan_written = found  # type: ignore[attr-defined]
    return found


def _written(node: ast.AST) -> str:
    if len(getattr(node, "elts", ())) > 20 or len(getattr(node, "keys", ())) > 20:
        return f"a {type(node).__name__.lower()}"
    if getattr(node, "end_lineno", 0) != getattr(node, "lineno", 0) and not isinstance(node, (ast.Call, ast.IfExp)):
        return f"an expression of several lines ({type(node).__name__})"
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):
        return "an expression"
    return text if len(text) <= 60 else f"{text[:57]}..."


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same for a reader."""
    if one is other:
        return True
    if isinstance(one, Unknown) and isinstance(other, Unknown):
        return one.text == other.text and one.root == other.root and not one.either and not other.either
    return type(one) is type(other) and known(one) and known(other) and bool(one == other)


def joined(values: list[Any], text: str, place: Place) -> Any:
    """One value for several branches: the one that all have, a thing of what they share, or what is not known."""
    first = values[0]
    if all(same(first, other) for other in values[1:]):
        return first
    if all(isinstance(value, Thing) and value.name == first.name and value.own is first.own for value in values):
        return _merged(values, text, place)
    if all(type(value) is tuple and len(value) == len(first) for value in values):
        return tuple(joined(list(several), text, place) for several in zip(*values, strict=True))
    flat: list[Any] = []
    for value in values:
        flat += value.either if isinstance(value, Unknown) and value.either else [value]
    certain = all(not isinstance(value, (Unknown, Method)) for value in flat)
    root = next((root for root in map(root_of, flat) if root), "")
    return Unknown(text, place, tuple(flat[:8]) if certain else (), root)


def _merged(things: list[Thing], text: str, place: Place) -> Thing:
    first = things[0]
    names = list(dict.fromkeys(key for thing in things for key in thing.values))
    merged = Thing(first.name, first.place, {}, {}, first.own, first.depth)
    for key in names:
        values = [thing.values.get(key) for thing in things]
        where = next((thing.places[key] for thing in things if key in thing.places), first.place)
        merged.set(key, joined(values, text, place) if len(names) < 200 else Unknown(text, place), where)
    return merged


def spread(value: Any, unknown: Unknown) -> dict[str, Any]:
    """``**value``, of which a name that nobody knows may be any; what a library's call gives is not its arguments."""
    if isinstance(value, Thing):
        value = value.values if value.own or value.name == "arguments" else unknown
    if not isinstance(value, dict):
        return {"**": unknown}
    named = {key: each for key, each in value.items() if str(key)[:1] != "?"}
    return named if len(named) == len(value) else named | {"**": unknown}


def ending(call: ast.AST) -> str:
    """How a name ends that only a run knows: ``setattr(args, folder + "_dir", ...)``; empty where it is not told."""
    name = call.args[1] if isinstance(call, ast.Call) and len(call.args) > 1 else None
    if isinstance(name, ast.BinOp) and isinstance(name.op, ast.Add):
        name = name.right
    elif isinstance(name, ast.JoinedStr) and name.values:
        name = name.values[-1]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def under_unknown(last: Any) -> str:
    """``os.path.join(CACHE, "Qwen3-8B")``, ``CACHE / name``: of a folder that nobody knows one within that is named as
    a model is; empty for any other."""
    named = isinstance(last, str) and (find_by_hub_id(last) or find_preset(last.rpartition("/")[2]))
    return f"/…/{last}" if named else ""
