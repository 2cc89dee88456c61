"""Strategies to compare, and the cards to hold them against: ``presets/strategies.yaml``, or a user's file.

A strategy is a set of changes to a job: keys that take a value, and keys whose value is multiplied. This module reads
and checks them; it knows nothing of what they cost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memplan.errors import KEYS_ARE_LISTED, InvalidJob, UsageError, did_you_mean
from memplan.gpus import find_gpu
from memplan.presets import presets_dir
from memplan.spec.gpu import Gpu
from memplan.spec.plain import check_plain
from memplan.units import words_of
from memplan.yaml_lines import Fields, fields_of, read_yaml

SCALABLE = words_of(
    "sequence_length completion_length num_gpus batch_size gradient_accumulation_steps global_batch_size"
)
"""Job keys that ``scale`` may multiply: whole numbers of which half or twice as many makes sense."""

_FILE_KEYS = ("strategies", "more", "cards")
_STRATEGY_KEYS = ("name", "title", "set", "scale")
_CARD_KEYS = ("name", "title")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of a comparison."""

    name: str
    title: str
    set: Mapping[str, Any] = field(default_factory=dict)
    """Job keys and the values that they take."""
    scale: Mapping[str, float] = field(default_factory=dict)
    """Job keys and the factors that they are multiplied by."""

    def changes(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The job keys that this strategy changes, with their new values.

        ``base`` holds the job's resolved values; a product is cut to a whole number of at least 1."""
        changed = dict(self.set)
        for key, factor in self.scale.items():
            changed[key] = max(1, int(changed.get(key, base[key]) * factor))
        return changed


@dataclass(frozen=True, slots=True)
class CardClass:
    """A card that stands for all of about its memory."""

    gpu: Gpu
    title: str


@dataclass(frozen=True, slots=True)
class StrategyFile:
    """A file of strategies, the baseline first."""

    path: Path
    strategies: tuple[Strategy, ...]
    more: tuple[Strategy, ...] = ()
    """Rows that are asked for by name."""
    cards: tuple[CardClass, ...] = ()
    """Cards to hold the rows against where the job names none."""

    def chosen(self, names: Sequence[str] | None) -> tuple[Strategy, ...]:
        """The strategies and those of ``more`` that are named; None: all of them. Raises UsageError."""
        known = {row.name: row for row in self.more}
        for name in names or ():
            if name not in known:
                hint = did_you_mean(name, known, f"{self.path} lists none under `more:`")
                raise UsageError(f"no strategy {name[:80]!r} to add", hint if known else f"list it in {self.path}")
        return (*self.strategies, *(row for row in self.more if names is None or row.name in names))


def load_strategies(path: Path | None = None, job_keys: Iterable[str] | None = None) -> StrategyFile:
    """Read the strategies of ``path``, or memplan's own.

    With ``job_keys``, keys under ``set`` are of them. InvalidJob names file and line of what is not understood."""
    path = path or presets_dir() / "strategies.yaml"
    document = fields_of(read_yaml(path, "strategies"), path, "the file", _FILE_KEYS)
    known = tuple(job_keys) if job_keys is not None else None
    strategies = tuple(_strategy(row, known) for row in document.rows("strategies", _STRATEGY_KEYS))
    if not strategies:
        raise InvalidJob(f"{path}: no strategies", "list at least one under `strategies:`")
    more = tuple(_strategy(row, known) for row in document.rows("more", _STRATEGY_KEYS))
    twice = next((row.name for row in more if row.name in {each.name for each in strategies}), None)
    if twice is not None:
        raise InvalidJob(f"{path}: {twice!r} is under both `strategies:` and `more:`", "give each a name of its own")
    cards = tuple(_card(row) for row in document.rows("cards", _CARD_KEYS))
    return StrategyFile(path, strategies, more, cards)


def _card(row: Fields) -> CardClass:
    try:
        gpu = find_gpu(row.text("name"))
    except InvalidJob as error:
        raise row.error("name", error.message, error.hint) from None
    return CardClass(gpu, row.text("title", gpu.title))


def _strategy(row: Fields, job_keys: tuple[str, ...] | None) -> Strategy:
    name = row.text("name")
    return Strategy(name, row.text("title", name), _settings(row, job_keys), _factors(row))


def _settings(row: Fields, job_keys: tuple[str, ...] | None) -> dict[str, Any]:
    """The ``set`` of a row, its keys held against the job's."""
    settings = row.mapping("set")
    check_plain(settings.values, f"{settings.path}: ")
    for key in settings.values if job_keys is not None else ():
        if key not in (job_keys or ()):
            raise settings.error(key, f"no such job key: {key!r}", did_you_mean(key, job_keys or (), KEYS_ARE_LISTED))
    return settings.values


def _factors(row: Fields) -> dict[str, float]:
    """The ``scale`` of a row: whole-number keys of a job, with factors above 0."""
    factors = row.mapping("scale")
    for key, factor in factors.values.items():
        if key not in SCALABLE:
            raise factors.error(key, f"cannot be scaled: {key!r}", "scale one of " + ", ".join(SCALABLE))
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 1024:
            raise factors.error(key, f"not a factor: {factor!r}", "write a number above 0, such as 0.5 or 2")
    return factors.values
