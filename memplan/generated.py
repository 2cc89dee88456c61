"""What a report says beside the trainer's card: the engine that generates, processes, the node, the way from SFT."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.units import attributes_of

if TYPE_CHECKING:
    from memplan.engine.generation.figures import Figures
    from memplan.spec.generation import Generator


@dataclass(slots=True, eq=False, repr=False)
class Engine:
    """The generation engine; bytes of one card."""

    name: str
    version: str
    budget_bytes: int
    """What its share of the card makes."""
    weights_bytes: int
    activation_bytes: int
    """The most of its profile run beside the weights, which it keeps free for good."""
    non_torch_bytes: int
    graph_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    max_concurrency: float
    """Sequences of the longest length at once."""
    awake_bytes: int
    """On the device, its context and communicators with it."""
    asleep_bytes: int
    starts: bool
    why: str
    """Why it does not start, or what is the matter; empty where nothing is."""
    hint: str = ""
    """What to change of the rollout's keys."""
    may_start: bool = False
    """It does not as expected, by less than is uncertain."""
    may_fail: bool = False
    """It does as expected, and by no more than is uncertain."""
    states_bytes: int = 0
    """SGLang's pool of states, beside its cache."""

    @property
    def doubt(self) -> str:
        """Why it may not start, where it does as expected."""
        held = f"a cache of {self.kv_tokens:,} tokens holds the longest sequence as expected, and may not at worst"
        return (self.why or held) if self.may_fail else ""


def as_engine(of: Generator, found: Figures) -> Engine:
    """The figures as a report has them."""
    figures = attributes_of(
        found,
        """budget_bytes=budget weights_bytes=weights activation_bytes=activation non_torch_bytes=non_torch
        graph_bytes=graphs kv_bytes=kv kv_bytes_per_token=kv_per_token kv_tokens awake_bytes=awake.expected
        asleep_bytes=asleep.expected starts why hint may_start may_fail states_bytes=states""",
    )
    return Engine(of.engine, of.version, max_concurrency=round(found.concurrency, 2), **figures)


@dataclass(slots=True, eq=False, repr=False)
class Share:
    """The engine with another share of the card, all else as it is."""

    share: float
    starts: bool
    fits: str
    """Of the whole job: yes, tight, no, unclear."""
    kv_bytes: int
    kv_tokens: int
    held: float
    """Sequences of prompt and completion that the cache holds."""
    wanted: int
    """Sequences that the engine runs at once, where the cache holds them."""
    preempts: bool
    """The cache holds fewer: the others wait, or are thrown out and computed again. Slow, and no error."""
    device_bytes: int
    """The high figure of the fullest instant."""
    generation_seconds: float
    """Of a step, by arithmetic."""
    why: tuple[str, ...]
    """What it is: least, every-sequence, largest, the job's own; empty for one between."""


@dataclass(slots=True, eq=False, repr=False)
class Process:
    """One process on a card at the instant at which the device's sum is largest."""

    name: str
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class Together:
    """One instant of an RL step on one card: every process beside the others. The device is their sum."""

    name: str
    at: str
    """Of a pass: the instant at which the trainer allocates the most of it."""
    first: bool
    """Of the first step, when the optimizer's states are not there yet."""
    low_bytes: int
    device_bytes: int
    high_bytes: int
    processes: tuple[Process, ...]


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One step on the way from SFT to the job's method."""

    title: str
    bytes: int


@dataclass(slots=True, eq=False, repr=False)
class Host:
    """What a node needs in its own memory for what the job puts there."""

    bytes_per_node: int
    memory_bytes: int | None = None  # what a node of the named cluster has; on Ray, what it lets be used
    fits: bool | None = None
    phases: dict[str, int] = field(default_factory=dict)
    """Of the phases beside the step, bytes per node."""
    store_bytes: int = 0
    """Ray's object store may grow to so much beside them; without that room the verdict is tight."""
    process_bytes: int = 0
    """What the processes may take of themselves, so too."""

    @property
    def fullest(self) -> tuple[str, int]:
        """What puts the most there, and that."""
        all_of_them = {"what is offloaded": self.bytes_per_node} | self.phases
        name = max(all_of_them, key=lambda each: all_of_them[each])
        return name, all_of_them[name]

    @property
    def crowded(self) -> bool:
        """A node holds what the job needs, and not the object store and the processes themselves beside it."""
        there, needed = self.memory_bytes, self.fullest[1]
        return bool(there and needed <= there < needed + self.store_bytes + self.process_bytes)


def with_rows_beside(report: dict[str, Any]) -> dict[str, Any]:
    """The rows of each phase beside the step that the steady step has not (of the first step: at other instants)."""

    def at(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(value.removeprefix("first-") if name in ("born", "dies") else value for name, value in row.items())

    card = report["per_gpu"]
    step = set(map(at, card["ledger"]))
    for moment in card["moments"]:
        moment["ledger"] = [row for row in moment["ledger"] if at(row) not in step]
    return report
