"""A job put onto a file that is there: only what must change is changed; comments, order and all else stay.

Which lines must change is found by trial: every setting that the job needs is put in, then each is taken back whose
absence makes the same job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.documents import Document, document_of, open_document
from memplan.frameworks.registry import recognise
from memplan.frameworks.writing import Emission, differences, flow, read_back
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe

MISSING = object()


def changed(path: str, emission: Emission, job: Job) -> str:
    """The file's text with the job's settings. Raises InvalidJob where it is another framework's, or cannot say it."""
    document = open_document(path)
    row = recognise(document)
    files = {file.name: file for file in emission.files}
    main = next((file for file in emission.files if file.values is not None), None)
    name = next((name for name, file in files.items() if file.values and _is_like(file.values, document)), "")
    target = files.get(name) or main
    if target is None or target.values is None or document.form not in ("yaml", "json"):
        raise InvalidJob(f"{path}: a {document.form} file is not changed", "name a YAML or JSON file")
    of = emission.framework
    if row is not None and row.name not in (of.name, *of.extends, "deepspeed"):
        raise InvalidJob(f"{path}: a file of {row.title}, not of {of.title}", f"memplan emit {row.name}")
    wanted = resolve_of(emission, job)
    rest = {name: text for name, text in emission.texts.items() if name != target.name}
    trial = _Trial(document, target.name, rest, emission, job, wanted)
    return trial.smallest(target.values)


def _is_like(values: Mapping[str, Any], document: Document) -> bool:
    """Whether a file that would be written and one that is there have most of their keys in common."""
    shared = set(values) & document.keys
    return len(shared) >= 2 and len(shared) * 2 >= min(len(values), len(document.keys))


def resolve_of(emission: Emission, job: Job) -> Recipe:
    """The recipe that the emitted files make."""
    return resolve(read_back(job, emission.texts, emission.framework))


class _Trial:
    """Changes tried on one file, each held against the job that is wanted."""

    def __init__(
        self, document: Document, name: str, rest: dict[str, str], emission: Emission, job: Job, wanted: Recipe
    ) -> None:
        self.document, self.name, self.rest, self.emission, self.job = document, name, rest, emission, job
        self.wanted = wanted

    def makes(self, text: str) -> bool:
        """Whether this text, with the other files, makes the job."""
        try:
            given: JobInput = read_back(self.job, {self.name: text, **self.rest}, self.emission.framework)
            return not differences(self.wanted, resolve(given))
        except InvalidJob:
            return False

    def smallest(self, values: Mapping[str, Any]) -> str:
        """The text with the fewest changes. Raises InvalidJob where all of them are not enough."""
        if self.makes(self.document.text):
            return self.document.text
        leaves = {path: value for path, value in _leaves(values) if _at(self.document, path) != value}
        if not self.makes(self.put(leaves)):
            raise InvalidJob(
                f"{self.document.path}: other settings of the file make another job whatever is changed",
                "emit new files with -o, and compare",
            )
        for path in list(leaves):
            less = {other: value for other, value in leaves.items() if other != path}
            if self.makes(self.put(less)):
                leaves = less
        return self.put(leaves)

    def put(self, leaves: Mapping[tuple[str, ...], Any]) -> str:
        """The text with these values in place."""
        if self.document.form == "json":
            return _json_with(self.document.text, leaves)
        text = self.document.text
        for path, value in leaves.items():
            text = _yaml_with(text, path, value)
        return text


def _leaves(values: Mapping[str, Any], before: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every value with its path; lists are values."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found += _leaves(value, (*before, key))
        else:
            found.append(((*before, key), value))
    return found


def _at(document: Document, path: tuple[str, ...]) -> Any:
    value: Any = document.settings.values
    for key in path:
        value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
    return value


def _json_with(text: str, leaves: Mapping[tuple[str, ...], Any]) -> str:
    values = json.loads(text)
    for path, value in leaves.items():
        inner = values
        for key in path[:-1]:
            if not isinstance(inner.get(key), dict):
                inner[key] = {}
            inner = inner[key]
        inner[path[-1]] = value
    indent = next((len(line) - len(line.lstrip()) for line in text.splitlines() if line[:1] in " \t"), 2)
    return json.dumps(values, indent=indent) + ("\n" if text.endswith("\n") else "")


def _yaml_with(text: str, path: tuple[str, ...], value: Any) -> str:
    """The text with one value replaced where it stands, or a line added after the last of its mapping."""
    import yaml

    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    depth = 0
    while depth < len(path):
        found = next((pair for pair in node.value if pair[0].value == path[depth]), None)
        if found is None:
            return _inserted(text, node, path[depth:], value)
        depth += 1
        if depth < len(path) and (not isinstance(found[1], yaml.MappingNode) or found[1].flow_style):
            inner = document_of(text, "file", "yaml").settings.values
            for key in path[:depth]:
                inner = inner[key]
            merged = dict(inner) if isinstance(inner, Mapping) else {}
            _set(merged, path[depth:], value)
            return _replaced(text, found[1], flow(merged))
        node = found[1]
    return _replaced(text, node, flow(value))


def _set(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


def _replaced(text: str, node: Any, new: str) -> str:
    """The node's own characters replaced; what follows them in its line stays."""
    start, end = node.start_mark.index, _end(node)
    if start and text[start - 1] == ":":
        new = " " + new
    line_start = text.rfind("\n", 0, start) + 1
    if not text[line_start:start].strip():  # a block that begins in a line of its own: up beside its key
        start = len(text[:line_start].rstrip())
        new = " " + new
    return text[:start] + new + text[end:]


def _end(node: Any) -> int:
    """Behind the last character of a node: a block's mark lies behind blank lines and comments that follow."""
    import yaml

    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _inserted(text: str, node: Any, path: tuple[str, ...], value: Any) -> str:
    """A line more, behind the last of the mapping, indented as it is."""
    for key in reversed(path[1:]):
        value = {key: value}
    end, column = _end(node), node.start_mark.column
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    return f"{text[:stop]}\n{' ' * column}{path[0]}: {flow(value)}{text[stop:]}"
