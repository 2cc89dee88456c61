"""Files that a program reads or imports, where they lie beside it or in the project around it: its modules, and configs
whose path the text holds.
"""

from __future__ import annotations

from pathlib import Path

from memplan.errors import MemplanError
from memplan.frameworks.documents import Document, Settings
from memplan.frameworks.following import open_reference
from memplan.frameworks.python_values import LIBRARIES
from memplan.frameworks.sourced import project_of

MOST_FILES = 16
DATA = (".yaml", ".yml", ".json", ".toml")


class Files:
    """Opens what a program names; nothing out of its folder and the project around it."""

    def __init__(self, path: str) -> None:
        self.path, self.opened = path, 0
        self._data: dict[str, Document | None] = {}

    def has(self, reference: str) -> bool:
        """Whether a config lies here."""
        return reference.endswith(DATA) and might_be(self.path, reference)

    def data(self, reference: str) -> Document | None:
        """A config; None where it is not here, or is none."""
        if self.has(reference) and reference not in self._data:
            self._data[reference] = self._open(self.path, reference)
        return self._data.get(reference)

    def module(self, name: str, level: int, importer: str) -> Document | None:
        """The Python of ``import name``: in the program's folder or the project's, a relative one in the importer's."""
        if not level and name.partition(".")[0] in LIBRARIES:
            return None
        up = "../" * (level - 1)
        base = importer.partition(", cell ")[0] if level else self.path
        for reference in (f"{up}{name.replace('.', '/')}.py", f"{up}{name.replace('.', '/')}/__init__.py"):
            found = self._open(base, reference) if name else None
            if found is not None:
                return found
        return None

    def _open(self, base: str, reference: str) -> Document | None:
        if self.opened >= MOST_FILES or not might_be(base, reference):
            return None
        try:
            found = open_reference(Settings(base, {}), "import", reference)
        except MemplanError:
            return None
        self.opened += 1
        return found


def might_be(base: str, reference: str) -> bool:
    """Whether such a file is beside the program, in its project, or in a folder between."""
    here = Path(base).resolve().parent
    top = project_of(here)
    return any((each / reference).is_file() for each in (here, *here.parents) if each.is_relative_to(top))
