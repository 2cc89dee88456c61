"""Notes among the marks of a play: what happens there, and of which layer's parameter.

While a few layers stand for many, a note names its layer by how far it is from the piece of the stream that it stands
in; ``unfolding.py`` adds where that piece comes to lie."""

from functools import lru_cache
from typing import NamedTuple

SIGN = "@"
OPTIMIZER = "step.optimizer"
"""The mark where it steps."""
STEP = "step"
"""The mark where a training step begins, and where the last has ended."""
POLICY = "policy"
"""The engine of the model that trains."""
OUTSIDE = "-"
USED, USED_BACK, AHEAD, DONE = "used", "used-back", "ahead", "done"
"""The module of a parameter runs, forward or back; it will run back, and what it saved is made again first; it has run.
"""
BEGUN, RESUMED = "begun", "resumed"
"""A forward of the model of that name begins; its backward."""
FIRST, TAKEN, ENDED = "first", "taken", "ended"
"""A backward has its first gradient; one is handed over, with the event that frees it; a backward is over."""


class UnknownParameter(LookupError):
    """A note names what is no parameter of the model as it is registered: the step is not played."""


class InTower(NamedTuple):
    """Where a parameter of a vision tower is (``tensors.tower_in_order``)."""

    number: int

    @property
    def place(self) -> int:
        """In a note."""
        return -1 - self.number


class Note(NamedTuple):
    """What a mark says."""

    what: str
    layer: int | None = None
    """None: outside the layers; below 0: a part of a tower."""
    name: str = ""
    elements: int = 0
    shared: bool = False
    """Its memory is held by others too."""


def noted(what: str, place: int | None = None, name: str = "", elements: int = 0) -> str:
    """The mark; ``place``: the layer, as far from its piece's as it is."""
    return f"{SIGN}{OUTSIDE if place is None else place} {what} {elements} {name}"


def moved(mark: str, by: int) -> str:
    """The mark of a piece that lies ``by`` layers behind the first."""
    place, rest = mark[1:].split(" ", 1)
    return mark if place == OUTSIDE else f"{SIGN}{int(place) + by} {rest}"


@lru_cache(maxsize=1 << 15)
def read(mark: str) -> Note | None:
    """What a mark notes; None where it is another's."""
    if not mark.startswith(SIGN):
        return None
    place, what, elements, name, *more = mark[1:].split(" ")
    return Note(what, None if place == OUTSIDE else int(place), name, int(elements), bool(more))
