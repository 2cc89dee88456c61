"""One rank of many that are not there: a process group that only pretends, and streams without a device.

What is collected or reduced keeps its size and has no content, so that nothing is exchanged. Streams are those of the
program: what is freed in it is free, which is what the caching allocator's counters say too."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, device_mesh
from torch.distributed.fsdp import _common_utils, _flat_param, _runtime_utils
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives,
    _fsdp_init,
    _fsdp_param_group,
    _fsdp_state,
    _fully_shard,
)
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from memplan.trace.tracker import Tracker

ASK = (device_mesh, _fsdp_collectives, _fsdp_init, _fsdp_param_group, _fsdp_state)
"""Modules that ask for a device's streams."""
AGAIN = "_get_post_forward_mesh_info"
MESHES: tuple[tuple[Any, str], ...] = (
    (device_mesh.DeviceMesh, "__init__"), (_fsdp_init, AGAIN), (_fully_shard, AGAIN),
)  # fmt: skip
"""What makes meshes, those of weights that are resharded to a number of ranks too."""


class _Event:
    """An event that has happened."""

    def record(self, *_: Any) -> None:
        """Nothing runs that it could follow."""

    wait = synchronize = record


class _Stream:
    """The only stream there is."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Whatever its priority."""

    def record_event(self, *_: Any) -> _Event:
        """An event that has happened."""
        return _Event()

    def wait_stream(self, *_: Any) -> None:
        """Nothing to wait for."""

    wait_event = wait_stream

    def is_capturing(self) -> bool:
        """No graph is captured."""
        return False

    def synchronize(self, *_: Any) -> None:
        """Nothing to wait for."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0


class _Handle:
    """What FSDP2 asks ``torch.cuda`` for."""

    Stream, Event = _Stream, _Event

    def current_stream(self, *_: Any) -> _Stream:
        """The only one."""
        return _Stream()

    def stream(self, _: Any) -> Any:
        """Run in it, as everything does."""
        return nullcontext()

    def current_device(self) -> int:
        """The only one."""
        return 0

    def synchronize(self, *_: Any) -> None:
        """Nothing to wait for."""

    set_device = synchronize
    device_count = is_initialized = is_available = lambda self: 1


def _nothing(*_: Any) -> None:
    """Not a mock, which would remember the tensors that it was called with."""


def _reshard_what_is_left(state: Any) -> None:
    """FSDP1's ``_catch_all_reshard``, which asks by address; the addresses of fake tensors are all 0."""
    handle = state._handle
    if not handle:
        return
    whole, shard = (each.untyped_storage()._cdata for each in (handle.flat_param, handle.flat_param._local_shard))
    if whole != shard or handle._skipped_use_sharded_views:
        _runtime_utils._reshard(state, handle, _runtime_utils._should_free_in_backward(state, handle))


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    """What is waited for is the tensor itself; the operation's fake result would be another one."""
    return tensor


def _is_allocated(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage, which a fake one's address does not say."""
    return bool(tensor.untyped_storage().size() > 0)


def _with_real_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """A mesh is numbers on the host, of which torch asks which are where."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return called


@contextmanager
def fake_world(ranks: int, device: str, rank: int = 0) -> Iterator[None]:
    """Be one rank of so many while the block runs."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        with ExitStack() as stack:
            for maker, name in MESHES:
                if hasattr(maker, name):
                    stack.enter_context(mock.patch.object(maker, name, _with_real_numbers(getattr(maker, name))))
            stack.enter_context(mock.patch.object(_runtime_utils, "_catch_all_reshard", _reshard_what_is_left))
            stack.enter_context(mock.patch.object(_flat_param, "_data_ptr_allocated", _is_allocated))
            stack.enter_context(mock.patch.object(_functional_collectives, "wait_tensor", _waited))
            if device == "cuda":
                for module in (_flat_param, _runtime_utils):  # which stream a block was used on is no size
                    stack.enter_context(mock.patch.object(module, "_no_dispatch_record_stream", _nothing))
                handle = classmethod(lambda cls, device: _Handle())
                stack.enter_context(mock.patch.object(_common_utils._FSDPDeviceHandle, "from_device", handle))
                stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", _Stream))
                for module in ASK:
                    stack.enter_context(mock.patch.object(module, "_get_device_handle", return_value=_Handle()))
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def naming_buffers(tracker: Tracker) -> Iterator[None]:
    """Say what FSDP2 allocates: gathered weights, buffers of reductions, gradients that wait for one.

    Whole tensors by which DTensor finds out shapes are made on no device."""
    group, asks = _fsdp_param_group, "_propagate_tensor_meta_non_cached"
    with ExitStack() as stack:
        shapes = getattr(ShardingPropagator, asks)

        def unseen(*args: Any, **kwargs: Any) -> Any:
            with tracker.looking_away():
                return shapes(*args, **kwargs)

        stack.enter_context(mock.patch.object(ShardingPropagator, asks, unseen))
        for name, kind in (
            ("foreach_all_gather", "gathered_parameters"),
            ("foreach_all_gather_copy_out", "gathered_parameters"),
            ("foreach_reduce", "buffers"),
        ):
            stack.enter_context(mock.patch.object(group, name, _named(tracker, getattr(group, name), kind)))
        yield


def _named(tracker: Tracker, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def named(*args: Any, **kwargs: Any) -> Any:
        if kind == "buffers":
            tracker.mark(args[1], "gradients")
        with tracker.naming(kind):
            return function(*args, **kwargs)

    return named


def already_reduced(_, bucket):  # type: ignore[no-untyped-def]  # DDP wants its own annotations or none
    """DDP's communication hook: a bucket is reduced in place, and here it is done already."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class _Silent:
    """DDP's logger, which would time a device that is not there."""

    def set_runtime_stats_and_log(self) -> None:
        """Nothing to time."""


class _Settled:
    """DDP's reducer, but for one thing: after the first step, ranks agree on an order of the buckets by the content of
    tensors, which fake ones have not. The buckets of the first step stay; in another order they are as large."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def pretend_to_reduce(model: Any) -> Any:
    """DDP whose buckets are reduced already, whatever the other ranks hold."""
    model.register_comm_hook(None, already_reduced)
    model.logger, model.reducer = _Silent(), _Settled(model.reducer)
    return model
