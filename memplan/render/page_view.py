"""A page of an answer: what JSON holds, with the words a page has use for, and the text for who runs no script."""

from typing import Any

from memplan.page import dressed, page
from memplan.render.blocks import View
from memplan.render.instants import moment_words
from memplan.render.text import PIPED_WIDTH, plain


def page_of(kind: str, payload: Any, view: View) -> str:
    """The HTML of what the command ``kind`` found."""
    return page(kind, dressed(payload, moment_words), plain(view(PIPED_WIDTH)))
