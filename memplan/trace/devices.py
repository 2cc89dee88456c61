"""A device that a step really runs on, and what can be read of it: a CUDA card, or the CPU."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memplan.callback import meters
from memplan.errors import InvalidJob, UsageError
from memplan.gpus import find_gpu
from memplan.trace.ledger import PHASES
from memplan.trace.tracker import Tracker

WORDS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How allocators other than torch's own say that there is no more."""
HISTORY = 1_000_000
"""Events that a snapshot keeps."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the card or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in WORDS)


class RealTracker(Tracker):
    """A tracker of real tensors, which can be asked in between."""

    def allocated(self) -> int:
        """Bytes that are allocated now."""
        return sum(size for size, _ in self.ledger.events)


class CpuDevice:
    """The CPU: torch keeps no count there, so that storages are tracked. Nothing is reserved, and no driver asked."""

    kind = "cpu"
    backend = "gloo"
    meter = "tracked on cpu"
    has_limit = False
    """Whether it says no before the machine suffers."""

    def __init__(self) -> None:
        self.tracker = RealTracker(self.kind)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everything that is allocated while the block runs counts."""
        self.tracker = RealTracker(self.kind)
        with self.tracker.watching_resizes(), self.tracker:
            yield

    def account(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that came from elsewhere: weights are read from files by threads that nobody tracks."""
        for tensor in tensors:
            self.tracker.see(tensor, "load")

    def begin(self, phase: str) -> None:
        """A phase begins, and the one before ends."""
        self.tracker.ledger.begin(phase)

    def readings(self) -> dict[str, Any]:
        """Bytes by meter, and by phase."""
        ledger = self.tracker.ledger
        levels = ledger.levels()
        phases = {phase: ledger.peak(phase, levels)[0] for phase in PHASES}
        return {"allocated_bytes": max(phases.values()), "phases": phases}

    def reached(self) -> dict[str, int]:
        """The most that there was before memory ran out."""
        return {"allocated_bytes": max(self.tracker.ledger.levels(), default=0)}

    def release(self) -> None:
        """Give back what a run has left."""
        self.tracker = RealTracker(self.kind)
        gc.collect()

    def hardware(self) -> dict[str, Any]:
        """What it is."""
        return meters.hardware()

    def card(self) -> str | None:
        """The card as a job names it."""
        return None

    @contextmanager
    def history(self, path: str | None) -> Iterator[None]:
        """Keep torch's memory snapshot. Raises UsageError: there is none here."""
        if path is not None:
            raise UsageError("--snapshot: torch keeps memory snapshots of CUDA devices alone", "leave --snapshot out")
        yield


class CudaDevice(CpuDevice):
    """A CUDA card: torch's own counters, and the driver's."""

    kind = "cuda"
    backend = "nccl"
    meter = "torch.cuda.max_memory_allocated"
    has_limit = True

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        if index >= torch.cuda.device_count():
            there = torch.cuda.device_count()
            raise UsageError(f"LOCAL_RANK={index}: this machine shows {there} CUDA devices", "start fewer processes")
        torch.cuda.set_device(index)
        self._reset()

    def _reset(self) -> None:
        self._phase, self._phases = "", dict.fromkeys(PHASES, 0)
        self._highest, self._reserved, self._device = 0, 0, 0

    def account(self, tensors: Iterable[torch.Tensor]) -> None:
        """torch counts them."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start from nothing."""
        self.release()
        yield

    def begin(self, phase: str) -> None:
        """Read the counters for the phase that ends, and reset them for the one that begins.

        What making the model took for a moment is no part of a step: its segments are given back first."""
        if self._phase:
            self._note()
        else:
            gc.collect()
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._phase = phase

    def _note(self) -> None:
        peak = torch.cuda.max_memory_allocated()
        if self._phase in self._phases:
            self._phases[self._phase] = max(self._phases[self._phase], peak)
        free, total = torch.cuda.mem_get_info()
        self._highest = max(self._highest, peak)
        self._reserved = max(self._reserved, torch.cuda.max_memory_reserved())
        self._device = max(self._device, total - free)

    def readings(self) -> dict[str, Any]:
        """Bytes by meter, and by phase; reserved and device are the most since the first step."""
        return {
            "allocated_bytes": max(self._phases.values()),
            "reserved_bytes": self._reserved,
            "device_bytes": self._device,
            "phases": dict(self._phases),
        }

    def reached(self) -> dict[str, int]:
        """The most that there was before memory ran out."""
        self._note()
        return {"allocated_bytes": self._highest, "reserved_bytes": self._reserved, "device_bytes": self._device}

    def release(self) -> None:
        """Give the cached segments back to the driver."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._reset()

    def card(self) -> str | None:
        """The catalogue's name for it, by which the estimate knows its workspaces; its size where it is not there."""
        words = torch.cuda.get_device_name().lower().replace("nvidia", "").replace("-", " ").split()
        total = torch.cuda.mem_get_info()[1]
        for count in range(len(words), 0, -1):
            try:
                gpu = find_gpu("-".join(words[:count]))
            except InvalidJob:
                continue
            if abs(gpu.memory_bytes - total) * 10 <= total:
                return gpu.name
        return meters.local_card()

    @contextmanager
    def history(self, path: str | None) -> Iterator[None]:
        """Keep torch's memory snapshot of the block in a file, also where memory runs out."""
        if path is None:
            yield
            return
        record: Callable[..., None] = torch.cuda.memory._record_memory_history
        record(max_entries=HISTORY)
        try:
            yield
        finally:
            torch.cuda.memory._dump_snapshot(path)
            record(enabled=None)


def this_device(local_rank: int) -> CpuDevice:
    """The card of this process where there is one, else the CPU."""
    return CudaDevice(local_rank) if torch.cuda.is_available() else CpuDevice()
