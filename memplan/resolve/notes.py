"""Where each value came from, and what the reader of a report must know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from memplan.spec.reading import JobInput, undecided

_T = TypeVar("_T")
OF_TRAINING = ("checkpointing", "activations", "loss", "optimizer", "freezing", "parallelism")
"""Subjects that decide nothing of an engine beside a training."""


@dataclass(slots=True)
class Notes:
    """Where each value came from, and what the reader of the report must know."""

    sources: dict[str, str]
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    taken: frozenset[str] = frozenset()
    """Keys that a framework's own defaults give, by the version that its file is read as."""
    origins: dict[str, str] = field(default_factory=dict)
    """In words, where a value came from that is no option: file, line and key, whose default, or why it is assumed."""
    unclear: str = ""
    """What decides memory and is not understood, in words."""
    bounded: str = ""
    """What is not known, and no less is counted than it can take."""
    trains_alone: bool = False
    """None of both decides what an engine beside the training takes."""

    @classmethod
    def of(cls, given: JobInput) -> Notes:
        """What is known before anything is resolved."""
        taken = frozenset(key for key, source in given.sources.items() if source == "trainer")
        told = list(given.assumptions), list(given.warnings)
        open_, above = ([each for each in given.unread if each.above is side] for side in (False, True))
        alone = {each.decides for each in given.unread} <= {"", *OF_TRAINING}
        return cls(dict(given.sources), *told, taken, dict(given.origins), undecided(open_), undecided(above), alone)

    def is_given(self, key: str) -> bool:
        """Whether the user said it, or the framework whose file is read."""
        return self.sources.get(key) in ("option", "file") or key in self.taken

    def plain(self, key: str, value: _T) -> _T:
        """A value as it stands in the job: given, or the default."""
        self.sources.setdefault(key, "default")
        return value

    def fill(self, key: str, value: _T, source: str, why: str = "") -> _T:
        """A value that was auto."""
        self.sources[key] = source
        if why:
            self.assumptions.append(f"{key}: {value} ({why})")
            self.origins[key] = why
        return value

    def told(self) -> dict[str, str]:
        """Origins in words; none of what an option has replaced since."""
        return {key: text for key, text in self.origins.items() if self.sources.get(key) != "option"}

    def default(self, key: str, given: _T, from_trainer: _T, trainer: str) -> _T:
        """What the user gave, else what the trainer does."""
        if self.is_given(key):
            return given
        if from_trainer != given:
            return self.fill(key, from_trainer, "trainer", f"{trainer}'s default")
        return self.plain(key, given)

    def assume(self, text: str) -> None:
        """Something taken as given."""
        self.assumptions.append(text)

    def remark(self, text: str) -> None:
        """Something the user may not expect."""
        self.warnings.append(text)
