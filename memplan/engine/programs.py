"""Programs by name: each is imported when a job first asks for it, as a job needs few of many."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar

from memplan.tables.texts import parts_of, rows_of

_P = TypeVar("_P")
_PARTS = parts_of(__file__)


class Programs(Mapping[str, _P], Generic[_P]):
    """Functions by the names that a spec or a recipe calls them: those below a heading of the text beside this file."""

    def __init__(self, heading: str) -> None:
        self._places = rows_of(_PARTS[heading])
        self._found: dict[str, _P] = {}

    def __getitem__(self, name: str) -> _P:
        if name not in self._found:
            module, _, function = self._places[name].partition(":")
            self._found[name] = getattr(import_module(f"memplan.engine.{module}"), function)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
