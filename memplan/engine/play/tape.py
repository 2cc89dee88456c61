"""The tape of a whole step: it numbers its storages and keeps every birth and death, in order.

Where the tapes of ``traces.py`` play one layer of each kind, here all of them are played on one graph, as the model
runs them. Parameters are the same over all passes, and keep their gradient from one backward to the next, as
``Tensor.grad`` does.
"""

from __future__ import annotations

from memplan.engine.tape.graph import Param, Storage, Tensor
from memplan.engine.tape.tags import Tag
from memplan.engine.tape.tape import Tape


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
            tape.events.append((number, size))

    def __del__(self) -> None:
        if self.size:
            tape = self.tape
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

    def mark(self, name: str) -> None:
        """From here on the step is at ``name``."""
        self.marks.append((len(self.events), name))

    def _accumulate(self, param: Param, grads: list[Tensor | None]) -> None:
        """``AccumulateGrad``: a first gradient is taken as it is, another is added to it in place."""
        grad = grads.pop()
        if grad is not None:
            self.stored.setdefault(param, grad)
