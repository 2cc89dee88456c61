"""How wide text is on a screen: a Chinese character takes two columns, and lines may break beside it."""

import re
from unicodedata import combining, east_asian_width

_WIDE = "\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
_CLOSING = "，。；：、！？）》」』”’…％%,.;:!?)"
"""No line begins with one of these."""
_OPENING = "（《「『“‘"
"""No line ends with one of these."""
_UNITS = rf"[{_OPENING}]*(?:[{_WIDE}]|[^{_WIDE}{_OPENING}]+)[{_CLOSING}]*|[{_OPENING}]+"


def cells(text: str) -> int:
    """Columns that a line takes."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "WF" else 0 if combining(char) else 1 for char in text)


def left(text: str, width: int) -> str:
    """The text at the left of so many columns."""
    return text + " " * (width - cells(text))


def right(text: str, width: int) -> str:
    """The text at the right of so many columns."""
    return " " * (width - cells(text)) + text


def units(word: str) -> list[str]:
    """What a word without spaces may be broken into: Chinese characters one by one, all else whole."""
    return [word] if word.isascii() else re.findall(_UNITS, word)
