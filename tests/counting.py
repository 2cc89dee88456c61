"""How much work something is, as calls of Python's functions: the same on every machine, which seconds are not."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(act: Callable[[], Any]) -> int:
    """Calls that ACT makes, of functions of Python and of C; what one call of C does inside is not counted."""
    made = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        act()
    finally:
        sys.setprofile(before)
    return made
