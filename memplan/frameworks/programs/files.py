"""Files that a program reads or imports, where they lie beside it or in the project around it: its modules, and configs
whose path the text holds."""

from __future__ import annotations

import os
import re
from pathlib import Path

from memplan.errors import MemplanError
from memplan.frameworks.documents import Document, Settings
from memplan.frameworks.following import open_reference
from memplan.frameworks.programs.values import LIBRARIES
from memplan.frameworks.sourced import project_of

MOST_FILES = 40
MOST_TELLING = 64
"""With those whose name speaks of a training."""
_TELLING = re.compile(r"train|arg|conf|param|option")
DATA = (".yaml", ".yml", ".json", ".toml")


class Files:
    """Opens what a program names; nothing out of its folder and the project around it."""

    def __init__(self, path: str, starter: str = "") -> None:
        self.path, self.opened = path, 0
        self.bases = (starter, path) if starter else (path,)
        """Where configs are looked for: in the folder of the script that starts the program before its own."""
        self.added: list[str] = []  # to ``sys.path``
        self._data: dict[str, Document | None] = {}
        self._folders: dict[str, list[str]] = {}

    def has(self, reference: str) -> bool:
        """Whether a config lies here."""
        reference = _of_here(reference)
        return reference.endswith(DATA) and any(self._is(base, reference) for base in self.bases)

    def data(self, reference: str) -> Document | None:
        """A config; None where it is not here, or is none."""
        if self.has(reference) and reference not in self._data:
            found = (self._open(base, _of_here(reference)) for base in self.bases)
            self._data[reference] = next((each for each in found if each is not None), None)
        return self._data.get(reference)

    @property
    def read(self) -> list[str]:
        """Paths of the configs that were opened."""
        return [str(Path(each.path).resolve()) for each in self._data.values() if each is not None]

    def module(self, name: str, level: int, importer: str) -> Document | None:
        """The Python of ``import name``: in the program's folder, the project's, those it adds to ``sys.path``, ``src``
        or a folder of the package's own name, as ``pip install -e tools`` has it; a relative one in the importer's."""
        if not level and name.partition(".")[0] in LIBRARIES:
            return None
        up = "../" * (level - 1)
        base = importer.partition(", cell ")[0] if level else self.path
        path = f"{up}{name.replace('.', '/')}"
        both = (f"{path}.py", f"{path}/__init__.py")
        inner = () if level else (*self.added, "src", name.partition(".")[0])
        for reference in (*both, *(f"{folder}/{each}" for folder in inner for each in both)) if name else ():
            found = self._open(base, _of_here(reference))
            if found is not None:
                return found
        return None

    def _is(self, base: str, reference: str) -> bool:
        if base not in self._folders:
            self._folders[base] = [str(each) for each in _around(base)]
        return any(os.path.isfile(os.path.join(each, reference)) for each in self._folders[base])

    def _open(self, base: str, reference: str) -> Document | None:
        telling = reference.endswith(DATA) or _TELLING.search(reference.rpartition("/")[2])
        most = MOST_TELLING if telling else MOST_FILES
        if self.opened >= most or not self._is(base, reference):
            return None
        try:
            found = open_reference(Settings(base, {}), "import", reference)
        except MemplanError:
            return None
        self.opened += 1
        return found


def _of_here(reference: str) -> str:
    """A path from the working directory whole, as ``Path(__file__).parents[1] / "a.yaml"`` comes to one."""
    return os.path.abspath(reference) if os.path.isfile(reference) else reference


def might_be(base: str, reference: str) -> bool:
    """Whether such a file is beside the program, in its project, or in a folder between."""
    return any((each / reference).is_file() for each in _around(base))


def _around(base: str) -> list[Path]:
    here = Path(base).resolve().parent
    top = project_of(here)
    return [each for each in (here, *here.parents) if each.is_relative_to(top)]
