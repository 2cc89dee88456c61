"""What a notebook shows of an answer: the page, in a frame; nothing of it is loaded until one asks."""

from collections.abc import Callable
from typing import Any


def shown_as(kind: str) -> Callable[[Any], str]:
    """``_repr_html_`` of an answer to the command ``kind``."""

    def html(self: Any) -> str:
        from memplan.page import shown

        return shown(kind, self)

    return html
