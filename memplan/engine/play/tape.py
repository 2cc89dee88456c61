"""The tape of a whole step: it numbers its storages and keeps every birth and death, in order.

Where the tapes of ``traces.py`` play one layer of each kind, here all of them are played on one graph, as the model
runs them. Parameters are the same over all passes, and keep their gradient from one backward to the next, as
``Tensor.grad`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memplan.engine.play.sharding import Sharding
from memplan.engine.tape.graph import Param, Storage, Tensor
from memplan.engine.tape.tags import Tag
from memplan.engine.tape.tape import Tape
from memplan.tables.styles import Fused


class PlayedStorage(Storage):
    """A storage whose birth and death are on record under one number."""

    __slots__ = ("number",)

    def __init__(self, tape: Tape, size: int, tag: Tag) -> None:
        assert isinstance(tape, PlayTape)
        self.tape, self.size, self.tag = tape, size, tag
        self.number = number = len(tape.tags)
        tape.tags.append(tag)
        if size:
            tape.live += size
            if tape.stream:
                tape.streams[number] = tape.stream
            tape.events.append((number, size))

    def __del__(self) -> None:
        if self.size:
            tape = self.tape
            assert isinstance(tape, PlayTape)
            tape.live -= self.size
            tape.events.append((self.number, -self.size))


class PlayTape(Tape):
    """``events`` are pairs of a storage's number and its bytes, negative where it is freed; ``tags`` say what each
    storage is; ``marks`` are the positions at which a named part of the step begins.
    """

    storage_type = PlayedStorage
    plays_all = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self.tags: list[Tag] = []
        self.marks: list[tuple[int, str]] = []
        self.stored: dict[Param, Tensor] = {}
        """``.grad`` of each parameter that has one."""
        self.scopes: dict[Param, object] = {}
        """Where each parameter is: a layer's number, or outside."""
        self.sharding = Sharding()
        self.stream = 0
        self.streams: dict[int, int] = {}
        """The stream of each storage that is not of the one that computes."""

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Allocate on another stream."""
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def mark(self, name: str) -> None:
        """From here on the step is at ``name``."""
        self.marks.append((len(self.events), name))

    def _accumulate(self, param: Param, grads: list[Tensor | None]) -> None:
        """``AccumulateGrad``: a first gradient is taken as it is, another is added to it in place."""
        if isinstance(self.gradient_mode, Fused):
            super()._accumulate(param, grads)
            return
        grad = grads.pop()
        if grad is not None:
            is_new = param not in self.stored
            self.stored.setdefault(param, grad)
            del grad
            self.sharding.took(param, self.scopes.get(param), is_new=is_new)
