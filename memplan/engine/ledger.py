"""The ledger: every thing that occupies memory, with its birth and its death. All else is a view of it.

A schedule is the ordered list of the instants of one step at which memory can peak. A row lives from one instant to
another, both included; the total at an instant is a running sum over births and deaths."""

from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple

from memplan.tables.texts import texts_by_name
from memplan.units import words_of

ACCUMULATED = "accumulated gradients"
"""How rows begin of gradients that are there from one micro-step to the next, but not from step to step."""
OF_A_MODEL = words_of(
    """parameters adapters quantised master_weights optimizer_states gradients buffers gathered_parameters reference
    extra_models"""
)
"""Categories of what a model has from step to step, where it lasts; all else is the process', or the batch's."""


class Row(NamedTuple):
    """One thing that occupies memory.

    ``template`` is its formula in names, ``numbers`` the job's figures in it, put in when somebody reads it."""

    name: str
    category: str
    bytes: int
    born: int
    dies: int
    place: str = "gpu"
    meter: str = "allocated"
    template: str = ""
    numbers: tuple[object, ...] = ()
    why: str = ""
    source: str = ""
    low: int = -1
    high: int = -1

    @property
    def formula(self) -> str:
        """The formula with the numbers put in."""
        if not self.numbers:
            return self.template
        figures = " × ".join(_figure(number) for number in self.numbers)
        return f"{self.template} = {figures}"

    @property
    def low_bytes(self) -> int:
        """The low figure; the expected one where the row is exact."""
        return self.bytes if self.low < 0 else self.low

    @property
    def high_bytes(self) -> int:
        """The high figure; the expected one where the row is exact."""
        return self.bytes if self.high < 0 else self.high


def _figure(number: object) -> str:
    """1,024; 2.0312; 4 for 4.0."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return f"{number:,}" if isinstance(number, int) else str(number)


class Entry:
    """A row that was just entered, to say more of it; or none, of which nothing is said."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def formula(self, template: str, *numbers: object) -> "Entry":
        """Its formula in names, and the job's figures in the order of these."""
        if self._rows:
            row = self._rows[-1]
            self._rows[-1] = Row(*row[:7], template, numbers, *row[9:])
        return self

    def since(self, why: str = "", source: str = "") -> "Entry":
        """Why it is there, and what says so."""
        if self._rows:
            row = self._rows[-1]
            self._rows[-1] = Row(*row[:9], why, source, *row[11:])
        return self

    def told(self, *numbers: object, of: str = "", source: str = "") -> None:
        """All that the text beside this module says of rows whose name is or begins so, or ``of`` this one; the job's
        figures in the order of the names in its formula. ``source``: where the text names none."""
        if self._rows:
            row = self._rows[-1]
            template, why, said = _text(of or row.name)
            self._rows[-1] = Row(*row[:7], template, numbers, why, said or source, *row[11:])


@cache
def _texts() -> dict[str, list[str]]:
    """By name: a row's formula in names, why it is there, and what says so."""
    return {name: [part.strip() for part in text.split("|")] for name, text in texts_by_name(__file__).items()}


@lru_cache(maxsize=512)
def _text(name: str) -> list[str]:
    """Of the longest name that this one begins with."""
    return _texts()[max((each for each in _texts() if name.startswith(each)), key=len)]


NO_ROW = Entry([])


class Ledger:
    """Rows over a schedule. Without ``detailed``, what a tape holds is one row an instant: enough for totals."""

    def __init__(self, schedule: Iterable[str], detailed: bool = True) -> None:
        self.detailed = detailed
        self.schedule = tuple(schedule)
        self.index = {name: position for position, name in enumerate(self.schedule)}
        self.rows: list[Row] = []
        self._entered = Entry(self.rows)

    def add(
        self,
        name: str,
        category: str,
        size: int,
        born: str = "",
        dies: str = "",
        *,
        at: str = "",
        place: str = "gpu",
        meter: str = "allocated",
        low: int = -1,
        high: int = -1,
    ) -> Entry:
        """Enter a row, alive from ``born`` to ``dies`` (both included; the whole step where not given), or ``at`` one
        instant alone. Nothing is no row."""
        if not size and high <= 0:
            return NO_ROW
        first = self.index[at or born] if at or born else 0
        last = self.index[at or dies] if at or dies else len(self.schedule) - 1
        if first > last:
            return NO_ROW
        self.rows.append(Row(name, category, size, first, last, place, meter, low=low, high=high))
        return self._entered

    def after(self, instant: str) -> str:
        """The instant that follows."""
        return self.schedule[min(self.index[instant] + 1, len(self.schedule) - 1)]

    def before(self, instant: str) -> str:
        """The instant that precedes."""
        return self.schedule[max(self.index[instant] - 1, 0)]

    def turn_of(self, name: str, point: str) -> str:
        """The instant of another pass at a layer's turn: its own, or the next below that its schedule has."""
        while f"{name}.{point}" not in self.index:
            below = int(point.split("-")[1]) - 1
            point = f"layer-{below}-backward" if below else "first-layer-backward"
        return f"{name}.{point}"

    def totals(self, meter: str = "allocated", place: str = "gpu", bound: str = "bytes") -> list[int]:
        """Bytes alive at each instant, of one meter and place. ``bound``: bytes, low_bytes or high_bytes."""
        changes = [0] * (len(self.schedule) + 1)
        for row in self.rows:
            if row.meter == meter and row.place == place:
                size = row.bytes if bound == "bytes" else getattr(row, bound)
                changes[row.born] += size
                changes[row.dies + 1] -= size
        total, totals = 0, []
        for change in changes[:-1]:
            total += change
            totals.append(total)
        return totals

    def bounds(self, meter: str = "allocated") -> tuple[list[int], list[int], list[int]]:
        """Low, expected and high bytes on the card at each instant, of one meter."""
        length = len(self.schedule) + 1
        low, expected, high = [0] * length, [0] * length, [0] * length
        for row in self.rows:
            if row.meter == meter and row.place == "gpu":
                born, after, size = row.born, row.dies + 1, row.bytes
                expected[born] += size
                expected[after] -= size
                least = size if row.low < 0 else row.low
                low[born] += least
                low[after] -= least
                most = size if row.high < 0 else row.high
                high[born] += most
                high[after] -= most
        low, expected, high = (list(accumulate(changes[:-1])) for changes in (low, expected, high))
        return low, expected, high

    def meters(self, place: str) -> set[str]:
        """What sees bytes at a place."""
        return {row.meter for row in self.rows if row.place == place}

    def lasting(self, meter: str = "allocated", place: str = "gpu") -> int:
        """Bytes that are there at every instant, from one step to the next."""
        last = len(self.schedule) - 1
        rows = (row for row in self.rows if row.meter == meter and row.place == place)
        return sum(row.bytes for row in rows if row.born == 0 and row.dies == last)

    def alive(self, instant: str, meter: str = "allocated", place: str = "gpu") -> list[Row]:
        """The rows alive at an instant, largest first."""
        at = self.index[instant]
        rows = [row for row in self.rows if row.born <= at <= row.dies and row.meter == meter and row.place == place]
        return sorted(rows, key=lambda row: -row.bytes)

    def by_category(self, instant: str) -> dict[str, int]:
        """Allocated bytes at an instant, by category, largest first."""
        sums: dict[str, int] = {}
        for row in self.alive(instant):
            sums[row.category] = sums.get(row.category, 0) + row.bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))
