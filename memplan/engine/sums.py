"""Ledgers that only add up: the sums of a section's rows, and of several sections together."""

from itertools import accumulate
from typing import Any, NamedTuple

from memplan.engine.ledger import ACCUMULATED, NO_ROW, OF_A_MODEL, Entry, Ledger

Kind = tuple[str, str]
"""Meter and place."""
BOUNDS = {"low_bytes": 0, "bytes": 1, "high_bytes": 2}


class Sums(NamedTuple):
    """The rows of one section on one meter and place."""

    whole: tuple[int, int, int]
    """Low, expected and high bytes of what is there over the whole step."""
    lasting: int
    """Expected bytes that are there from the first instant to the last, however this is said."""
    accumulated: int  # of them gradients, gone between steps
    own: int  # of them what models have, ``accumulated`` aside
    alive: tuple[tuple[int, ...] | None, ...]
    """Low, expected and high bytes of the others at each instant; None where there are no others."""


class _Open:
    """Sums that are still added to."""

    def __init__(self) -> None:
        self.whole, self.lasting, self.accumulated, self.own = [0, 0, 0], 0, 0, 0
        self.changes: tuple[list[int], ...] = ()

    def closed(self) -> Sums:
        low, expected, high = self.whole
        alive = tuple(tuple(accumulate(each))[:-1] for each in self.changes)
        return Sums((low, expected, high), self.lasting, self.accumulated, self.own, alive)


class Adding(Ledger):
    """A ledger that keeps sums, and no rows. The schedule is asked for when a row first names an instant."""

    def __init__(self, parts: Any) -> None:
        self._parts, self.detailed = parts, False
        self.kinds: dict[Kind, _Open] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "schedule":
            self.schedule = self._parts.schedule
            return self.schedule
        if name == "index":
            self.index = {each: position for position, each in enumerate(self.schedule)}
            return self.index
        raise AttributeError(f"a ledger of sums has no {name}")

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
        """Add to the sums of the row's meter and place."""
        if not size and high <= 0:
            return NO_ROW
        born, dies = at or born, at or dies
        figures = size if low < 0 else low, size, size if high < 0 else high
        whole, first, last, end = not born and not dies, 0, 0, 0
        if not whole:
            end = len(self.schedule) - 1
            first = self.index[born] if born else 0
            last = self.index[dies] if dies else end
            if first > last:
                return NO_ROW
        sums = self.kinds.get((meter, place))
        if sums is None:
            sums = self.kinds[meter, place] = _Open()
        if whole or (first == 0 and last == end):
            sums.lasting += size
            accumulated = name.startswith(ACCUMULATED)
            sums.accumulated += size if accumulated else 0
            sums.own += size if category in OF_A_MODEL and not accumulated else 0
        if whole:
            for i in range(3):
                sums.whole[i] += figures[i]
            return NO_ROW
        if not sums.changes:
            sums.changes = tuple([0] * (end + 2) for _ in range(3))
        for changes, figure in zip(sums.changes, figures, strict=True):
            changes[first] += figure
            changes[last + 1] -= figure
        return NO_ROW

    def closed(self) -> dict[Kind, Sums]:
        """The sums of what was added."""
        return {kind: sums.closed() for kind, sums in self.kinds.items()}


class Lasting(Adding):
    """Sums of what is there at every instant, or at every one but the step, for which nobody has to know the instants:
    rows that name none, or the last before the step alone."""

    schedule = "elsewhere", "before the step", "step"
    index = {"before the step": 1, "step": 2}  # noqa: RUF012

    def add(
        self, name: str, category: str, size: int, born: str = "", dies: str = "", *, at: str = "", **more: Any
    ) -> Entry:
        """Add what is alive when the first backward begins, whatever the schedule."""
        if born or at or dies not in ("", self.schedule[1]):
            return NO_ROW
        return super().add(name, category, size, dies=dies, **more)

    def after(self, instant: str) -> str:
        """One that is not known."""
        return self.schedule[0]

    before = after


class Totalled:
    """Several sections together: read as a ledger is (``schedule``, ``totals``, ``lasting``), without its rows."""

    def __init__(self, sections: list[dict[Kind, Sums]], schedule: tuple[str, ...]) -> None:
        self.sections, self.schedule = sections, schedule
        self._bounds: dict[str, tuple[list[int], list[int], list[int]]] = {}

    def totals(self, meter: str = "allocated", place: str = "gpu", bound: str = "bytes") -> list[int]:
        """Bytes alive at each instant, of one meter and place. ``bound``: bytes, low_bytes or high_bytes."""
        whole, at, alive = 0, BOUNDS[bound], []
        for section in self.sections:
            sums = section.get((meter, place))
            if sums is not None:
                whole += sums.whole[at]
                if sums.alive:
                    alive.append(sums.alive[at])
        if not alive:
            return [whole] * len(self.schedule)
        return [whole + sum(each) for each in zip(*alive, strict=True)]

    def bounds(self, meter: str = "allocated") -> tuple[list[int], list[int], list[int]]:
        """Low, expected and high bytes on the card at each instant, of one meter."""
        if meter not in self._bounds:
            low, expected, high = (self.totals(meter, bound=bound) for bound in BOUNDS)
            self._bounds[meter] = low, expected, high
        return self._bounds[meter]

    def meters(self, place: str) -> set[str]:
        """What sees bytes at a place."""
        return {meter for section in self.sections for meter, at in section if at == place}

    def lasting(self, meter: str = "allocated", place: str = "gpu") -> int:
        """Bytes that are there at every instant, from one step to the next."""
        return sum(section[meter, place].lasting for section in self.sections if (meter, place) in section)

    def accumulated(self) -> int:
        """Of them gradients on the card that are accumulated."""
        return sum(sums.accumulated for section in self.sections if (sums := section.get(("allocated", "gpu"))))

    def own(self) -> int:
        """Bytes on the card that models have from step to step."""
        return sum(sums.own for section in self.sections if (sums := section.get(("allocated", "gpu"))))
