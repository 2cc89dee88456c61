"""Report: the views of a ledger that people and programs read. Its fields are the JSON, name by name. Plain dataclasses
without comparison: a cold command line pays for each method of a class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from memplan.drawn import Lengths
from memplan.generated import Engine, Host, Process, Share, Step, Together, with_rows_beside
from memplan.notebook import shown_as
from memplan.spec.recipe import Recipe

SCHEMA_VERSION = 1
_T = TypeVar("_T")


@dataclass(slots=True, eq=False, repr=False)
class Parameters:
    """Elements of the policy; tied tensors count once."""

    total: int
    trainable: int
    active: int
    by_category: dict[str, int]


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """A run of equal layers."""

    count: int
    parameters: int
    by_category: dict[str, int]


@dataclass(slots=True, eq=False, repr=False)
class Model:
    """The policy."""

    name: str
    family: str
    params: Parameters
    groups: tuple[Group, ...]


@dataclass(slots=True, eq=False, repr=False)
class Range:
    """Low and high figure in bytes."""

    low: int
    high: int


@dataclass(slots=True, eq=False, repr=False)
class Bytes:
    """Low, expected and high figure in bytes."""

    low: int
    expected: int
    high: int


@dataclass(slots=True, eq=False, repr=False)
class Reserved:
    """Segments of the caching allocator, in bytes: what it holds on this card, and what the job needs of them."""

    low: int
    expected: int
    high: int
    needs: int
    """The least capacity in which the step runs, the cache given back wherever that helps; its high figure must fit."""
    needs_high: int
    endless: int | None = None
    """What would be held on an unlimited card; null where the step is not played."""
    needs_sought: bool = False
    """needs was looked for, by bisection; else it is what is held, and no less than needed."""
    played: bool = False
    """Through the allocator's rules; else the figures are a band around the allocated bytes."""
    why_not_played: str = ""
    retries: int = 0
    """How often in two steps this card makes the allocator give its cache back; each time the device is waited for."""
    first_rank_less: int = 0
    """What the first rank of a node, whose log is read, holds less than expected, which is the mean of its ranks."""


@dataclass(slots=True, eq=False, repr=False)
class Instant:
    """A moment of the step, pass.point, and what is allocated then."""

    name: str
    allocated_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class LedgerRow:
    """One thing that occupies memory."""

    name: str
    category: str
    bytes: int
    born: str
    dies: str
    place: str
    meter: str
    formula: str
    why: str
    source: str
    low: int
    high: int
    process: str
    """trainer or engine."""
    stream: str
    """Of torch's memory on the card, the CUDA stream that it is allocated on: compute, gather, reduce."""


@dataclass(slots=True, eq=False, repr=False)
class Moment:
    """A phase beside the step; rows with place gpu, host (of every process), node; in JSON those not in the step's."""

    name: str
    allocated_bytes: int
    device_bytes: Bytes
    host_bytes_per_node: int
    peak_instant: str
    instants: tuple[Instant, ...]
    ledger: Sequence[LedgerRow]


@dataclass(slots=True, eq=False, repr=False)
class Crossing:
    """Where a job that does not fit dies: the first instant, in the order of the run, at which the card is full."""

    phase: str
    instant: str
    device_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class PerGpu:
    """One GPU of the class that peaks."""

    rank: str
    allocated_bytes: int
    allocated_range: Range
    peak_instant: str
    instants: tuple[Instant, ...]
    phases: dict[str, int]
    reserved_bytes: Reserved
    device_bytes: Bytes
    by_category: dict[str, int]
    ledger: Sequence[LedgerRow]
    moments: Sequence[Moment] = ()
    """The phases beside the steady step, in the order of the run."""
    first_crossing: Crossing | None = None
    device_peak_instant: str = ""
    """Where the device holds the most; peak_instant is that of what the trainer allocates."""


@dataclass(slots=True, eq=False, repr=False)
class Rank:
    """A class of ranks that hold the same."""

    name: str
    count: int
    allocated_bytes: int
    peak_instant: str
    device_bytes: Bytes


@dataclass(slots=True, eq=False, repr=False)
class Verdict:
    """Whether the job fits: yes (needs at most, less the margin), tight (as expected), no; unclear in place of any."""

    gpu: str
    fits: str
    usable_bytes: int
    headroom_bytes: int
    """Usable bytes less what is expected to be needed of them; negative is what is missing."""
    missing_bytes: int = 0  # what must go before the high figure fits with the margin
    high_bytes: int = 0
    """What is needed at the high figure, of all processes, the cache given back where that helps."""


@dataclass(slots=True, eq=False, repr=False)
class Remedy:
    """A change, or the fewest together, with which the job fits, and what it then needs."""

    title: str
    changes: dict[str, Any]
    """Job keys, set over the job's own."""
    cost: str
    """What is paid: nothing, setup (once), speed, numerics, training (another), cards (more), data (what is cut)."""
    frees_bytes: int
    device_bytes: int
    allocated_bytes: int
    fits: str
    relative_speed: float = 1.0
    """Tokens per second against the job as it is, by the cost model, which ranks and promises nothing."""
    alters_training: bool = False
    host_bytes_per_node: int = 0  # what then has to be there of a node's own memory
    write: tuple[str, ...] = ()  # the changes in the words of the job's file; empty where it came from none


@dataclass(slots=True, eq=False, repr=False)
class Card:
    """A card of the catalogue beside this job."""

    gpu: str
    usable_bytes: int
    headroom_bytes: int
    fits: str
    gpus_needed: int | None = None  # with ZeRO-3, where one does not; None where the count tried does not do either
    lacks: str = ""  # bf16, where the job runs in it and the card's matmuls do not; flash attention, where it asks


@dataclass(slots=True, eq=False, repr=False)
class Report:
    """What a job will use, where and why, whether it fits, and what to change."""

    schema_version: int
    job: dict[str, Any]
    sources: dict[str, str]
    """By key: option, file, trainer (a framework's or trainer's default), or default (memplan's, or an assumption)."""
    origins: dict[str, str]
    """By key, in words: file, line and its own key, whose default, or why assumed; nothing for plain defaults."""
    model: Model
    per_gpu: PerGpu
    ranks: tuple[Rank, ...]
    host: Host
    verdict: Verdict | None
    remedies: Sequence[Remedy] = ()
    cards: Sequence[Card] = ()
    from_sft: Sequence[Step] = ()  # for preference methods: the peak as a difference from supervised fine-tuning
    engine: Engine | None = None  # what generates beside the trainer, or alone; null where nothing is counted
    shares: Sequence[Share] = ()
    """Shares of the card that the engine could have, from the least that starts; empty where none generates."""
    processes: tuple[Process, ...] = ()
    """On one card, at the instant at which their sum is largest; empty for a trainer alone."""
    rollout: tuple[Together, ...] = ()
    """The instants of an RL step, in its order, the engine's start before them."""
    lengths: Lengths | None = None
    """Steps as the data's lengths make them; null where the job says nothing of lengths."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unclear: str = ""
    """What decides memory and is not understood of a framework's file: the figures are those without it."""
    recipe: Recipe | None = field(default=None, repr=False, compare=False)  # computed from it; no part of the JSON

    @property
    def engine_doubt(self) -> str:
        """Why the engine may not start, where that alone makes the verdict tight."""
        alone = self.verdict is not None and self.verdict.fits == "tight" and not self.verdict.missing_bytes
        return self.engine.doubt if self.engine is not None and alone else ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON, as plain dicts, lists, numbers and strings."""
        return with_rows_beside({name: plain(getattr(self, name)) for name in self.__slots__ if name != "recipe"})

    _repr_html_ = shown_as("estimate")


class Found(Sequence[_T]):
    """Findings of a search that runs when somebody first reads them: an estimate that asks for none pays for none."""

    def __init__(self, search: Callable[[], tuple[_T, ...]]) -> None:
        self._search: Callable[[], tuple[_T, ...]] | None = search
        self._items: tuple[_T, ...] = ()

    @property
    def items(self) -> tuple[_T, ...]:
        """What was found."""
        if self._search is not None:
            self._items = self._search()
            self._search = None
        return self._items

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[_T, ...]: ...
    def __getitem__(self, index: int | slice) -> _T | tuple[_T, ...]:
        return self.items[index]


def plain(value: Any) -> Any:
    """Dataclasses, tuples and dicts all the way down to what JSON has."""
    if value is None or isinstance(value, (str, int, float)):  # most are, and to ask for a protocol takes long
        return value
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, Sequence)):
        return [plain(item) for item in value]
    return value
