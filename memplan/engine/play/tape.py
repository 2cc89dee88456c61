"""The tape of a whole step: it numbers its storages and keeps every birth and death, in order.

Where the tapes of ``traces.py`` play one layer of each kind, here all of them are played on one graph, as the model
runs them. Parameters are the same over all passes, and keep gradients between backwards, as ``Tensor.grad`` does."""

from collections import Counter
from collections.abc import Mapping

from memplan.engine.play.notes import USED, InTower, noted
from memplan.engine.play.sharding import Sharding
from memplan.engine.tape.graph import Node, Param, Storage, Tensor
from memplan.engine.tape.tags import Dim, Tag
from memplan.engine.tape.watched import Watching
from memplan.tables.styles import Fused


class PlayedStorage(Storage):
    """A storage whose birth and death are on record under one number."""

    __slots__ = ("number",)
    tape: "PlayTape"

    def __init__(self, tape: "PlayTape", size: int, tag: Tag) -> None:
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
            tape.live -= self.size
            tape.events.append((self.number, -self.size))
            if tape.recorded:
                for stream in tape.recorded.get(self.number, ()):
                    tape.waiting_for[stream] += 1


class PlayTape(Watching):
    """``events`` are pairs of a storage's number and its bytes, negative where it is freed; ``tags`` say what each
    storage is; ``marks`` are the positions at which a named part of the step begins."""

    storage_type: type[Storage] = PlayedStorage
    plays_all = True

    def close(self, waits: Node | None = None) -> None:
        """Let go of what is on record too."""
        super().close(waits)
        self.sharding = Sharding()
        self.events.clear()
        self.tags.clear()

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self.tags: list[Tag] = []
        self.marks: list[tuple[int, str]] = []
        self.stored: dict[Param, Tensor] = {}
        """``.grad`` of each parameter that has one."""
        self.sharding = Sharding()
        self.stream = self.base = self.roots = 0
        """``base``: by how much the streams of the model that runs are numbered higher. ``roots``: models with such."""
        self.streams: dict[int, int] = {}
        """The stream of each storage that is not of the one that computes."""
        self.recorded: dict[int, tuple[int, ...]] = {}
        """Streams that use a storage of another (``record_stream``)."""
        self.waiting_for: Counter[int] = Counter()
        """How many storages were freed so far that wait for each stream."""

    def on(self, stream: int, dim: Dim, label: str, category: str) -> Tensor:
        """Allocate bytes on a stream."""
        self.stream = stream and stream + self.base
        tensor = self.new(dim, 1, label, category=category)
        self.stream = 0
        return tensor

    def record(self, tensor: Tensor, stream: int) -> None:
        """``tensor.record_stream(stream)``: once freed, its block waits for what that stream was given before."""
        if isinstance(tensor.storage, PlayedStorage):
            number = tensor.storage.number
            self.recorded[number] = (*self.recorded.get(number, ()), stream and stream + self.base)

    def reached(self, streams: Mapping[int, int]) -> None:
        """The host has waited until each of these streams came so far: to the so-manieth storage that waits for it."""
        for stream, count in streams.items():
            self.mark(f"done {stream} {self.waiting_for[stream] - count}")

    def synchronise(self) -> None:
        """The host waits for the device: a number of it is read (``loss.item()``, a check for NaN)."""
        self.reached(dict(self.waiting_for))

    def happens(self, what: str, param: Param | None = None) -> None:
        """Among the marks."""
        named = (self.place_of(param), param.name, param.dim.elements) if param is not None else ()
        self.mark(noted(what, *named))

    def use(self, param: Param, how: str = USED) -> None:
        """What is divided may hear of it."""
        super().use(param, how)
        self.sharding.uses(param)

    def enter(self, layer: int) -> None:
        """A loop over the layers has come to this one, or (-1) to its end: nothing, where all of them are played."""

    def place_of(self, param: Param) -> int | None:
        """The layer of a parameter, as a note writes it (``notes.py``); below 0 the part of a tower."""
        scope = self.scopes.get(param)
        return scope.place if isinstance(scope, InTower) else scope if isinstance(scope, int) else None

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
