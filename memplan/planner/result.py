"""What a plan comes to; its fields are the JSON, name by name."""

from dataclasses import dataclass
from typing import Any

from memplan.cost import Speed
from memplan.notebook import shown_as
from memplan.report import Report, plain

DEVICE, ALLOCATED = "device", "allocated"


@dataclass(frozen=True, slots=True)
class Row:
    """One way to keep, make again or send away, with its peak and its speed."""

    name: str
    """What is made again: none, full, every:4, full:12,keep-matmuls:8, block 12."""
    job: dict[str, Any]
    """The keys that it sets."""
    allocated_bytes: int
    """What torch.cuda.max_memory_allocated says at the peak."""
    device_bytes: int
    """The high figure of nvidia-smi."""
    tokens_per_second: float
    """Of all GPUs."""
    relative_speed: float
    """Against nothing made again."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The fastest way within a budget, and others around it."""

    bytes: int
    meter: str
    """What the budget is of: device (nvidia-smi's high figure) or allocated."""
    chosen: Row
    """The fastest within it; where there is none, what holds least."""
    against_full: float | None
    """Its speed against everything made again; null where the trainer cannot be told that."""
    all_kept: bool
    """Nothing need be made again."""
    choices: tuple[str, ...]
    """The trainer's kinds: none, full, every, selective, layers, block, uniform, modules, activations."""
    where: str
    """Where the lines stand."""
    lines: tuple[str, ...]
    source: str
    """Where the setting was read."""
    rows: tuple[Row, ...]
    """Budgets in equal steps, from the least to all kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run the job that fits, with its memory and speed."""

    name: str
    """What divides the GPUs, and what else is out of the ordinary."""
    job: dict[str, Any]
    """The whole job, every value filled in: estimate gives the same report of it."""
    report: Report
    speed: Speed
    memory_limit: str
    """The instant at which memory peaks."""
    training: tuple[str, ...] = ()
    """What of the training it changes, as was allowed."""
    gpu_hours: float = 0.0
    """Of a billion tokens, over all GPUs, at the expected speed."""
    cost: float | None = None
    """Of the same, at a price of a GPU hour; null without one."""


BILLION = 10**9
"""Tokens that GPU hours are told of."""


def billed(speed: Speed, gpus: int, price: float | None) -> tuple[float, float | None]:
    """GPU hours of a billion tokens, and what they cost at a price of one."""
    hours = gpus * BILLION / speed.tokens_per_second / 3600
    return hours, None if price is None else hours * price


@dataclass(frozen=True, slots=True)
class Point:
    """A plan of the Pareto front: nothing is both as fast and as small."""

    name: str
    job: dict[str, Any]
    tokens_per_second: float
    device_bytes: int
    """The high figure, which has to fit."""


@dataclass(frozen=True, slots=True)
class Instead:
    """The fastest plan with another set of as many changes to the training."""

    training: tuple[str, ...]
    """What it changes."""
    allow: str
    """What ``--allow`` takes for it."""
    name: str
    job: dict[str, Any]
    """The whole job."""
    tokens_per_second: float
    device_bytes: int
    """The high figure, which has to fit."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A plan that would be faster and does not fit, or a way to divide the GPUs that cannot be."""

    name: str
    job: dict[str, Any]
    """The keys that it sets."""
    reason: str
    short_bytes: int | None = None
    """Bytes that are missing on the card; null where it is refused for another reason."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question beside the best plan: the fewest GPUs, the smallest card, the largest batch."""

    question: str
    value: int | str | None
    """null where nothing does."""
    words: str


@dataclass(frozen=True, slots=True)
class Plans:
    """The fastest plans that fit, what was rejected and why."""

    schema_version: int
    plans: tuple[Plan, ...]
    pareto: tuple[Point, ...]
    """Empty unless asked for."""
    rejected: tuple[Rejected, ...]
    considered: int
    """Plans whose speed was computed, or that were refused."""
    priced: int
    """Plans whose memory was computed; the others are ruled out by bounds, or slower than what was found."""
    answers: tuple[Answer, ...] = ()
    needed: tuple[str, ...] = ()
    """Where nothing fits: the smallest set of changes to the training with which something does, as its plans are."""
    instead: tuple[Instead, ...] = ()
    """There, what fits with each other set of as many changes."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    budget: Budget | None = None
    """Of plan --budget: the one plan is the job as it is, but for what is made again."""

    @property
    def fits(self) -> bool:
        """Whether anything fits as the job was asked for."""
        return bool(self.plans) and not self.needed

    def to_dict(self) -> dict[str, Any]:
        """The JSON, as plain dicts, lists, numbers and strings."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    _repr_html_ = shown_as("plan")


def _plain(value: Any) -> Any:
    if isinstance(value, Report):
        return value.to_dict()
    if isinstance(value, (Plan, Point, Instead, Rejected, Answer, Speed, Budget, Row)):
        return {name: _plain(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return plain(value)
