"""Where presets are, and the model presets in them: one small JSON file a model, so that one estimate reads one file.

A preset carries ``name``, ``hub_id``, ``title``, ``also`` (other Hub ids of the same architecture), ``differs`` (of one
of these, the keys of its config.json that are its own), ``source`` (where its values come from), ``parameters`` and
``config``, the keys of its config.json that decide the structure, and ``published``, its ``quantization_config``, where
the repository has quantised weights alone."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from memplan.errors import InternalError, ModelNotFound, nearest
from memplan.tables.methods import METHODS

Preset = dict[str, Any]

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,80}", re.ASCII)
"""What a preset's name may be; a path or a pattern is none."""


def presets_dir() -> Path:
    """The folder of presets: inside the package in a wheel, beside it in a checkout or an editable install."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_presets", package.parent / "presets"):
        if (folder / "models").is_dir():
            return folder
    raise InternalError(f"no presets beside {package}", "reinstall memplan")


def model_names() -> list[str]:
    """The names of all model presets, sorted: a listing of their folder."""
    return sorted(name[: -len(".json")] for name in os.listdir(presets_dir() / "models") if name.endswith(".json"))


def model_preset(name: str) -> Preset:
    """The preset of this name, in any case, or the one that describes a Hub repository of this name.

    Raises ModelNotFound with the nearest names when there is none."""
    preset = find_preset(name)
    if preset is None:
        raise ModelNotFound(f"no model preset named {name[:80]!r}", instead_of(name))
    return preset


_SIZE = re.compile(r"(?:.*[^a-z0-9.]|.*[a-z])?(\d+(?:\.\d+)?[bm])(?![a-z0-9])", re.ASCII | re.IGNORECASE)
"""A name up to the number of its parameters: starchat2-15b."""
_OTHER = re.compile("vision|vl|omni|audio|moe|mamba|embed|rerank|encoder", re.IGNORECASE)
"""Words behind a size that make it another architecture; instruct, chat and their like do not."""


def near_models(name: str, others: Iterable[str] = (), count: int = 3) -> list[str]:
    """The presets, and ``others``, that a mistyped name means: of its size, with no word of another architecture."""
    sized = _SIZE.match(name[:MOST_NAMED])
    meant = sized.group() if sized and not _OTHER.search(name[sized.end() :]) else name
    return nearest(meant, [*model_names(), *others], count, a_word_more=False)


def instead_of(name: str, jobs: Iterable[str] = ()) -> str:
    """What to type instead of a name that no preset has: the nearest, else a Hub id or the size that the name holds."""
    close, sized = near_models(name, jobs), _SIZE.match(name[:MOST_NAMED])
    if name.casefold() in METHODS:
        return f"a method is --method {name.casefold()}"
    if sized and sized.group(1) == name:
        return f"a size alone is --total-params {name}"
    if close:
        return "did you mean " + " or ".join(close) + "?"
    if sized:
        return f"give its Hub id, such as OWNER/{name[:MOST_NAMED]}, or its size alone: --total-params {sized.group(1)}"
    return "memplan show models lists them; a Hub id has a slash"


MOST_NAMED = 80
"""Characters of a name."""


def has_model(name: str) -> bool:
    """Whether ``model_preset`` knows this name."""
    return find_preset(name) is not None


def find_preset(name: str) -> Preset | None:
    """The preset of this name or, in the second place, with a Hub id that ends in it."""
    folded = name.casefold()
    if not NAME.fullmatch(folded):
        return None
    path = presets_dir() / "models" / f"{folded}.json"
    if path.is_file():
        return read(path)
    found = (key for key, ids in _ids(path.parent) if folded in map(last_part, ids))
    return next((_as_repository(read(path.parent / f"{key}.json"), folded) for key in found), None)


def _as_repository(preset: Preset, name: str) -> Preset:
    """The preset as the repository whose own name this is has it."""
    hub_id = next(each for each in hub_ids(preset) if last_part(each) == name)
    return {**preset, "hub_id": hub_id, "config": {**preset["config"], **preset.get("differs", {}).get(hub_id, {})}}


def last_part(hub_id: str) -> str:
    """The repository's own name, in lower case."""
    return hub_id.rpartition("/")[2].casefold()


def find_by_hub_id(hub_id: str) -> str | None:
    """The name of the preset that describes this Hub repository, if one does."""
    folded = hub_id.casefold()
    return next((name for name, ids in _ids(presets_dir() / "models") if folded in map(str.casefold, ids)), None)


def hub_ids(preset: Preset) -> list[str]:
    """The Hub repositories that a preset describes, its own first."""
    return [preset["hub_id"], *preset.get("also", ())]


@lru_cache(maxsize=4)
def _ids(folder: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(name, Hub repositories) of each preset: every file is read once."""
    return tuple((path.stem, tuple(hub_ids(read(path)))) for path in sorted(folder.glob("*.json")))


def every_model() -> Iterator[Preset]:
    """All model presets in the order of their names."""
    folder = presets_dir() / "models"
    return (read(folder / f"{name}.json") for name in model_names())


def read(path: Path) -> Preset:
    """One preset file."""
    preset: Preset = json.loads(path.read_bytes())
    return preset
