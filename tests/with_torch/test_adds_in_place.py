"""Proves what a real device does in backward that a dispatch mode, and so a trace, does not: it adds in place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

SOURCE = torch.randn(8, 100, requires_grad=True)
LABELS = torch.randint(0, 100, (8, 1))


def gathered() -> torch.Tensor:
    """One column of each row."""
    return SOURCE.gather(1, LABELS).sum()


def indexed() -> torch.Tensor:
    """Some rows."""
    return SOURCE[torch.arange(5)].sum()


def shared() -> torch.Tensor:
    """One tensor with three consumers."""
    middle = SOURCE * 2
    return torch.cat((middle.exp(), middle.sin(), middle.cos())).sum()


@pytest.mark.parametrize(
    ("forward", "in_place", "out_of_place"),
    [
        (gathered, "aten::scatter_add_", "aten::scatter_add"),
        (indexed, "aten::_index_put_impl_", "aten::index_put"),
        (shared, "aten::add_", "aten::add"),
    ],
    ids=["gather", "index", "several consumers"],
)
def test_a_real_device_scatters_and_adds_in_place(
    forward: Callable[[], torch.Tensor], in_place: str, out_of_place: str
) -> None:
    loss = forward()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        loss.backward()
    names = {event.key for event in profiled.key_averages()}
    assert in_place in names
    assert out_of_place not in names


HELD = dict[str, torch.Tensor]()


class Holding(torch.autograd.Function):
    """Hands its gradient on, and somebody holds it."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        """Another tensor."""
        return x.clone()

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> torch.Tensor:
        """The very gradient that came."""
        HELD["gradient"] = grads[0]
        return grads[0]


@pytest.mark.parametrize(("held_first", "in_place"), [(True, False), (False, True)])
def test_only_the_gradient_that_came_first_takes_the_sum(held_first: bool, in_place: bool) -> None:
    SOURCE.grad = None  # into which a second one would be added
    middle = SOURCE * 2
    first, second = (Holding.apply, torch.sin) if not held_first else (torch.sin, Holding.apply)
    ends = first(middle), second(middle)  # the last made runs back first
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        (ends[0] + ends[1]).sum().backward()
    names = {event.key for event in profiled.key_averages()}
    assert ("aten::add_" in names) == in_place
    HELD.clear()
