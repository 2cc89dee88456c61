"""The sums of a ledger without its rows: what a search asks for.

The sections of the ledger (``build.SECTIONS``) run as they are, over a ledger that only adds up (``Adding``), and each
section's sums are remembered by what the section read (``remembered``). Of jobs that differ in their batch alone, the
weights and optimizer states are added up once; a job whose every section was met before costs a walk through a few
small trees. The figures are the ledger's own, to the byte (tests/test_quick.py)."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, TypeVar

from memplan.engine.build import CALM, SECTIONS, SHARDING, Parts
from memplan.engine.ledger import Ledger
from memplan.engine.memo import PLAIN, Reading, Remembered, Values
from memplan.engine.sums import Adding, Kind, Lasting, Sums, Totalled
from memplan.spec.recipe import Recipe

_T = TypeVar("_T")
Section = Callable[[Ledger, Any], None]
MET = 10_000
"""Sums of whole ledgers that are kept."""
NUMBERED = 200_000
"""Objects that have a number, before all is forgotten: eight searches of a 235B's plans on 64 cards have half of it."""


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


class _Parts(Reading):
    """Parts whose every attribute is remembered too."""

    def __init__(self, kind: "Remembering", recipe: Recipe) -> None:
        super().__init__(VALUES, recipe, kind.names)
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        value = self.kind.parts[name](self)
        setattr(self, name, value)
        return value


class Remembering:
    """A kind of ledger, its sections and the parts that they are made from remembered one by one."""

    def __init__(self, parts: type, sections: Sequence[Section], calm: Sequence[Section]) -> None:
        made = {name: part.func for name, part in vars(parts).items() if isinstance(part, cached_property)}
        self.read = set[str]()
        self.parts = {name: _of_part(part, self.read) for name, part in made.items()}
        self.names, self.rows = frozenset(made), tuple(_of_section(section, self.read) for section in sections)
        self.calm = tuple(_of_section(section, self.read, Lasting) for section in calm)
        self.sections, self.met = tuple(sections), dict[tuple[Any, ...], Totalled]()
        self.asked: Callable[[Recipe], tuple[Any, ...]] = tuple
        """What any section or part has read of any recipe, so many names: ``met`` has sums by it."""
        self.covered = 0
        self.last: tuple[Recipe, _Parts] | None = None
        assert not self.names & {*dir(Recipe), *dir(Reading)}, "a part that is named as a field of the recipe"

    def of(self, recipe: Recipe) -> _Parts:
        """The parts of a recipe: those at hand where the one that was asked for last is asked for again."""
        if self.last is None or self.last[0] is not recipe:
            self.last = recipe, _Parts(self, recipe)
        return self.last[1]

    def totalled(self, recipe: Recipe) -> Totalled:
        """The sums of every section."""
        found = self.met.get(self._name(recipe))
        if found is None:
            parts = self.of(recipe)
            found = Totalled([rows(parts) for rows in self.rows], parts.schedule)
            if len(self.met) >= MET or len(self.read) > self.covered:
                self.covered, names = len(self.read), self.read - self.names
                self.asked = attrgetter(*names) if "" not in names else lambda recipe: (recipe,)
                self.met.clear()
            self.met[self._name(recipe)] = found
        return found

    def _name(self, recipe: Recipe) -> tuple[Any, ...]:
        return tuple([each if type(each) in PLAIN else VALUES.key(each) for each in self.asked(recipe)])

    def without(self, recipe: Recipe, sections: Sequence[Section]) -> Totalled:
        """The sums of every section but these."""
        parts, pairs = self.of(recipe), zip(self.rows, self.sections, strict=True)
        return Totalled([rows(parts) for rows, of in pairs if of not in sections], parts.schedule)

    def states(self, recipe: Recipe) -> int:
        """Bytes of the first section, the model states, that are there at every instant: no pass is followed."""
        sums = self.calm[0](self.of(recipe)).get(("allocated", "gpu"))
        return sums.lasting if sums else 0

    def there(self, recipe: Recipe) -> Totalled:
        """The sums of what no pass decides (``Lasting.schedule``)."""
        parts = self.of(recipe)
        return Totalled([rows(parts) for rows in self.calm], Lasting.schedule)

    def forget(self) -> None:
        """Start again with nothing remembered."""
        self.met.clear()
        self.last = None
        for remembered in (*self.parts.values(), *self.rows, *self.calm):
            remembered.forget()


VALUES = Values()
ORDINARY = Remembering(Parts, SECTIONS, CALM)
_OTHERS: list[Remembered[Any]] = []


def remembered(function: Callable[[Any], _T], megatron: bool = False) -> Callable[[Recipe], _T]:
    """A function of a ledger's parts (``megatron``: of that kind's), remembered by what it reads of them and recipe."""
    kept = Remembered(lambda recipe, parts: function(_View(recipe, parts)))
    _OTHERS.append(kept)
    return lambda recipe: kept((_megatron() if megatron else ORDINARY).of(recipe))


@cache
def _megatron() -> Remembering:
    """Megatron's kind, of an engine that most jobs never load."""
    from memplan.engine.megatron import build

    return Remembering(build.MegatronParts, build.SECTIONS, build.CALM)


def totalled(recipe: Recipe) -> Totalled:
    """The totals of the recipe's ledger."""
    if len(VALUES) > NUMBERED:
        forget()
    return (_megatron() if recipe.in_megatron else ORDINARY).totalled(recipe)


def without_sharding(recipe: Recipe) -> Totalled:
    """The totals of a ledger but for what its sharding gathers and reduces, which is slow to come by."""
    return ORDINARY.without(recipe, SHARDING)


def states_alone(recipe: Recipe) -> int:
    """Bytes of model states that are there at every instant: what no batch, loss or checkpointing makes smaller."""
    return (_megatron() if recipe.in_megatron else ORDINARY).states(recipe)


def there(recipe: Recipe) -> Totalled:
    """What is there before the step, beside what passes hold and a sharding gathers and reduces."""
    return (_megatron() if recipe.in_megatron else ORDINARY).there(recipe)


def forget() -> None:
    """Start again with nothing remembered."""
    VALUES.forget()
    ORDINARY.forget()
    for each in _OTHERS:
        each.forget()
    _megatron.cache_clear()
