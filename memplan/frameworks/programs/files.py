"""Files that a program reads or imports, where they lie beside it or in the project around it: its modules, and configs
whose path the text holds."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from memplan.errors import MemplanError
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import ends_of, open_reference
from memplan.frameworks.files.sourced import project_of
from memplan.frameworks.programs.values import LIBRARIES

MOST_FILES = 40
MOST_TELLING = 64
"""With those whose name speaks of a training."""
MOST_ASKED = 8192
"""Names that are kept with what lies there; of modules one in fifteen lies here."""
_TELLING = re.compile(r"train|arg|conf|param|option")
DATA = (".yaml", ".yml", ".json", ".toml")


class Files:
    """Opens what a program names; nothing out of its folder and the project around it."""

    def __init__(self, path: str, starter: str = "") -> None:
        self.path, self.opened = path, 0
        self.bases = (starter, path) if starter else (path,)
        """Where configs are looked for: in the folder of the script that starts the program before its own."""
        self.added: list[str] = []  # to ``sys.path``
        self._folders: dict[str, str] = {}
        self._data: dict[str, Document | None] = {}

    def has(self, reference: str) -> bool:
        """Whether a config lies here."""
        reference = _of_here(reference)
        return reference.endswith(DATA) and any(_is(self._of(base), reference) for base in self.bases)

    def data(self, reference: str) -> Document | None:
        """A config; None where it is not here, or is none."""
        if self.has(reference) and reference not in self._data:
            found = (self._open(base, reference) for base in self.bases)
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
            found = self._open(base, reference)
            if found is not None:
                return found
        return None

    def _of(self, base: str) -> str:
        if base not in self._folders:
            self._folders[base] = _folder_of(base)
        return self._folders[base]

    def _open(self, base: str, reference: str) -> Document | None:
        telling = reference.endswith(DATA) or _TELLING.search(reference.rpartition("/")[2])
        most = MOST_TELLING if telling else MOST_FILES
        found = lying(self._of(base), reference) if self.opened < most else None
        self.opened += found is not None
        return found


@lru_cache(maxsize=MOST_ASKED)
def lying(folder: str, reference: str) -> Document | None:
    """What a program of this folder opens by this name: its neighbours ask for the same."""
    reference = _of_here(reference)
    try:
        return open_reference(Settings(f"{folder}/_", {}), "import", reference) if _is(folder, reference) else None
    except MemplanError:
        return None


def _is(folder: str, reference: str) -> bool:
    names = (reference, *ends_of(reference, 2))  # of another machine's path the end that lies here
    return any(os.path.isfile(os.path.join(each, name)) for name in names for each in around(folder))


def _of_here(reference: str) -> str:
    """A path from the working directory whole, as ``Path(__file__).parents[1] / "a.yaml"`` comes to one."""
    return os.path.abspath(reference) if os.path.isfile(reference) else reference


def might_be(base: str, reference: str) -> bool:
    """Whether such a file is beside the program, in its project, or in a folder between."""
    return _is(_folder_of(base), reference)


def _folder_of(base: str) -> str:
    return os.path.dirname(os.path.realpath(base))


@lru_cache(maxsize=256)
def around(folder: str) -> tuple[str, ...]:
    """A folder, its project's, and those between."""
    here = Path(folder)
    top = project_of(here)
    return tuple(str(each) for each in (here, *here.parents) if each.is_relative_to(top))
