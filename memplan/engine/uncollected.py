"""A play makes a hundred thousand small objects that reference counting frees: looking for cycles among them takes as
long as playing does, and finds none that hold anything."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles, if it was on."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
