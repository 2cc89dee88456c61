"""The sums of a ledger without its rows: what a search asks for.

The sections of the ledger (``build.SECTIONS``) run as they are, over a ledger that only adds up (``Adding``), and each
section's sums are remembered by what the section read (``remembered``). Of jobs that differ in their batch alone, the
weights and optimizer states are added up once; a job whose every section was met before costs a walk through a few
small trees. The figures are the ledger's own, to the byte (tests/test_quick.py)."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from memplan.engine.build import SECTIONS, Parts, _enter_sharding
from memplan.engine.ledger import ACCUMULATED, NO_ROW, Entry, Ledger
from memplan.engine.memo import MOST, Reading, Remembered, Values
from memplan.spec.recipe import Recipe

_T = TypeVar("_T")
Section = Callable[[Ledger, Any], None]
Kind = tuple[str, str]
"""Meter and place."""
MET = 10_000
"""Sums of whole ledgers that are kept."""
BOUNDS = {"low_bytes": 0, "bytes": 1, "high_bytes": 2}


class Sums(NamedTuple):
    """The rows of one section on one meter and place."""

    whole: tuple[int, int, int]
    """Low, expected and high bytes of what is there over the whole step."""
    lasting: int
    """Expected bytes that are there from the first instant to the last, however this is said."""
    accumulated: int  # of them gradients, gone between steps
    alive: tuple[tuple[int, ...] | None, ...]
    """Low, expected and high bytes of the others at each instant; None where there are no others."""


class _Open:
    """Sums that are still added to."""

    def __init__(self) -> None:
        self.whole, self.lasting, self.accumulated = [0, 0, 0], 0, 0
        self.changes: tuple[list[int], ...] = ()

    def closed(self) -> Sums:
        low, expected, high = self.whole
        alive = tuple(tuple(accumulate(each))[:-1] for each in self.changes)
        return Sums((low, expected, high), self.lasting, self.accumulated, alive)


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
            sums.accumulated += size if name.startswith(ACCUMULATED) else 0
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
    """Sums of what is there at every instant alone, for which nobody has to know the instants."""

    schedule = "named", "named"

    def add(
        self, name: str, category: str, size: int, born: str = "", dies: str = "", *, at: str = "", **more: Any
    ) -> Entry:
        """Add what names no instant."""
        return NO_ROW if born or dies or at else super().add(name, category, size, **more)

    def after(self, instant: str) -> str:
        """Any."""
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


class _View:
    """The watched recipe and parts, as the functions of ``build`` take them."""

    def __init__(self, recipe: Any, parts: Any) -> None:
        self.recipe, self._parts = recipe, parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts, name)


def _of_section(section: Section, read: set[str], sums: type[Adding] = Adding) -> Remembered[dict[Kind, Sums]]:
    """The sums of one section."""

    def run(recipe: Any, parts: Any) -> dict[Kind, Sums]:
        view: Any = _View(recipe, parts)
        ledger = sums(parts)
        section(ledger, view)
        return ledger.closed()

    return Remembered(run, read)


def _of_part(part: Callable[[Any], Any], read: set[str]) -> Remembered[Any]:
    return Remembered(lambda recipe, parts: part(_View(recipe, parts)), read)


class _Parts:
    """Parts whose every attribute is remembered too."""

    def __init__(self, kind: "Remembering", recipe: Recipe) -> None:
        self.kind, self.reading = kind, Reading(VALUES, recipe, self, kind.names)

    def __getattr__(self, name: str) -> Any:
        value = self.kind.parts[name](self.reading)
        setattr(self, name, value)
        return value


class Remembering:
    """A kind of ledger, its sections and the parts that they are made from remembered one by one."""

    def __init__(self, parts: type, sections: Sequence[Section]) -> None:
        made = {name: part.func for name, part in vars(parts).items() if isinstance(part, cached_property)}
        self.read = set[str]()
        self.parts = {name: _of_part(part, self.read) for name, part in made.items()}
        self.names, self.rows = frozenset(made), tuple(_of_section(section, self.read) for section in sections)
        self.lasting = _of_section(sections[0], self.read, Lasting)
        self.sections, self.met = tuple(sections), dict[tuple[Any, ...], Totalled]()
        self.asked = tuple[str, ...]()
        """All that any section or part has read of any recipe: ``met`` has sums by it."""
        self.last: tuple[Recipe, _Parts] | None = None
        assert not self.names & set(dir(Recipe)), "a part that is named as a field of the recipe"

    def of(self, recipe: Recipe) -> _Parts:
        """The parts of a recipe: those at hand where the one that was asked for last is asked for again."""
        if self.last is None or self.last[0] is not recipe:
            self.last = recipe, _Parts(self, recipe)
        return self.last[1]

    def totalled(self, recipe: Recipe) -> Totalled:
        """The sums of every section."""
        parts = self.of(recipe)
        found = self.met.get(tuple(map(parts.reading.__getitem__, self.asked)))
        if found is None:
            found = Totalled([rows(parts.reading) for rows in self.rows], parts.schedule)
            if len(self.met) >= MET or not self.read <= {*self.asked, *self.names}:
                self.asked = tuple(self.read - self.names)
                self.met.clear()
            self.met[tuple(map(parts.reading.__getitem__, self.asked))] = found
        return found

    def without(self, recipe: Recipe, section: Section) -> Totalled:
        """The sums of every section but one."""
        parts, pairs = self.of(recipe), zip(self.rows, self.sections, strict=True)
        return Totalled([rows(parts.reading) for rows, of in pairs if of is not section], parts.schedule)

    def states(self, recipe: Recipe) -> int:
        """Bytes of the first section, the model states, that are there at every instant: no pass is followed."""
        sums = self.lasting(self.of(recipe).reading).get(("allocated", "gpu"))
        return sums.lasting if sums else 0

    def forget(self) -> None:
        """Start again with nothing remembered."""
        self.met.clear()
        self.last = None
        for remembered in (*self.parts.values(), *self.rows, self.lasting):
            remembered.forget()


VALUES = Values()
ORDINARY = Remembering(Parts, SECTIONS)
_OTHERS: list[Remembered[Any]] = []


def remembered(function: Callable[[Any], _T], megatron: bool = False) -> Callable[[Recipe], _T]:
    """A function of a ledger's parts (``megatron``: of that kind's), remembered by what it reads of them and recipe."""
    kept = Remembered(lambda recipe, parts: function(_View(recipe, parts)))
    _OTHERS.append(kept)
    return lambda recipe: kept((_megatron() if megatron else ORDINARY).of(recipe).reading)


@cache
def _megatron() -> Remembering:
    """Megatron's kind, of an engine that most jobs never load."""
    from memplan.engine.megatron.build import SECTIONS as MEGATRON_SECTIONS
    from memplan.engine.megatron.build import MegatronParts

    return Remembering(MegatronParts, MEGATRON_SECTIONS)


def totalled(recipe: Recipe) -> Totalled:
    """The totals of the recipe's ledger."""
    if len(VALUES) > MOST:
        forget()
    return (_megatron() if recipe.in_megatron else ORDINARY).totalled(recipe)


def without_sharding(recipe: Recipe) -> Totalled:
    """The totals of a ledger but for what its sharding gathers and reduces, which is slow to come by."""
    return ORDINARY.without(recipe, _enter_sharding)


def states_alone(recipe: Recipe) -> int:
    """Bytes of model states that are there at every instant: what no batch, loss or checkpointing makes smaller."""
    return (_megatron() if recipe.in_megatron else ORDINARY).states(recipe)


def forget() -> None:
    """Start again with nothing remembered."""
    VALUES.forget()
    ORDINARY.forget()
    for each in _OTHERS:
        each.forget()
    _megatron.cache_clear()
