"""Every storage that a step allocates: when it is born, when it dies, who made it.

A dispatch mode sees the result of every operation; a weak reference on the result's storage sees its end. A storage
that is resized in place, as FSDP2 frees and refills a gathered layer, ends and begins again. A DTensor is a wrapper
around what the rank holds: the operations on that are tracked, not those on the wrapper. Sizes are rounded up as CUDA's
caching allocator does. Nothing is summed here: ``ledger`` makes peaks and timelines of the list."""

import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memplan.trace.ledger import Block, TracedLedger
from memplan.units import GPU_ROUNDING, round_up

WEIGHT_CAST = torch.ops.aten._to_copy.default
WRAPPERS = ("DTensor", "Float8TrainingTensor", "WeightWithDynamicFloat8CastTensor")
"""Subclasses around what the rank holds, whose own operations are tracked."""
WEIGHTS = ("parameters", "adapters", "reference")


class Tracker(TorchDispatchMode):
    """Records blocks of one device type in a TracedLedger."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.ledger = TracedLedger()
        self.modules = Modules()
        self._alive: dict[int, tuple[Any, Block]] = {}
        self._emptied: dict[int, Any] = {}
        self._kind, self._looks = "", True
        self._lock = threading.Lock()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what it made."""
        if any(kind.__name__ in WRAPPERS for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            block = self.see(out, func)
            if func is WEIGHT_CAST and block is not None and not block.kind and self._is_weight(args[0]):
                block.kind = "autocast_weights"
        elif out is not None:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.see(leaf, func)
        return out

    def see(self, tensor: torch.Tensor, made_by: Any, kind: str = "") -> Block | None:
        """The block of a tensor's storage, recorded when it is new; None for another device and for nothing."""
        for inner in ("_local_tensor", "_tensor"):
            tensor = getattr(tensor, inner, tensor)
        if tensor.device.type != self.device or not self._looks:
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None:
            if kind:
                known[1].kind = kind
            return known[1]
        size = round_up(storage.nbytes(), GPU_ROUNDING)
        if not size:
            return None
        last = int(tensor.shape[-1]) if tensor.dim() else 0
        return self._begin(storage, size, self._name(made_by), last, kind or self._kind)

    def _begin(self, storage: Any, size: int, name: str, last: int, kind: str) -> Block:
        key, block = storage._cdata, Block(size, name, self.modules.current(), last, kind)

        def end(_: Any) -> None:
            self._end(key, block)

        reference = weakref.ref(storage, end)
        with self._lock:
            self._alive[key] = (reference, block)
            self.ledger.born(block)
        return block

    @contextmanager
    def naming(self, kind: str) -> Iterator[None]:
        """What is allocated while the block runs is of this kind."""
        was, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = was

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """What is made while the block runs, no step would make."""
        was, self._looks = self._looks, False
        try:
            yield
        finally:
            self._looks = was

    @contextmanager
    def watching_resizes(self) -> Iterator[None]:
        """Follow ``UntypedStorage.resize_`` while the block runs."""
        plain = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            known = self._alive.get(storage._cdata)
            kind = self._kind or (known[1].kind if known is not None else "")
            ours = known is not None or storage._cdata in self._emptied or storage.device.type == self.device
            if known is not None:
                self._end(storage._cdata, known[1])
            done = plain(storage, size)
            if size and ours:
                self._emptied.pop(storage._cdata, None)
                self._begin(storage, round_up(size, GPU_ROUNDING), "resize_", 0, kind)
            elif ours:
                self._remember(storage)
            return done

        with mock.patch.object(torch.UntypedStorage, "resize_", resize):
            yield

    def _remember(self, storage: Any) -> None:
        """An empty storage is still ours: a fake one does not say which device it is of."""
        key = storage._cdata
        self._emptied[key] = weakref.ref(storage, lambda _: self._emptied.pop(key, None))

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return known is not None and known[1].kind in WEIGHTS

    def mark(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Say what tensors are, whether they were seen or not."""
        for tensor in tensors:
            self.see(tensor, "", kind)

    def _end(self, key: int, block: Block) -> None:
        """A storage that was resized and then dies has ended before."""
        with self._lock:
            known = self._alive.get(key)
            if known is not None and known[1] is block:
                del self._alive[key]
                self.ledger.died(block)

    @staticmethod
    def _name(made_by: Any) -> str:
        packet = getattr(made_by, "_overloadpacket", None)
        return packet.__name__ if packet is not None else str(made_by)


class Modules:
    """Which module runs: in forward by hooks; in backward by the number that autograd gave to the node in forward."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._starts: list[int] = []
        self._owners: list[str] = []

    @contextmanager
    def watching(self, models: Mapping[str, torch.nn.Module]) -> Iterator[None]:
        """Follow the modules of these models while the block runs."""
        for prefix, model in models.items():
            for name, module in model.named_modules():
                self._names[id(module)] = f"{prefix}{name}"
        handles = [
            torch.nn.modules.module.register_module_forward_pre_hook(self._enter),
            torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def current(self) -> str:
        """The innermost module that runs, or whose forward made the node that autograd runs."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None or not self._starts:
            return ""
        index = bisect_right(self._starts, node._sequence_nr()) - 1
        return self._owners[index] if index >= 0 else ""

    def new_pass(self) -> None:
        """Forget the nodes of graphs that are gone."""
        self._starts.clear()
        self._owners.clear()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        self._stack.append(name if name is not None else self._stack[-1] if self._stack else "")
        self._note()

    def _leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._note()

    def _note(self) -> None:
        """From this number on, nodes belong to the innermost module: only where numbers rise, as in one thread."""
        number = torch.autograd._get_sequence_nr()
        if not self._starts or number >= self._starts[-1]:
            self._starts.append(number)
            self._owners.append(self._stack[-1] if self._stack else "")
