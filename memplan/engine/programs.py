"""Programs by name: each is imported when a job first asks for it, as a job needs few of many."""

from importlib import import_module
from typing import TypeVar

from memplan.tables.texts import Lazily, parts_of, rows_of

_P = TypeVar("_P")
_PARTS = parts_of(__file__)


class Programs(Lazily[str, _P]):
    """Functions by the names that a spec or a recipe calls them: those below a heading of the text beside this file."""

    def __init__(self, heading: str) -> None:
        self._places = rows_of(_PARTS[heading])
        super().__init__(self._places, self._import)

    def _import(self, name: str) -> _P:
        module, _, function = self._places[name].partition(":")
        return getattr(import_module(f"memplan.engine.{module}"), function)  # type: ignore[no-any-return]
