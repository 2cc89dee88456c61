"""What stands for a character that a terminal's encoding has not: 'x' for '×', '#' for a bar's block, else '?'."""

import codecs

INSTEAD = {
    "×": "x",
    "−": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "→": "->",
    "·": ".",
    "\u00a0": " ",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "│": "|",
    "─": "-",
    "└": "|",
    "◀": "<",
    **dict.fromkeys("█▉▊▋▌", "#"),
    **dict.fromkeys("▍▎▏", ""),
}
HANDLER = "memplan"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """As codecs call it: the replacement, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(INSTEAD.get(char, "?") for char in found), error.end


codecs.register_error(HANDLER, _replaced)
