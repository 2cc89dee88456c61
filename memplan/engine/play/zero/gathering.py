"""Stage 3's whole weights on the play: what the coordinator gathers, copies out and frees, on which stream.

deepspeed 0.19 runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``, ``release_sub_module``),
partition_parameters.py (``_all_gather_dtype``, ``AllGatherCoalescedHandle.wait``, ``free_param``). What it chooses is
``parallel/zero/coordinator.py``'s."""

from memplan.engine.parallel.zero.coordinator import Call, Coordinator, Limits
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim

GATHERED = "gathered_parameters"


class Whole(Coordinator):
    """A coordinator whose flat buffers and parameters are tensors."""

    def __init__(self, tape: PlayTape, limits: Limits, itemsize: int, stream: int) -> None:
        super().__init__(limits)
        self.tape, self.itemsize, self.stream = tape, itemsize, stream
        self.from_host = False
        self.flats: dict[Call, Tensor] = {}
        self.wholes: dict[int, Tensor] = {}

    def called(self, call: Call) -> None:
        """The flat buffer, and the partitions where they come from the host."""
        flat = self._new(call.flat, "flat all-gather buffer" if len(call.members) > 1 else "gathered weights")
        if self.from_host:
            part = self._new(call.flat // self.limits.ranks, "partitions from the host")
            del part
        if len(call.members) == 1:
            self.wholes[call.members[0][0]] = flat
        else:
            self.flats[call] = flat

    def copied(self, call: Call) -> None:
        """``torch.cat`` for each parameter."""
        for identity, size in call.members:
            self.wholes[identity] = self._new(size, "gathered weights")

    def ended(self, call: Call) -> None:
        """The last handle is gone."""
        del self.flats[call]

    def freed(self, identity: int) -> None:
        """``free_param``. Kernels that were given it may still run (``record_stream``), if the host is far ahead of
        them, and nothing in a forward makes it wait: here they are done. With hooks around every module the host has
        much to do: of four published runs with ``overlap_comm`` all hold what this says, to 13 %, where a host that
        never waits would hold up to twice as much."""
        self.wholes.pop(identity, None)

    def _new(self, elements: int, label: str) -> Tensor:
        return self.tape.on(self.stream, Dim("n", elements * self.itemsize), label, GATHERED)
