"""A job put onto a file that is there: only what must change is changed; comments, order and all else stay.

Which lines must change is found by trial: every setting that the job needs is put in, then each is taken back whose
absence makes the same job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.emit.read_back import differences, read_back, short
from memplan.frameworks.emit.writing import Emission
from memplan.frameworks.files.documents import Document, open_document
from memplan.frameworks.files.yaml_edit import yaml_with
from memplan.frameworks.registry import recognise
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe

Leaves = dict[tuple[str, ...], Any]
"""Values by their paths."""
MISSING = object()


def changed(path: str, emission: Emission, job: Job) -> str:
    """The file's text with the job's settings. Raises InvalidJob where it is another framework's, or cannot say it."""
    trial, values = _trial(path, emission, job)
    return trial.smallest(trial.enough(values))


def check_changeable(path: str, emission: Emission, job: Job) -> None:
    """Raise InvalidJob where ``changed`` would; which lines must change, most of its time, is not looked for."""
    trial, values = _trial(path, emission, job)
    trial.enough(values)


def _trial(path: str, emission: Emission, job: Job) -> tuple[_Trial, Mapping[str, Any]]:
    """The file to try changes on, and the settings that the job would be written with."""
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
    wanted = resolve(read_back(job, emission.texts, emission.framework))
    rest = {name: text for name, text in emission.texts.items() if name != target.name}
    values = of.onto(document.settings.values, target.values) if of.onto else target.values
    return _Trial(document, target.name, rest, emission, job, wanted), values


def _is_like(values: Mapping[str, Any], document: Document) -> bool:
    """Whether a file that would be written and one that is there have most of their keys in common."""
    shared = set(values) & document.keys
    return len(shared) >= 2 and len(shared) * 2 >= min(len(values), len(document.keys))


class _Trial:
    """Changes tried on one file, each held against the job that is wanted."""

    def __init__(
        self, document: Document, name: str, rest: dict[str, str], emission: Emission, job: Job, wanted: Recipe
    ) -> None:
        self.document, self.name, self.rest, self.emission, self.job = document, name, rest, emission, job
        self.wanted = wanted
        self.also: tuple[str, ...] = ()
        """Keys that no setting of the file says, such as the method where a command says it."""
        self.why = ""
        """What the last text lacks."""
        self._texts: dict[frozenset[tuple[str, ...]], str] = {}
        """What was put in before, by its paths: a long file takes a second each time it is read."""

    def makes(self, text: str) -> bool:
        """Whether this text, with the other files, makes the job."""
        try:
            given: JobInput = read_back(self.job, {self.name: text, **self.rest}, self.emission.framework, self.also)
            found = differences(self.wanted, resolve(given), self.emission.framework)
        except InvalidJob as error:
            self.why = error.message.replace(self.name, self.document.path)
            return False
        self.why = "; ".join(f"{key} stays {short(got)}, not {short(wanted)}" for key, wanted, got in found[:2])
        return not found

    def enough(self, values: Mapping[str, Any]) -> Leaves:
        """Changes that make the job. Raises InvalidJob where all of them are not enough."""
        if self.makes(self.document.text):
            return {}
        leaves, held = self._changeable({p: v for p, v in _leaves(values) if _at(self.document, p) != v})
        if not self.makes(self.put(leaves)):
            self.also = ("method",)
            if self.makes(self.document.text):
                return {}
        if not self.makes(self.put(leaves)):
            raise held or InvalidJob(
                f"{self.document.path}: its other settings make another job whatever is changed: {self.why}",
                "emit new files with -o, and compare",
            )
        return leaves

    def smallest(self, leaves: Leaves) -> str:
        """The text with the fewest of changes that make the job."""
        for path in list(leaves):
            less = {other: value for other, value in leaves.items() if other != path}
            if self.makes(self.put(less)):
                leaves = less
        return self.put(leaves)

    def _changeable(self, leaves: Leaves) -> tuple[Leaves, InvalidJob | None]:
        """Those of the values that can be changed where they stand, and why the first of the others cannot."""
        if self._held(leaves) is None:
            return leaves, None
        held = {path: self._held({path: value}) for path, value in leaves.items()}
        why = next((error for error in held.values() if error is not None), None)
        return {path: value for path, value in leaves.items() if held[path] is None}, why

    def _held(self, leaves: Leaves) -> InvalidJob | None:
        """Why values cannot be changed where they stand."""
        try:
            self.put(leaves)
        except InvalidJob as error:
            return error
        return None

    def put(self, leaves: Mapping[tuple[str, ...], Any]) -> str:
        """The text with these values in place."""
        paths = frozenset(leaves)
        if paths not in self._texts:
            text = self.document.text
            if self.document.form == "json":
                text = _json_with(text, leaves)
            else:
                for path, value in leaves.items():
                    text = yaml_with(text, path, value, self.document.path)
            self._texts[paths] = text
        return self._texts[paths]


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
