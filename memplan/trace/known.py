"""Fake integers with known values: the grid of patches of each image, and all that is computed from it.

The shapes of a vision tower's forward depend on such numbers. They are computed on the host."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_map

MOST = 1 << 20
"""Elements of a tensor whose values are followed."""
MOST_BOOLEANS = 1 << 27
"""The same, where each is one byte: masks of what is picked out."""
LEAST = 3 * 32 * 32
"""Values of the smallest tile."""
INTEGERS = (torch.int32, torch.int64, torch.bool)
FACTORIES = ("aten::arange", "aten::full", "aten::zeros", "aten::ones", "aten::scalar_tensor")
_item = torch.Tensor.item
_as_list = FakeTensor.tolist


def values(tensor: Any) -> torch.Tensor | None:
    """The values of a fake tensor, where they are known."""
    found: torch.Tensor | None = getattr(tensor, "known_values", None)
    return found


def numbers(data: Any) -> Any:
    """What ``torch.tensor`` is given, each tensor among it as its number: the known one, or some number."""
    if isinstance(data, (list, tuple)):
        return [numbers(each) for each in data]
    if isinstance(data, FakeTensor):
        found = values(data)
        return 1 if found is None else read(found)
    return data


def remember(fake: torch.Tensor, data: Any, make: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Note what a fake tensor was made from."""
    if isinstance(fake, FakeTensor) and fake.dtype in INTEGERS and fake.numel() <= MOST:
        with no_dispatch():
            fake.known_values = make(data, dtype=fake.dtype)
    return fake


def read(known: torch.Tensor) -> int:
    """The one number of a tensor of the host."""
    with no_dispatch():
        return int(_item(known))


def as_list(tensor: Any) -> Any:
    """``tolist`` of a fake tensor."""
    found = values(tensor)
    if found is None:
        return _as_list(tensor)
    with no_dispatch():
        return found.tolist()


def computed(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation on known integers gives, on the host; None for any other. An ``int`` is the number read."""
    if func.namespace != "aten" or mode.in_kernel_invocation:
        return None
    flat, _ = tree_flatten((args, kwargs))
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    if tensors:
        if is_tile_check(func, args):
            with no_dispatch():
                return torch.ones(args[0].shape, dtype=torch.bool)
        if any(values(each) is None for each in tensors):
            _forget(func, args)
            return None
    elif not (func._schema.name in FACTORIES and kwargs.get("dtype") in (None, *INTEGERS) and kwargs.get("device")):
        return None
    if func is torch.ops.aten._local_scalar_dense.default:
        return read(values(tensors[0]))
    real_args, real_kwargs = tree_map(_real, (args, kwargs))
    with no_dispatch(), suppress(NotImplementedError):  # the host counts no integers (histc)
        out = func(*real_args, **real_kwargs)
        return out if func is torch.ops.aten.nonzero.default else _followed(out)
    return None


def _followed(out: Any) -> Any:
    """A result, where it is one of few integers."""
    followed = all(
        each.dtype in INTEGERS and each.numel() <= (MOST_BOOLEANS if each.dtype is torch.bool else MOST)
        for each in _tensors(out)
    )
    return out if followed else None


def is_tile_check(func: Any, args: Any) -> bool:
    """Whether the number of zeros in each tile is compared with that of its values: no tile is empty (Idefics 3)."""
    if func is not torch.ops.aten.ne.Scalar or args[1] < LEAST or values(args[0]) is not None:
        return False
    return args[0].dim() == 1 and args[0].dtype is torch.int64


def _forget(func: Any, args: Any) -> None:
    """What is written over with unknown values is known no longer."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write and values(value) is not None:
            del value.known_values


def noted(out: Any, real: Any) -> Any:
    """The fake result, with its known values where there are any. A view stays one."""
    if real is not None:
        for fake, value in zip(_tensors(out), _tensors(real), strict=True):
            if isinstance(fake, FakeTensor) and fake.shape == value.shape:
                fake.known_values = value
    return out


def faked(mode: FakeTensorMode, real: Any, args: Any, kwargs: Any) -> Any:
    """Fake tensors of the shapes that known values have, where the operation alone cannot tell them."""
    flat, _ = tree_flatten((args, kwargs))
    device = kwargs.get("device") or next(each.device for each in flat if isinstance(each, torch.Tensor))
    return tree_map(lambda each: _faked(mode, each, device) if isinstance(each, torch.Tensor) else each, real)


def _real(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return values(value) if isinstance(value, torch.Tensor) else value


def _tensors(out: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_flatten(out)[0] if isinstance(each, torch.Tensor))


def _faked(mode: FakeTensorMode, real: torch.Tensor, device: Any) -> torch.Tensor:
    place = torch.device(device)
    place = torch.device(place.type, 0) if place.type != "cpu" and place.index is None else place
    with no_dispatch():
        bare = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
    fake = FakeTensor(mode, bare, place)
    fake.known_values = real
    return fake
