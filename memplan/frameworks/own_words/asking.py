"""The words of a file for a change of its job, found by asking its reader: keys that it looks for, tried one by one."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice, product
from math import prod
from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks.draft import Draft
from memplan.frameworks.own_words.lines import Line, beside, lines_for, shown
from memplan.frameworks.own_words.word_table import NAMES, TOGETHER, offloading, values_of
from memplan.frameworks.project.shipped import is_shipped
from memplan.frameworks.reading import draft_of, read_documents
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.option_words import option_words
from memplan.spec.reading import JobInput, undecided, with_changes

MOST = 80
"""Readings for one key of the job."""
MOST_BESIDE = 6
"""Keys alike that are changed with one."""
ORDER = {"optimizer_args": -1, "num_gpus": 1}
"""Keys that are said first: whose optimizer it is says which too; and last: a launcher may start one process alone."""
ON_THE_HOST = {"optimizer": "offload_optimizer", "parameters": "offload_param"}
"""DeepSpeed's section for what of the states waits on the host."""
ON_HOSTS = ("fsdp", "offload", "trainer_offload")
"""What says of the job where its states are; a sharding comes with its own."""
OTHER = ("lora", "quantization")
"""What would be another training."""


class Asked:
    """The files of a job, read again and again with other values."""

    def __init__(self, given: JobInput, changes: Mapping[str, Any]) -> None:
        self.files, self.options = given.source
        self.given, self.changes = given, changes
        gpus = {} if "num_gpus" in changes else {"num_gpus": given.job.num_gpus}
        self.asking = {**gpus, **self.options}
        """What a file need not say for a key to be understood: ZeRO asks on how many GPUs."""
        self.draft = draft_of(self.files, self.asking)
        self.asked = dict(self.draft.asked)
        """Keys that a reader asks for, with some changes made or not."""
        self.title = self.files[0][1].title

    def lines(self) -> tuple[str, ...]:
        """In the file's words as far as they go."""
        tried: dict[str, dict[str, Any]] = {}
        rest: dict[str, Any] = {}
        autos = {key: value for key, value in self.changes.items() if value == "auto"}
        for key in sorted(self.changes, key=lambda key: ORDER.get(key, 0)):
            value = self.changes[key]
            words = {} if key in self.options or value == "auto" else self.said(_joined(tried), key, value, tried)
            if words:
                tried[key] = words
            elif value != "auto" and not self.makes(self.read(_joined(tried)), key, value):
                rest[key] = value
        for words, own in (*self.ways(tried, rest), *(self.ways(tried, rest | autos) if autos else ())):
            if self.fits(words, own):
                return (*self.shown(self.needed(words, own, _joined(tried))), *beside(own))
        return (f"options: {option_words(self.changes)}",)

    def ways(
        self, tried: Mapping[str, Mapping[str, Any]], rest: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Words and memplan's options that may do: the words alone; with keys that are alike; one change by memplan's
        option instead; the number of GPUs beside what asks for it."""
        gpus = {"num_gpus": self.given.job.num_gpus} if "num_gpus" not in self.changes else {}
        words = _joined(tried)
        yield words, dict(rest)
        if not self.options.get("num_gpus"):
            yield words, {**gpus, **rest}
        for key, own in tried.items():
            alike = self.alike(words, key, own)
            if alike:
                yield {**words, **alike}, dict(rest)
        for key in reversed(list(tried)):
            less = _joined({other: own for other, own in tried.items() if other != key})
            yield less, {**rest, key: self.changes[key]}

    def shown(self, words: Mapping[str, Any]) -> list[str]:
        """As they are written, and where."""
        document = self.files[0][0]
        return [shown(Line(name, each), self.asked[name], document) for name, each in words.items()]

    def needed(self, words: dict[str, Any], rest: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
        """The words without those keys alike that it fits without."""
        for name in [name for name in words if name not in plain]:
            less = {other: value for other, value in words.items() if other != name}
            if self.fits(less, rest):
                words = less
        return words

    def fits(self, tried: Mapping[str, Any], rest: Mapping[str, Any]) -> bool:
        """Whether the job fits as it is then read, with the rest as memplan's options."""
        try:
            again = with_changes(read_documents(self.files, self.options, tried), rest)
            verdict = peak(resolve(again), search=True, play="fits").verdict
        except MemplanError:
            return False
        open_ones = [each for each in again.unread if not each.above]  # a figure from above that fits, fits
        return not undecided(open_ones) and verdict is not None and verdict.fits == "yes"

    def read(self, tried: Mapping[str, Any]) -> Draft | None:
        """What the reader makes of it; None where it refuses, or understands less than before."""
        try:
            found = draft_of(self.files, self.asking, tried)
        except (MemplanError, AttributeError, LookupError, TypeError, ValueError):  # of a kind that a key never has
            return None
        more = len(found.unread) > len(self.draft.unread) or not _guessed(found) <= _guessed(self.draft)
        return None if more else found

    def said(
        self, tried: Mapping[str, Any], key: str, value: Any, done: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The key of the file, and its value, with which the reader makes this of the job, and all that is ``done``
        besides; none where no key does, or it does already."""
        if key not in NAMES or (tried and self.makes(self.read(tried), key, value)):
            return {}
        draft = self.read(tried) or self.draft
        self.asked = {**draft.asked, **self.asked}
        if (key == "rollout" or isinstance(value, (list, tuple))) and len(value) > 1:
            several: dict[str, Any] = {}
            for each in ({name: value[name]} for name in value) if key == "rollout" else ((each,) for each in value):
                several |= self.said({**tried, **several}, key, each, done)
            return several if self.makes(self.read({**tried, **several}), key, value) else {}
        inside = tuple(f"{name}." for name, now in tried.items() if isinstance(now, Mapping))
        for words in islice(self.candidates(draft, key, value), MOST):
            if any(name.startswith(inside) for name in words):
                continue
            found = self.read({**tried, **words})
            kept = done if words.keys() & tried.keys() else ()
            if (
                found is not None
                and words.keys() <= found.asked.keys()
                and self.makes(found, key, value)
                and all(self.makes(found, other, self.changes[other]) for other in kept)
                and self.leaves(found)
            ):
                of = next(iter(words))
                self.asked |= dict.fromkeys(words, self.asked[of]) if len(words) > 1 else {}  # of one file
                return words
        return {}

    def candidates(self, draft: Draft, key: str, value: Any) -> Iterator[dict[str, Any]]:
        """What may say it: several keys that only together do, then one key."""
        for words in TOGETHER.get((key, "" if isinstance(value, Mapping) else str(value)), ()):
            first = draft.asked.get(next(iter(words)))
            if first is not None and not is_shipped(first.path):
                yield {name: self.added(name, word) for name, word in words.items()}
        for name, now in draft.tried.items() if key == "offload" else ():
            if isinstance(now, Mapping) and "zero_optimization" in now:
                moved = {ON_THE_HOST[each]: {"device": "cpu"} for each in value}
                yield {name: {**now, "zero_optimization": {**now["zero_optimization"], **moved}}}
        a_node = self.given.job.gpus_per_node
        if key == "num_gpus" and value > a_node:
            for gpus, nodes in product(lines_for(draft, key, (a_node,)), lines_for(draft, "nodes", (value // a_node,))):
                yield {gpus.name: gpus.value, nodes.name: nodes.value}
        if key == "sharding" and "offload" in self.changes:
            yield from ({line.name: line.value} for line in lines_for(draft, key, offloading(str(value), self.title)))
        for line in lines_for(draft, key, values_of(key, value, self.title)):
            yield {line.name: line.value}
        if key == "gradient_accumulation_steps":
            batch = self.changes.get("batch_size", self.given.job.batch_size)
            gpus = self.changes.get("num_gpus", self.given.job.num_gpus)
            for line in lines_for(draft, "global_batch_size", (batch * value * gpus,)):
                yield {line.name: line.value}

    def added(self, name: str, word: Any) -> Any:
        """A word; a list's beside what the file's own list has, a name's out of the file's own."""
        settings = self.draft.asked.get(name)
        now = settings.values.get(name.removeprefix(settings.prefix)) if settings else None
        if isinstance(word, str) and "{name}" in word:
            path, dot, last = str(now or "").rpartition(".")
            return f"{path}{dot}{word.format(name=last)}"
        if not isinstance(word, list):
            return word
        now = now or []
        return [*now, *(each for each in word if each not in now)]

    def leaves(self, found: Draft | None) -> bool:
        """Whether the words make no other training than is asked for, and move nothing else to the host."""
        if found is None:
            return False
        now, before = found.values, self.draft.values
        placed = () if self.changes.keys() & {"sharding", "zero_stage", "num_gpus"} else ON_HOSTS
        return all(key in self.changes or bool(now.get(key)) == bool(before.get(key)) for key in OTHER) and all(
            key in self.changes or now.get(key) == before.get(key) for key in placed
        )

    def alike(self, words: Mapping[str, Any], key: str, own: Mapping[str, Any]) -> dict[str, Any]:
        """Other keys of like names that say the same of another part: the micro-batch of the scoring too."""
        name, value = next(iter(own.items()))
        word = next((word for word in NAMES[key].split("|") if re.search(word, name.lower())), "")
        found: dict[str, Any] = {}
        for other, settings in self.draft.asked.items():
            now = settings.values.get(other.removeprefix(settings.prefix))
            larger = isinstance(now, int) and isinstance(value, int) and value is not True and now > value
            if other in words or not word or not re.search(word, other.lower()) or not (larger or value is True):
                continue
            if len(found) < MOST_BESIDE and self.makes(
                self.read({**words, **found, other: value}), key, self.changes[key]
            ):
                found[other] = value
        return found

    def makes(self, draft: Draft | None, key: str, value: Any) -> bool:
        """Whether a draft has this value of the job."""
        return draft is not None and _makes(draft, key, value)


def _guessed(draft: Draft) -> set[str]:
    """What of the job the name of a file that is not there tells: no words to write."""
    return {key for key, origin in draft.origins.items() if "its name says so" in origin.text}


def _joined(tried: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for words in tried.values() for name, value in words.items()}


def _makes(draft: Draft, key: str, value: Any) -> bool:
    """Whether the draft has this value of the job, or of a mapping what is named."""
    found = draft.values.get(key)
    if key in ("sharding", "zero_stage"):
        found = draft.values.get("sharding") or f"zero{draft.values.get('zero_stage')}"
        value = f"zero{value}" if key == "zero_stage" else value
    if key == "offload":
        zero = draft.values.get("deepspeed") or {}
        found = {*(found or ()), *(name for name, inner in ON_THE_HOST.items() if zero.get(inner))}
        return set(value) <= found
    if key == "gradient_accumulation_steps" and found is None:
        return bool(_accumulated(draft) == value)
    if isinstance(value, Mapping):
        own = found if isinstance(found, Mapping) else {}
        return bool(own) and all(own.get(inner) == item or key == "lora" for inner, item in value.items())
    if isinstance(value, (list, tuple)):
        return set(map(str, value)) <= set(map(str, found or ()))
    if key == "quantization" and value == "nf4":
        return found in ("nf4", "nf4-double")
    return bool(found == value)


def _accumulated(draft: Draft) -> float | None:
    """Micro-steps that a batch of all ranks makes, where the file says that one."""
    said = draft.said
    degrees = prod(said.get(f"{kind}_parallel") or 1 for kind in ("tensor", "pipeline", "context"))
    batches = [said.get(key) or 1 for key in ("batch_size", "num_gpus", "global_batch_size")]
    if not said.get("global_batch_size") or not all(isinstance(each, int) for each in batches):  # auto
        return None
    return float(batches[2] / (batches[0] * batches[1] / degrees))
