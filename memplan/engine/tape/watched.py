"""A layer's tape that notes when modules read their parameters, and what is alive then: what ZeRO-3 gathers comes and
goes with them."""

from collections.abc import Sequence
from typing import NamedTuple

from memplan.engine.tape.graph import Node, Param, Tensor
from memplan.engine.tape.tape import Tape

DONE = (False, "")


class Use(NamedTuple):
    """A parameter is read forward or back: bytes alive then, the most until its module has run, and from there to the
    next one. ``place``: its place among all."""

    place: int
    live: int
    high: int
    later: int
    again: bool = False
    """It is read anew when others have been since."""


class Uses(dict[tuple[bool, str], Use]):
    """By whether it is read back, and its name; what comes before all is ``DONE``'s. Known by itself, to what
    is computed of it once."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Watched(Tape):
    """``notes`` are where in the log a parameter is read, or a module has run (``DONE``)."""

    watches = True
    _running: Node | None = None

    def __init__(self, autocast: int = 0, category: str = "activations", in_place: bool = False) -> None:
        self.notes: list[tuple[int, tuple[bool, str]]] = []
        self.begun = 0
        self.read: dict[int, list[str]] = {}
        super().__init__(autocast, category=category, in_place=in_place)

    def use(self, param: Param) -> None:
        """A module is about to run."""
        self._note(param.name, back=False)

    def _note(self, name: str, *, back: bool) -> None:
        self.using = True
        self.notes.append((len(self.log), (back, name)))

    def used(self) -> None:
        """It has."""
        if self.using:
            self.using = False
            self.notes.append((len(self.log), DONE))

    def reads(self, node: Node, inputs: Sequence[Tensor]) -> None:
        """Remember what a node reads."""
        names = [each.name for each in inputs if isinstance(each, Param)]
        if names:
            self.read[node.sequence] = names

    @property
    def running(self) -> Node | None:
        """The node that runs back."""
        return self._running

    @running.setter
    def running(self, node: Node | None) -> None:
        self._running = node
        if node is not None:
            self.used()
            for name in self.read.pop(node.sequence, ()):
                self._note(name, back=True)

    def uses(self) -> Uses:
        """Those since it was asked last."""
        found, current, ended, anew = Uses(), DONE, False, False
        at, live = self.begun, self.live - sum(size for size, _ in self.log[self.begun :])
        before = live
        for index, key in (*self.notes, (len(self.log), DONE)):
            most = live
            for size, _ in self.log[at:index]:
                live += size
                most = max(most, live)
            at = index
            place, start, high, later, again = found.get(current, Use(len(found), before, 0, 0))
            high, later = (high, max(later, most)) if ended else (max(high, most), later)
            found[current] = Use(place, max(start, before), high, later, again or anew)
            ended = key == DONE
            if not ended:
                anew, current, before = key != current and key in found, key, live
        self.notes.clear()
        self.begun = len(self.log)
        return found
