"""Where each trained parameter lies in its group's flat buffer, and what of it is one rank's (stages 1 and 2)."""

from functools import cached_property
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
        self.weights, self.by_key = weights, dict[Key, list[Place]]()
        self.ordered: list[list[Place]] = [[] for _ in groups]
        of = [0 if len(groups) == 1 or decays(weight) else 1 for _, weight in weights]
        places = dict[int, Place]()
        for number, group in enumerate(groups):
            start, own = 0, [at for at, each in enumerate(of) if each == number]
            for at in group.laid(own):
                places[at] = Place(number, start, weights[at][1].elements)
                self.ordered[number].append(places[at])
                start = places[at].end
        self.every = [places[at] for at in range(len(weights))]
        self.named = rank
        self.any_rank = False
        """Of all ranks, what the one that has most keeps."""
        self.mixed = frozenset[Place]()
        """Those that come between others of other ranks' parts, where nobody knows in which order gradients come."""

    def find(self, note: Note) -> Place:
        """The parameter of a note; those of one name and size take turns, from the last on."""
        if not self.by_key:
            for (layer, weight), place in zip(self.weights, self.every, strict=True):
                self.by_key.setdefault((layer, weight.name, weight.elements), []).append(place)
        found = self.by_key.get((note.layer, note.name, note.elements))
        if found is None:
            raise UnknownParameter(note.name)
        found.insert(0, found.pop())
        return found[0]

    @cached_property
    def rank(self) -> int:
        """Whose part it is."""
        return max(self.touched, key=lambda each: self.touched[each], default=0) if self.named is None else self.named

    @cached_property
    def slices(self) -> dict[Place, tuple[tuple[int, int], ...]]:
        """(rank, elements) of the pieces of each."""
        return {place: self._cut(place) for place in self.every}

    def _cut(self, place: Place) -> tuple[tuple[int, int], ...]:
        size = self.groups[place.group].partition
        if place.start // size == (place.end - 1) // size:
            return ((place.start // size, place.elements),)
        cuts = range((place.start // size + 1) * size, place.end, size)
        return tuple((start // size, end - start) for start, end in pairwise((place.start, *cuts, place.end)))

    def owns(self, place: Place) -> bool:
        """Whether a piece of it is this rank's."""
        pieces = self.slices[place]
        return pieces[0][0] <= self.rank <= pieces[-1][0]

    def keeps(self, place: Place) -> int:
        """Elements of all that the rank keeps, where a piece of it is its own."""
        if self.any_rank:
            if len(self.slices[place]) == 1:
                return self.touched[self.slices[place][0][0]][0]
            return max(self.touched[rank][0] for rank, _ in self.slices[place])
        return self.touched[self.rank][0] if self.owns(place) else 0

    def piece(self, place: Place) -> int:
        """Of it, what is this rank's, or the most that is any's."""
        return max((size for rank, size in self.slices[place] if self.any_rank or rank == self.rank), default=0)

    def parts(self, group: int) -> list[int]:
        """Elements of the pieces that this rank steps on, with the zeros that fill up the last rank's."""
        found = [self.piece(place) for place in self.ordered[group] if self.owns(place)]
        rest = self.groups[group].partition - sum(found)
        return [*found, rest] if rest else found

    @cached_property
    def touched(self) -> dict[int, tuple[int, int]]:
        """By rank, elements of the parameters of which a piece is its own, and of the largest piece."""
        found: dict[int, tuple[int, int]] = {}
        for place, pieces in self.slices.items():
            for rank, size in pieces:
                elements, piece = found.get(rank, (0, 0))
                found[rank] = elements + place.elements, max(piece, size)
        return found
