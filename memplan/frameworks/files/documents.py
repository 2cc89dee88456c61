"""A file that a user already has, opened with care: its values and the line of each, whatever its form.

YAML, JSON, TOML and shell scripts become the same thing: settings (keys, values, lines) and commands. Only plain data
is read, of a size that a person writes; nothing is executed, and nothing beside the file is opened."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from memplan.errors import InvalidJob
from memplan.files import instead_of_missing
from memplan.frameworks.commands.scripts import run_script
from memplan.frameworks.files.plain_forms import MAX_REMARKS, bounded, read_json, read_toml
from memplan.frameworks.shell.reader import Command, Given
from memplan.spec.plain import check_plain
from memplan.yaml_lines import MAX_BYTES, fields_of, pairs_of, read_yaml

FORMS = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    **dict.fromkeys((".sh", ".bash", ".slurm", ".sbatch", ".txt"), "shell"),
    **dict.fromkeys((".py", ".ipynb"), "python"),
}
"""What the end of a file's name says of its form."""
_OWN = re.compile(r'\s*\{\s*"schema_version"\s*:')
"""How memplan's own JSON begins: plans with whole ledgers, larger than what a person writes."""
MAX_OWN_BYTES = 32 * 1024 * 1024
MOST_KEPT = 128
"""Files of plain data: those that one config is put together of."""
_JINJA = re.compile(r"^([^\"'#\n]*?(?:: |- ) *)(\{\{[^}\"\n]*\}\}[^\s,\]#]*)", re.MULTILINE)
"""``{{name}}`` as a value: of a file that is filled in before it is YAML."""
_AS_CODE = re.compile(r"\A(\s*)(`{3}|`)(?:(?<=```)\w+(?=\n))?([^`]+)\2\s*\Z")
"""A text in Markdown's marks of code, as it is pasted of a page."""
_TEMPLATE = re.compile(
    r"\$\{|\$[A-Za-z_0-9@]|\{\{|\{%|%\(\w+\)s|(?:\$\(|`)\s*(?:\(|nvidia-smi|expr|echo|cat|python3?|date|wc|jq|yq|ls|nproc"
    r"|seq|hostname|scontrol|grep|awk|sed|head|printf|bc)|^<[^<>|]+>$|^\.{3,}$"
)
"""Variables and commands of a shell, OmegaConf's references, Jinja's, and what is to be filled in (``<stage>``)."""
NAMED = re.compile(
    r"(?:\$(?:\w+|\{\w+\})/|<)(?:[\w.-]+/)*[\w.-]*(?<![a-z])(?:\d(?:\.\d+)?[bB]|clip-vit|siglip)(?![a-zA-Z\d])[\w.-]*/?>?"
)
"""A model's folder under a variable, or to be filled in: ``$MODELS/Qwen2.5-7B-Instruct``, ``<path-to-Qwen2-VL-2B>``,
which has its name all the same."""


@dataclass(frozen=True)
class Settings:
    """One mapping of a file, or the options of one command."""

    path: str
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    """Line of each key, nested ones as ``outer.inner``."""
    prefix: str = ""
    """What stands before these keys in ``lines``."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Where keys stand that are of another file, such as options of a command over a config."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Of keys that are read under a newer name the file's own; of a file without any, nothing."""

    def where(self, key: str = "") -> str:
        """``train.yaml, line 3``; the nearest line that is known for the key."""
        name = f"{self.prefix}{key}"
        while name and name not in self.lines:
            name = name.rpartition(".")[0]
        path = self.paths.get(name, self.path)
        return f"{path}, line {self.lines[name]}" if name else path

    def error(self, key: str, problem: str, hint: str = "") -> InvalidJob:
        """An error about a key's value (to be raised), with file and line."""
        return InvalidJob(f"{self.where(key)}: {self.prefix}{key}: {problem}", hint)

    def section(self, key: str) -> Settings:
        """A nested mapping; empty where the key is absent or null. Raises InvalidJob for what is no mapping."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(key, f"{str(value)[:60]!r} is no set of keys", f"write key: value lines under {key}")
        return Settings(self.path, value, self.lines, f"{self.prefix}{key}.", self.paths)

    def under(self, over: Settings, options: Mapping[str, Any] | None = None) -> Settings:
        """These settings under those of ``over``, or under ``options`` of it alone: each keeps its file and line."""
        kept = over.lines if options is None else {key: over.lines[key] for key in options if key in over.lines}
        lines = {f"{self.prefix}{key}": line for key, line in kept.items()}
        paths = {f"{self.prefix}{key}": over.paths.get(key, over.path) for key in kept}
        values = {**self.values, **(over.values if options is None else options)}
        return Settings(self.path, values, {**self.lines, **lines}, self.prefix, {**self.paths, **paths})

    def over(self, below: Settings) -> Settings:
        """The same of these settings over others, as a file of this path."""
        paths = {**dict.fromkeys(below.lines, below.path), **below.paths}
        return replace(below, path=self.path, paths=paths).under(self)


@dataclass(frozen=True, eq=False)
class Document:
    """An opened file."""

    path: str
    form: str
    """yaml, json, toml, shell or python."""
    settings: Settings
    """What the file holds as a mapping; empty for a script."""
    commands: tuple[Command, ...] = ()
    text: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that a script writes from a text of its own (``cat <<EOF > ds.json``), by name."""
    place: int = 0
    """Line of the one command that it is of a script with several (``parts``), or of a program's one trainer; of a
    notebook its cell."""
    others: tuple[Command, ...] = ()
    """Of one command of a script the others, which may serve it."""
    remarks: tuple[str, ...] = ()
    """What its reader may not expect: keys given twice."""

    @property
    def name(self) -> str:
        """As it is typed: ``train.sh``, or ``train.sh:40`` for one command of it."""
        return f"{self.path}:{self.place}" if self.place else self.path

    @property
    def keys(self) -> frozenset[str]:
        """Names at the top of the file."""
        return frozenset(self.settings.values)


_SET = re.compile(r"[A-Za-z_]\w*=")


def open_document(path: str, given: Given | None = None) -> Document:
    """Read one file. Raises InvalidJob, with file and line, for what is no plain data."""
    file = Path(path)
    form = FORMS.get(file.suffix.lower(), "")
    text = _text(file)
    return document_of(text, path, form or guessed_form(text), given)


def of_command(text: str) -> Document:
    """A command line; of ``X=1 bash run.sh 8`` the script, under what it is given."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    pairs = list(takewhile(_SET.match, words))
    name, *rest = [word for word in words[len(pairs) :] if word not in ("bash", "sh")] or [""]
    if words[len(pairs) : len(pairs) + 1] == [name] or not name.endswith((".sh", ".bash")) or not Path(name).is_file():
        return document_of(text, "the command line", "shell")
    variables = tuple((key, value) for key, _, value in (pair.partition("=") for pair in pairs))
    return open_document(name, Given(variables, tuple(rest)))


def document_of(text: str, path: str, form: str, given: Given | None = None) -> Document:
    """A document from its text. ``path`` stands in messages."""
    text = _AS_CODE.sub(r"\1\3", text)
    if form == "shell":
        script = run_script(text, path, given)
        return Document(path, form, Settings(path, {}), script.commands, text, script.files)
    if form == "python":
        return Document(path, form, Settings(path, {}), (), text)
    return _plain(text, path, form) if len(text) <= MAX_BYTES else _plain.__wrapped__(text, path, form)


@lru_cache(maxsize=MOST_KEPT)
def _plain(text: str, path: str, form: str) -> Document:
    """Of plain data, the same object for the same text: who asks a file again and again reads it once."""
    remarks: list[str] = []
    values, lines = _OPENERS[form](_JINJA.sub(r'\1"\2"', text) if form == "yaml" else text, path, remarks)
    settings = Settings(path, values, lines)
    for key in () if _OWN.match(text) else values:
        check_plain({key: values[key]}, f"{settings.where(key)}: ", odd=True)
    return Document(path, form, settings, (), text, remarks=tuple(remarks[:MAX_REMARKS]))


def words(text: str) -> frozenset[str]:
    """The words of a text: a list of keys that reads as one."""
    return frozenset(text.split())


def is_template(value: object) -> bool:
    """Whether a value stands for something that is not in the file: a variable, a template."""
    return isinstance(value, str) and _TEMPLATE.search(value) is not None and not NAMED.fullmatch(value)


def guessed_form(text: str) -> str:
    """The form of a file without an ending that says it."""
    start = text.lstrip()
    if start.startswith("#!"):
        return "shell"
    if start.startswith("{"):
        return "json"
    if re.search(r"^[ \t]*\[[\w.]+\]\s*$", text, re.MULTILINE):
        return "toml"
    return "yaml" if re.search(r"^[\w-]+[ \t]*:(\s|$)", text, re.MULTILINE) else "shell"


def _text(path: Path) -> str:
    """The file's text, if it is a readable file of a size that a person writes."""
    hint = "name a training config: YAML, JSON, TOML, a script or a notebook"
    try:
        if not path.is_file():
            problem = "is no file" if path.exists() else "does not exist"
            raise InvalidJob(f"{path} {problem}", hint if path.exists() else instead_of_missing(str(path), hint))
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
            large = _OWN.match(data[:200].decode("utf-8", "replace")) or FORMS.get(path.suffix.lower()) == "python"
            own = len(data) > MAX_BYTES and bool(large)  # notebooks hold pictures
            data += file.read(MAX_OWN_BYTES) if own else b""
    except (OSError, ValueError) as error:
        raise InvalidJob(f"{path}: cannot be read: {error}", hint) from None
    limit = MAX_OWN_BYTES if own else MAX_BYTES
    if len(data) > limit:
        raise InvalidJob(f"{path}: larger than {limit // 1024} KiB", "a training config is smaller; is it this one?")
    if b"\0" in data:
        raise InvalidJob(f"{path}: a binary file, not text", hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidJob(f"{path}: not UTF-8 text", hint) from None


def _yaml(text: str, path: str, remarks: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    node = read_yaml(Path(path), "a training config", text)
    values = fields_of(node, Path(path), "the file", None, remarks).values
    return values, dict(_yaml_lines(node, Path(path)))


def _yaml_lines(node: Any, path: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The line of every key, nested ones with dots; ``fields_of`` has checked depth and kinds."""
    for key, value in pairs_of(node, path) if node.id == "mapping" else ():
        name = bounded(f"{prefix}{key.value}", path, key.start_mark.line + 1)
        yield name, key.start_mark.line + 1
        if value.id == "mapping":
            yield from _yaml_lines(value, path, f"{name}.")


_OPENERS = {"yaml": _yaml, "json": read_json, "toml": read_toml}
