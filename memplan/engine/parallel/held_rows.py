"""Rows of what a play holds at the instants of a pass."""

from collections.abc import Iterator, Mapping

from memplan.engine.ledger import ACCUMULATED, Ledger
from memplan.engine.play.moments import NO_THINGS, Things

MOMENT = "buffers", "more for a moment"
Said = Mapping[str, tuple[str, str, str]]
"""By how a name begins: its formula, why it is there, and where that is said."""


def enter_held(ledger: Ledger, held: Mapping[str, Things], said: Said) -> None:
    """A row for each that stays the same from one instant to another; an instant at which nothing is known is as the
    one before."""
    things: Things = NO_THINGS
    sequence = list[Things]()
    for instant in ledger.schedule:
        things = {label: size for label, size in things.items() if label != MOMENT}
        things = held.get(instant, things)
        sequence.append(things)
    for category, name in {label: None for each in sequence for label in each}:
        template, why, source = next(words for begins, words in said.items() if name.startswith(begins))
        for size, born, dies in _spans([each.get((category, name), 0) for each in sequence]):
            lasts = category == "gradients" and born == 0 and dies == len(sequence) - 1
            title = f"{ACCUMULATED}, {name}" if lasts else name
            ledger.add(title, category, size, ledger.schedule[born], ledger.schedule[dies]).formula(
                template, size
            ).since(why, source)


def summing_to(total: int, things: Things) -> Things:
    """The same, with what is beyond it for a moment, or without so much of what came last."""
    beyond, found = total - sum(things.values()), dict(things)
    for label in list(things)[::-1] if beyond < 0 else ():
        less = min(found[label], max(0, -beyond))
        found[label], beyond = found[label] - less, beyond + less
    return found | ({MOMENT: beyond} if beyond > 0 else {})


def _spans(sizes: list[int]) -> Iterator[tuple[int, int, int]]:
    """(bytes, first, last) of what is there for a while: what came last goes first."""
    there, total = list[tuple[int, int]](), 0
    for at, size in enumerate([*sizes, 0]):
        while total > size:
            top, born = there.pop()
            less = min(top, total - size)
            yield less, born, at - 1
            total -= less
            if top > less:
                there.append((top - less, born))
        if size > total:
            there.append((size - total, at))
            total = size
