"""Proves what a real device does in backward that a dispatch mode, and so a trace, does not: it adds in place."""

from collections.abc import Callable

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
