"""Tapes that note when modules read their parameters: what ZeRO-3 gathers comes and goes with them.

A layer's tape, or a tail's, keeps beside these notes what is alive then."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

from memplan.engine.play.notes import AHEAD, DONE, USED, USED_BACK, Note
from memplan.engine.tape.graph import Node, Param, Tensor
from memplan.engine.tape.tape import Tape

T = TypeVar("T")


class Watching(Tape):
    """It says when modules run, forward and back, if it ``watches``."""

    _running: Node | None = None

    def __init__(self, autocast: int = 0, category: str = "activations", in_place: bool = False) -> None:
        super().__init__(autocast, category=category, in_place=in_place)
        self.scopes: dict[Param, object] = {}
        """Where each parameter is: a layer's number, or outside."""
        self.read: dict[int, list[Param]] = {}
        """The parameters that a node reads when it runs back, by its sequence number."""
        self.reached_ahead = 0

    def close(self, waits: Node | None = None) -> None:
        """Of every parameter."""
        super().close(waits)
        for param in self.scopes:
            param.node = None
        self.scopes.clear()

    def happens(self, what: str, param: Param | None = None) -> None:
        """Note it."""

    def runs(self, node: Node | None) -> None:
        """A node begins to run back."""

    @property
    def running(self) -> Node | None:
        """The node that runs back."""
        return self._running

    @running.setter
    def running(self, node: Node | None) -> None:
        self._running = node
        self.runs(node)
        if self.watches and node is not None:
            reads = self.read.pop(node.sequence, ())
            if node.sequence == self.reached_ahead:
                return  # its module runs since before the recomputation, which has used it too
            self.used()
            for param in reads:
                self.use(param, USED_BACK)

    def reaches(self, node: Node) -> None:
        """Backward has come to a node whose checkpoint is made again before it runs."""
        if self.watches:
            self.used()
            self.reached_ahead = node.sequence
            for param in self.read.get(node.sequence, ()):
                self.use(param, AHEAD)
            self.using = False

    def reads(self, node: Node, inputs: Sequence[Tensor]) -> None:
        """Note the parameters that a node reads."""
        params = [each for each in inputs if isinstance(each, Param) and each in self.scopes]
        if params:
            self.read[node.sequence] = params

    def use(self, param: Param, how: str = USED) -> None:
        """Note that the module of a parameter runs."""
        if self.watches:
            self.using = True
            self.happens(how, param)

    def used(self) -> None:
        """Note that the last has run."""
        if self.using:
            self.using = False
            self.happens(DONE)


class Stretch(NamedTuple):
    """From one note to the next, or to another place of the tape: bytes alive when it begins, and the most that are
    when something is made in it."""

    note: Note | None
    place: tuple[str, str]
    live: int
    most: int


class Itself(tuple[T, ...]):
    """A tuple that is known by itself: to compare what it holds would cost more than what is asked of it."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Order(Itself[Note]):
    """Notes one after another, no layer named: the same object for the same notes."""


order_of = lru_cache(maxsize=1024)(Order)


class Uses(Itself[Stretch]):
    """What a tape has noted."""

    @cached_property
    def order(self) -> Order:
        """Its notes."""
        return order_of(tuple(each.note for each in self if each.note is not None))


NO_USES = Uses()


class Watched(Watching):
    """A tape of one layer, or of a tail."""

    watches = True

    def __init__(self, autocast: int = 0, category: str = "activations", in_place: bool = False) -> None:
        self.notes: list[tuple[int, Note | None, tuple[str, str]]] = []
        self._place, self.begun = ("forward", ""), 0
        super().__init__(autocast, category, in_place)

    @property
    def place(self) -> tuple[str, str]:
        """Phase and point."""
        return self._place

    @place.setter
    def place(self, place: tuple[str, str]) -> None:
        if place != self._place:
            self._place = place
            self.notes.append((len(self.log), None, place))

    def use(self, param: Param, how: str = USED) -> None:
        """Its parameters are those that are used."""
        self.scopes[param] = None
        super().use(param, how)

    def happens(self, what: str, param: Param | None = None) -> None:
        """Note it, and where on the log that is."""
        note = Note(what) if param is None else Note(what, None, param.name, param.dim.elements)
        self.notes.append((len(self.log), note, self._place))

    def uses(self) -> Uses:
        """Those since it was asked last."""
        found, live = list[Stretch](), self.live - sum(size for size, _ in self.log[self.begun :])
        begins = [(self.begun, None, self._place), *self.notes]
        for (at, note, place), end in zip(begins, (*(each[0] for each in self.notes), len(self.log)), strict=True):
            start, most = live, 0
            for size, _ in self.log[at:end]:
                live += size
                most = max(most, live) if size > 0 else most
            if note is not None or most:
                found.append(Stretch(note, place, start, most))
        self.notes.clear()
        self.begun = len(self.log)
        return Uses(found)
