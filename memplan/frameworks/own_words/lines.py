"""A line of a file in the words of its framework: which of its keys may say a thing, and how it is written."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from memplan.frameworks.draft import Draft
from memplan.frameworks.files.documents import FORMS, Document, Settings
from memplan.frameworks.files.quoting import shell_word, yaml_value
from memplan.frameworks.own_words.word_table import NAMES
from memplan.frameworks.project.shipped import is_shipped
from memplan.spec.allocator import conf_text
from memplan.spec.job import Job
from memplan.spec.option_words import option_words

ENVIRONMENT = "PYTORCH_CUDA_ALLOC_CONF"


class Line(NamedTuple):
    """One key of a file with its new value."""

    name: str
    value: Any


def lines_for(draft: Draft, key: str, values: Iterable[Any]) -> Iterator[Line]:
    """Keys of the file that may say it, each with every value that may: those that are there before those that are not,
    the plainest names first."""
    words = NAMES[key].split("|")
    ranked = []
    for place, (name, settings) in enumerate(draft.asked.items()):
        short = name.removeprefix(settings.prefix)
        rank = next((i for i, word in enumerate(words) if re.search(word, name.lower())), None)
        if rank is not None and not is_shipped(settings.path):
            ranked.append((settings.values.get(short) is None, rank, place, name))
    for *_, name in sorted(ranked):
        for each in values:
            yield Line(name, each)


def shown(line: Line, settings: Settings, document: Document) -> str:
    """``train.yaml, line 12: gradient_checkpointing: true``; as an option of a command, or an argument of a call."""
    short = line.name.removeprefix(settings.prefix)
    path = settings.paths.get(line.name, settings.path)
    form = document.form if path == document.path else next((FORMS[end] for end in FORMS if path.endswith(end)), "")
    there = settings.values.get(short) is not None
    where = settings.where(short) if there else path
    said = line._replace(name=settings.spelled.get(line.name, line.name))
    return f"{where}: {_written(said, form, document.text)}"


def _written(line: Line, form: str, text: str) -> str:
    if form == "python":
        return f"{line.name}={line.value!r}"
    if form in ("shell", ""):
        dashed = len(re.findall(r"(?<=\s)--[\w.]+", text)) >= len(re.findall(r"(?<=\s)\+{0,2}[a-z][\w.]*=", text))
        word = shell_word(json.dumps(line.value) if isinstance(line.value, (dict, bool)) else line.value)
        if not dashed:
            return f"{line.name}={word}"
        hyphens = len(re.findall(r"\s--\w+-\w", text)) > len(re.findall(r"\s--\w+_\w", text))
        return f"--{line.name.replace('_', '-') if hyphens else line.name}" + ("" if line.value is True else f" {word}")
    value = json.dumps(line.value) if form in ("json", "toml") else yaml_value(line.value)
    return f"{line.name} = {value}" if form == "toml" else f"{line.name}: {value}"


def beside(rest: Mapping[str, Any]) -> Iterator[str]:
    """What no key says: in the environment, or to memplan as its option."""
    allocator = rest.get("allocator")
    if allocator:
        conf = conf_text(Job.model_validate({"allocator": allocator}).allocator)
        yield f"environment: export {ENVIRONMENT}={conf}"
    more = {key: value for key, value in rest.items() if key != "allocator"}
    if more:
        yield f"options: {option_words(more)}"
