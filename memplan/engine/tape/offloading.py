"""Saved tensors that wait on the host: packed as the graph is built, copied back when their node runs.

torch: ``torch.autograd.graph.save_on_cpu`` (torch 2.13 autograd/graph.py) copies whatever a node saves, weights
included and once for each node that saves it. trl: ``OffloadActivations`` with streams (trl 1.16
models/activation_offloading.py) leaves weights and what is below 1 KiB on the card, keeps the last five copied tensors
until their copies are done, and keeps on the card, for good, a tensor that is saved again while it is among these."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.tape.tags import Dim
from memplan.tables.styles import OffloadStyle

if TYPE_CHECKING:
    from memplan.engine.tape.graph import Node, Storage, Tensor
    from memplan.engine.tape.tape import Tape

MIN_BYTES = 1024
STASHED = 5
"""``min_offload_size`` and ``max_fwd_stash_size``."""


class Place(NamedTuple):
    """A tensor on the host."""

    dim: Dim
    itemsize: int

    @property
    def bytes(self) -> int:
        """Its size there."""
        return self.dim.elements * self.itemsize


class Offload:
    """torch's ``save_on_cpu``."""

    skips: frozenset[str] = frozenset()
    """Points of the tape whose saved tensors stay on the card."""

    def __init__(self) -> None:
        self.host_bytes = 0

    def pack(self, saved: "Sequence[Tensor | None]", times: int = 1) -> "list[Storage | Place | None]":
        """Where each saved tensor is now; ``times``: how many nodes this one stands for."""
        before = self.host_bytes
        places = [None if tensor is None else self.sent(tensor) for tensor in saved]
        self.host_bytes += (times - 1) * (self.host_bytes - before)
        return places

    def sent(self, tensor: "Tensor") -> "Storage | Place | None":
        """A copy on the host; a broadcast view is written out."""
        return self.copied(Place(tensor.dim, tensor.itemsize))

    def copied(self, place: Place) -> Place:
        """Count it."""
        self.host_bytes += place.bytes
        return place

    def unpack(self, tape: "Tape", node: "Node") -> None:
        """Copies on the card for a node that is about to run."""
        node.saved = [self._back(tape, place) for place in node.places]
        node.places = ()

    def _back(self, tape: "Tape", place: "Storage | Place | None") -> "Storage | None":
        if not isinstance(place, Place):
            return place
        return tape.new(place.dim, place.itemsize, "saved tensors back from the host", category="temporaries").storage

    def settle(self) -> None:
        """The layer is through: nothing of it waits to be copied."""


class StreamedOffload(Offload):
    """TRL's ``OffloadActivations``, its copies on a stream of their own; the head is left out."""

    skips = frozenset(["head"])

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.stash: dict[int, tuple[Storage, int]] = {}
        self.tracked: dict[int, int] = {}
        self.before: Sequence[Storage | None] = ()

    def sent(self, tensor: "Tensor") -> "Storage | Place | None":
        """On the host, unless it is a weight, small, or just being copied."""
        storage, self.number = tensor.storage, self.number + 1
        if storage is None:
            return None
        key = id(storage)
        if key in self.tracked:
            self.tracked[key] = self.number
            return storage
        if tensor.dim.elements * tensor.itemsize < MIN_BYTES:
            return storage
        for number in [number for number in self.stash if number <= self.number - STASHED]:
            _, old = self.stash.pop(number)
            if self.tracked.get(old) == number:
                del self.tracked[old]
        self.stash[self.number], self.tracked[key] = (storage, key), self.number
        elements = min(tensor.dim.elements, storage.size // tensor.itemsize)  # of a broadcast view, what is behind it
        return self.copied(Place(Dim(tensor.dim.symbol, elements), tensor.itemsize))

    def unpack(self, tape: "Tape", node: "Node") -> None:
        """The copies of one node stay until the next one that needs some has run."""
        super().unpack(tape, node)
        self.before = node.saved

    def settle(self) -> None:
        """The stash moves on with the next layers."""
        self.stash.clear()
        self.tracked.clear()


class Checkpoints(Offload):
    """Unsloth's: the inputs of checkpointed layers alone; norm, head and loss stay as they are."""

    skips = frozenset(["final-norm", "head", "log", "loss", "outputs"])


OFFLOADS: dict[OffloadStyle, type[Offload]] = {
    "torch": Offload,
    "trl": StreamedOffload,
    **dict.fromkeys(("unsloth", "inputs"), Checkpoints),
}
"""A way of packing for each value of ``Mode.offload``."""
