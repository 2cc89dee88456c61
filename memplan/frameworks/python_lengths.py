"""How long the rows of a program's data are: what its tokenizer cuts at, where no argument of the trainer says it."""

from __future__ import annotations

from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.python_run import Run
from memplan.frameworks.python_values import Unknown


def put_length(run: Run, method: str, draft: Draft) -> None:
    """The longest that the program cuts at, where no argument of the trainer says it; asked for where none is known."""
    asked = any(each.asks == "sequence_length" for each in draft.unread)
    if asked or "sequence_length" in draft.given or "sequence_length" in draft.values:
        return
    cuts = run.cuts()
    found = {value: place for value, place in cuts if isinstance(value, int) and not isinstance(value, bool)}
    if found:
        longest = max(found)
        draft.put("sequence_length", longest, Origin(FILE, f"{found[longest]}: max_length"))
        return
    unknown = next(((value, place) for value, place in cuts if isinstance(value, Unknown)), None)
    what = f"the tokenizer cuts at {unknown[0].text}" if unknown else "nothing in the program says how long its data is"
    draft.ask("sequence_length", str(unknown[1]) if unknown else run.start, what)
