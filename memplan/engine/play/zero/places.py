"""Where each trained parameter lies in its group's flat buffer, and what of it is one rank's (stages 1 and 2)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from memplan.engine.parallel.zero.flat_groups import Group, decays
from memplan.engine.play.notes import Note, UnknownParameter
from memplan.engine.tensors import Weight

Key = tuple[int | None, str, int]
"""A layer, or None outside of them; a name and elements."""


class Place(NamedTuple):
    """One parameter in the flat buffer of its group."""

    group: int
    start: int
    elements: int

    @property
    def end(self) -> int:
        """Behind its last element."""
        return self.start + self.elements


class Places:
    """All parameters of an engine, and the part of one rank: of that which keeps most, if none is named.

    ``layers``: trained weights outside the layers (None), and by layer, in the order in which they are registered."""

    def __init__(
        self, groups: list[Group], weights: list[tuple[int | None, Weight]], ranks: int, rank: int | None = None
    ) -> None:
        self.groups, self.ranks = groups, ranks
        self.by_key: dict[Key, list[Place]] = {}
        self.ordered: list[list[Place]] = [[] for _ in groups]
        starts = [0] * len(groups)
        for layer, weight in weights:
            group = 0 if len(groups) == 1 or decays(weight) else 1
            place = Place(group, starts[group], weight.elements)
            starts[group] += weight.elements
            self.ordered[group].append(place)
            self.by_key.setdefault((layer, weight.name, weight.elements), []).append(place)
        touched = self._touched()
        self.rank = max(range(ranks), key=lambda each: touched.get(each, 0)) if rank is None else rank
        self.owned = touched.get(self.rank, 0)

    def find(self, note: Note) -> Place:
        """The parameter of a note; those of one name and size take turns, from the last on."""
        found = self.by_key.get((note.layer, note.name, note.elements))
        if found is None:
            raise UnknownParameter(note.name)
        found.insert(0, found.pop())
        return found[0]

    def slices(self, place: Place) -> Iterator[tuple[int, int]]:
        """(rank, elements) of the pieces of a parameter."""
        size = self.groups[place.group].partition
        cuts = range((place.start // size + 1) * size, place.end, size)
        for start, end in pairwise((place.start, *cuts, place.end)):
            yield start // size, end - start

    def owns(self, place: Place) -> bool:
        """Whether a piece of it is this rank's."""
        size = self.groups[place.group].partition
        return place.start // size <= self.rank <= (place.end - 1) // size

    def own_elements(self, place: Place) -> int:
        """Of it, what is this rank's."""
        return sum(size for rank, size in self.slices(place) if rank == self.rank)

    def parts(self, group: int) -> list[int]:
        """Elements of the pieces that this rank steps on, with the zeros that fill up the last rank's."""
        found = [self.own_elements(place) for place in self.ordered[group] if self.owns(place)]
        rest = self.groups[group].partition - sum(found)
        return [*found, rest] if rest else found

    def _touched(self) -> dict[int, int]:
        """Elements of the parameters of which a piece is a rank's, by rank."""
        found: dict[int, int] = {}
        for group in self.ordered:
            for place in group:
                for rank, _ in self.slices(place):
                    found[rank] = found.get(rank, 0) + place.elements
        return found
