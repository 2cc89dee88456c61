"""Hydra's way to a config: ``--config-path DIR --config-name NAME key=value +key=value ~key``, with its defaults list.

hydra-core 1.3: hydra/_internal/defaults_list.py (a config's own values are stronger than those of its list unless
``_self_`` says otherwise), hydra/core/override_parser. What comes of OmegaConf's resolvers stays as it is written."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.commands.launch import Launch
from memplan.frameworks.draft import Draft
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.files.following import open_reference
from memplan.frameworks.shell.reader import options_of, scalar

NAMES, FOLDERS = ("config_name", "cn"), ("config_path", "cp", "config_dir", "cd")
FOLDERS_OF_CONFIGS = ("config", "configs", "conf", "")
"""Where a program has them, if the command does not say."""
MAX_FILES = 200
"""Files that one config may be put together of."""
MAX_TURNS = 5
"""How often choices may change what is chosen."""
_GLOBAL = re.compile(r"^#\s*@package\s+_global_", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_OVERRIDE = re.compile(r"([+~]{0,2})([A-Za-z_][\w./@-]*)(?:=(.*))?", re.DOTALL)


def composed(document: Document, launch: Launch) -> Document | None:
    """The config that a command names for Hydra, under its overrides; None where it names none, or it is not here."""
    values, lines, _ = options_of(launch.words)
    said = {key: value[0] if isinstance(value, list) else value for key, value in values.items()}
    name = next((said[key] for key in NAMES if isinstance(said.get(key), str)), "")
    if not name or is_template(name):
        return None
    folder = next((said[key] for key in FOLDERS if isinstance(said.get(key), str)), "")
    building = _Building(Settings(launch.path, values, lines), posixpath.dirname(launch.program))
    root = building.root(folder.removeprefix("file://"), name)
    if root is None:
        return None
    building.compose(root, name, [word.text for word in launch.words])
    settings = building.under(launch)
    return replace(document, form="yaml", settings=settings, text="")


def over_others(document: Document, draft: Draft) -> Settings:
    """A file of settings with those that its list of defaults names beneath it; its own where it has no list."""
    if not isinstance(document.settings.values.get("defaults"), list):
        return document.settings
    building = _Building(Settings(document.path, {}), "")
    building.add("", posixpath.basename(document.path), ())
    for name in (name for name, found in building.known.items() if found is None):
        draft.warn(
            "defaults", document.settings.where("defaults"), f"{name} is not here, and stands beneath it", "model"
        )
    return Settings(document.path, referred(building.values, building.values, 0), building.lines, "", building.paths)


_MAIN = re.compile(r"@hydra\.main\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_QUOTED = re.compile(r"[\"']([^\"']*)[\"']")


def main_of(text: str) -> tuple[str, str]:
    """Folder and name of the config of a program's ``@hydra.main``; of a folder that is a path, or a name of one, the
    words that it is made of (``Path(__file__).parent / "config"``)."""
    found = _MAIN.search(text)
    parts = re.split(r"\b(\w+)\s*=", found.group(1)) if found else []
    said = dict(zip(parts[1::2], parts[2::2], strict=True))
    place = said.get("config_path", "")
    words = _QUOTED.findall(place)
    if not words:
        named = re.findall(r"\w+", place)
        given = re.search(rf"^[ \t]*{named[-1]}\s*=(.*)$", text, re.MULTILINE) if named else None
        words = _QUOTED.findall(given.group(1)) if given else []
    name = _QUOTED.search(said.get("config_name", ""))
    return "/".join(words), name.group(1) if name else ""


@lru_cache(maxsize=8)
def of_program(path: str, program: str, folder: str, name: str) -> Settings | None:
    """The config of a program of the project around a script (the program as ``program_at`` has it), nested: the one
    that a command names, else the one of its ``@hydra.main``; None where it is not here."""
    script = Settings(path, {})
    place, usual = main_of(open_reference(script, "program", program).text)
    building = _Building(script, posixpath.dirname(program))
    name = name or usual
    folders = dict.fromkeys((folder.removeprefix("file://"), place))
    root = next(filter(None, (building.root(each, name) for each in folders)), None) if name else None
    if root is None:
        return None
    building.compose(root, name)
    return Settings(building.path, building.values, building.lines, "", building.paths)


@dataclass
class _Building:
    """A config in the making."""

    options: Settings
    program: str
    """Folder of the program."""
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    known: dict[str, Document | None] = field(default_factory=dict)
    """Configs by name, None for one that is not here."""
    opened: int = 0
    path: str = ""
    searched: list[str] = field(default_factory=list)
    """Folders of ``hydra.searchpath``, as seen from where the command runs."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """Of a group the option that the command, or a config's ``override /group``, has in place of its list's."""

    def compose(self, root: str, name: str, words: Sequence[str] = ()) -> None:
        """The config and all of its lists, under the command's choices of groups; once more where a config of theirs
        overrides a choice."""
        said = [
            match for match in map(_OVERRIDE.fullmatch, words) if match and match.group(1) != "~" and match.group(3)
        ]
        picked = {match.group(2): match.group(3) for match in said if self._is_group(root, match)}
        self.chosen |= picked
        for _ in range(MAX_TURNS):
            before, self.values, self.lines, self.paths, self.opened = dict(self.chosen), {}, {}, {}, 0
            self.add(root, name, ())
            for group in (match.group(2) for match in said if match.group(1) and match.group(2) in picked):
                self._groups(root, "", {group: picked[group]}, ())  # +group=option: behind the list
            if self.chosen == before:
                return

    def _is_group(self, root: str, match: re.Match[str]) -> bool:
        group = match.group(2).partition("@")[0]
        return "." not in group and self.open(posixpath.join(root, group, match.group(3))) is not None

    def root(self, folder: str, name: str) -> str | None:
        """The folder of the configs: beside the program, as Hydra has it, or where the command runs."""
        usual = (folder,) if folder else FOLDERS_OF_CONFIGS
        for root in dict.fromkeys(posixpath.join(base, each) for each in usual for base in (self.program, "")):
            if self.open(posixpath.join(root, name)) is not None:
                return root
        return None

    def open(self, name: str) -> Document | None:
        """A config by its name; None where it is not here."""
        if self.opened >= MAX_FILES:
            raise InvalidJob(f"{self.options.path}: a config of more than {MAX_FILES} files", "name a smaller one")
        name = name if name.endswith(".yaml") else f"{name}.yaml"
        if name not in self.known:
            try:
                self.known[name] = open_reference(self.options, "config_name", name)
            except InvalidJob:
                self.known[name] = None
        self.opened += self.known[name] is not None
        return self.known[name]

    def add(self, root: str, name: str, package: tuple[str, ...]) -> None:
        """One config, after those of its defaults list that stand before ``_self_``."""
        tried = (self.open(posixpath.join(each, name)) for each in (root, *self.searched))
        document = next(filter(None, tried), None)
        if document is None:
            return
        self.path = self.path or document.path
        hydra = document.settings.values.get("hydra")
        said = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
        self.searched += [str(each).removeprefix("file://") for each in said] if isinstance(said, list) else []
        own = {key: value for key, value in document.settings.values.items() if key != "defaults"}
        given = document.settings.values.get("defaults")
        listed = given if isinstance(given, list) else []
        inside = () if _GLOBAL.search(document.text) else package
        folder = posixpath.dirname(name)
        done = False
        for item in listed:
            if item == "_self_":
                self.put(own, document, inside)
                done = True
            elif isinstance(item, str):
                self.add(root, posixpath.join(folder, item), inside)
            elif isinstance(item, Mapping):
                self._groups(root, folder, item, inside)
        if not done:
            self.put(own, document, inside)

    def _groups(self, root: str, folder: str, item: Mapping[str, Any], package: tuple[str, ...]) -> None:
        """``group: option`` of a defaults list; ``override /group: option`` is a choice for the whole config."""
        for key, option in item.items():
            overrides = str(key).startswith("override ")
            said, _, at = str(key).removeprefix("override ").removeprefix("optional ").strip().partition("@")
            group = said[1:] if said[:1] == "/" else posixpath.join(folder, said)
            name = f"{group}@{at}" if at else group
            if overrides:
                self.chosen.setdefault(name, option)
                continue
            picked = self.chosen.get(name, option)
            first, *rest = at.split(".") if at else said.strip("/").split("/")
            within = rest if first == "_global_" else (*package, first, *rest)  # relative to where the list stands
            places = tuple(part for part in within if part not in ("", "..", "_here_"))
            for each in picked if isinstance(picked, list) else [picked]:
                if isinstance(each, str):
                    self.add(root, posixpath.join(group, each), places)

    def put(self, own: Mapping[str, Any], document: Document, package: tuple[str, ...]) -> None:
        """A config's own values."""
        prefix = "".join(f"{part}." for part in package)
        for key, value in own.items():
            put_at(self.values, [*package, key], value)
        for key, line in document.settings.lines.items():
            self.lines[prefix + key], self.paths[prefix + key] = line, document.path

    def under(self, launch: Launch) -> Settings:
        """What was put together under the command's overrides, with references of one key to another put in."""
        for word in launch.words:
            match = _OVERRIDE.fullmatch(word.text)
            if match is None or (match.group(3) is None and match.group(1) != "~") or match.group(2) in self.chosen:
                continue
            name = match.group(2).replace("/", ".")
            put_at(self.values, name.split("."), None if match.group(1) == "~" else scalar(match.group(3)))
            self.lines[name], self.paths[name] = word.line, launch.path
        return Settings(self.path, referred(self.values, self.values, 0), self.lines, "", self.paths)


def put_at(values: dict[str, Any], names: list[str], value: Any) -> None:
    """A nested value set, in dictionaries of its own; of two mappings both."""
    for name in names[:-1]:
        inner = values.get(name)
        values[name] = dict(inner) if isinstance(inner, Mapping) else {}
        values = values[name]
    before = values.get(names[-1])
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        both = dict(before)
        for key, inner in value.items():
            put_at(both, [key], inner)
        value = both
    values[names[-1]] = value


def referred(value: Any, root: Mapping[str, Any], depth: int) -> Any:
    """``${a.b}`` replaced by what the config has there."""
    if isinstance(value, Mapping):
        return {key: referred(inner, root, depth) for key, inner in value.items()}
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) and depth < 5 else None
    if match is None:
        return value
    found: Any = root
    for name in match.group(1).split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return value if found is None or isinstance(found, Mapping) else referred(found, root, depth + 1)
