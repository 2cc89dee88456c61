"""Pure functions remembered by what they read: a search asks for the same few things a hundred thousand times.

A function of a recipe and its parts is run once over ``Watched`` objects, which note each attribute that it reads. Its
result is kept under the values of these attributes alone, in a tree: a node is an attribute, its branches are values,
its leaves results. So nobody keeps a list of what a row depends on, and none can be forgotten: a job that agrees in
everything that was read has the same result, whatever else it changes.

Numbers and strings are compared as they are; other values become numbers, equal ones the same (``Values``)."""

from collections.abc import Callable, Container
from functools import cache
from inspect import getattr_static
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, Generic, TypeVar

from memplan.spec.recipe import PARTED, Recipe

_T = TypeVar("_T")
PLAIN = frozenset({int, str, bool, float, type(None)})
MOST = 50_000
"""Results that one function remembers, before all are forgotten."""
PATHS = tuple(f"{group}.{name}" for group in PARTED for name in Recipe.__annotations__[group]._fields)
"""The fields of the groups that are watched by their fields."""
OF_GROUPS, GETTER = attrgetter(*PARTED), cache(attrgetter)


class Values:
    """Numbers for values: equal values of one type have the same. Those that cannot be hashed are the same only as
    the same object. All that have a number are kept, so that an ``id`` stays theirs."""

    def __init__(self) -> None:
        self._of_id: dict[int, tuple[tuple[int], Any]] = {}
        self._of_value: dict[Any, tuple[int]] = {}

    def key(self, value: Any) -> Any:
        """What stands for the value in a tree: itself, or a number in a tuple, which no plain value equals."""
        if type(value) in PLAIN:
            return value
        known = self._of_id.get(id(value))
        return known[0] if known is not None else self._new(value)

    def _new(self, value: Any) -> tuple[int]:
        number = (len(self._of_id),)
        try:
            comparable = tuple(sorted(value.items())) if isinstance(value, dict) else value
            number = self._of_value.setdefault((type(value), comparable), number)
        except TypeError:
            pass
        self._of_id[id(value)] = number, value
        return number

    def __len__(self) -> int:
        return len(self._of_id)

    def forget(self) -> None:
        """Start again; every tree of such numbers must, too."""
        self._of_id.clear()
        self._of_value.clear()


class Reading(dict[str, Any]):
    """One question: the key of every attribute, of its parts, which are its own attributes, or else of the recipe;
    those that are no plain values are looked up when they are first asked for."""

    def __init__(self, known: Values, recipe: Any, names: frozenset[str] = frozenset()) -> None:
        fields = zip(PATHS, chain.from_iterable(OF_GROUPS(recipe)), strict=True)
        super().__init__((path, value) for path, value in fields if type(value) in PLAIN)
        self.known, self.recipe, self.names = known, recipe, names

    def __missing__(self, name: str) -> Any:
        source = self if name in self.names else self.recipe
        key = self[name] = self.known.key(GETTER(name)(source) if name else source)  # of which a copy was made: all
        return key


class Copied:
    """A copy of a watched recipe, with other values in some fields: the others are read, and noted, there; what follows
    from fields (properties, methods) is asked of the copy."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, of: Any, kind: Any, changes: dict[str, Any]) -> None:
        self.__dict__.update(changes)
        self._of, self._kind = of, kind

    def __getattr__(self, name: str) -> Any:
        kind = self._kind
        value = getattr(self._of, name) if name in kind._fields else getattr_static(kind, name).__get__(self, kind)
        self.__dict__[name] = value
        return value

    def _replace(self, **changes: Any) -> "Copied":
        return Copied(self, self._kind, changes)


class Watched:
    """Stands for a recipe, for one of its groups, or for its parts, and notes what is read of it, in order; of a group
    of which a copy is made, all. What was read once stays as an attribute of its own."""

    __hash__ = None  # type: ignore[assignment]  # what is remembered by a group would not see its fields

    def __init__(self, source: Any, noted: dict[str, None], groups: Container[str] = (), path: str = "") -> None:
        self._source, self._noted, self._groups, self._path = source, noted, groups, path

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._source, name)
        if name in self._groups:
            value = Watched(value, self._noted, path=f"{name}.")
        else:
            self._noted[self._path + name] = None
        self.__dict__[name] = value
        return value

    def _replace(self, **changes: Any) -> Any:
        if self._groups:
            return Copied(self, type(self._source), changes)
        self._noted[self._path[:-1]] = None
        return self._source._replace(**changes)


class _Node(dict[Any, Any]):
    """Branches by the values of one attribute."""

    __slots__ = ("attribute",)

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self.attribute = attribute


class Remembered(Generic[_T]):
    """A function of (recipe, parts) whose results are kept by what it read. It must be pure, and give something."""

    def __init__(self, function: Callable[[Any, Any], _T], read: set[str] | None = None) -> None:
        """``read``: what this and other functions read of any recipe or parts comes to be there."""
        self.function, self._read = function, set[str]() if read is None else read
        self._root: Any = None
        self._leaves = 0

    def forget(self) -> None:
        """Start again."""
        self._root, self._leaves = None, 0

    def __call__(self, reading: Reading) -> _T:
        """The result for this recipe and its parts."""
        node = self._root
        while type(node) is _Node:
            node = node.get(reading[node.attribute])
        if node is None:
            node = self._compute(reading)
        result: _T = node
        return result

    def _compute(self, reading: Reading) -> _T:
        noted: dict[str, None] = {}
        result = self.function(Watched(reading.recipe, noted, PARTED), Watched(reading, noted))
        if self._leaves >= MOST:
            self.forget()
        self._leaves += 1
        names = list(noted)
        self._read.update(names)
        if self._root is None:
            self._root = _Node(names[0])
        node = self._root
        for attribute, following in pairwise(names):
            assert node.attribute == attribute, f"{attribute} read where {node.attribute} was: not a pure function"
            node = node.setdefault(reading[attribute], _Node(following))
        node[reading[names[-1]]] = result
        return result
