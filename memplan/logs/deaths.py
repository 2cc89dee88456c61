"""How engines and trainers say that memory was not enough, and what each of these sentences means."""

import re
from typing import NamedTuple

from memplan.tables.texts import parts_of, rows_of


class Death(NamedTuple):
    """One way to die."""

    word: str
    pattern: str
    """Groups: ``needed`` and ``there`` (GiB), ``tokens``, ``tried``."""
    instant: str
    why: str
    """With {needed}, {there}, {tokens}, {tried}, where the text says them."""


DEATHS = tuple(Death(word, **rows_of(text)) for word, text in parts_of(__file__).items())
WORDS = tuple(dict.fromkeys(death.word for death in DEATHS))


class Died(NamedTuple):
    """A sentence of this kind in a log."""

    instant: str
    why: str
    line: int
    process: str
    times: int = 1
    start: int = 0
    """At which start of the engine; 0 before any."""


def death_in(text: str, line: int, process: str) -> Died | None:
    """The way to die that a line tells of; None for none."""
    folded = text.lower()
    for death in DEATHS:
        found = re.search(death.pattern, text, re.IGNORECASE) if death.word in folded else None
        if found is not None:
            said = {"needed": "?", "there": "?", "tokens": "?", "tried": "?"}
            said |= {name: value for name, value in found.groupdict().items() if value}
            return Died(death.instant, death.why.format(**said), line, process)
    return None
