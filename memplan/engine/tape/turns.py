"""A loop of equal turns, of which a few are played: what is alive grows or shrinks by the same from turn to turn, so
that the most is in the first or in the last of them."""

from collections.abc import Iterator

from memplan.engine.tape.tape import Tape

ENDS, NEAR = 2, 4
"""Turns at either end that are heard, and turns beside the one that stands for many: what a turn leaves to the next
ones (a variable, the copies that a stream has not finished) is its own there again."""
PLAYED = 2 * (ENDS + NEAR) + 1
MOST = 4096
"""Turns of which all are played, in about a second; the play of sixteen times as many takes half a minute."""


class TooManyTurns(LookupError):
    """A loop of more turns than are played one by one: the step is not played."""


def played(tape: Tape, count: int) -> int:
    """How many of ``count`` turns are played. Raises TooManyTurns where that is all of more than MOST."""
    if tape.plays_all and count > MOST:
        raise TooManyTurns
    return count if tape.plays_all else min(count, PLAYED)


def turns(tape: Tape, count: int) -> Iterator[int]:
    """The numbers of the turns that are played. The middle one stands for all that are left out: what it allocates, on
    its way back too, is so many times as large, and neither it nor those near it are looked at for a peak.

    Turns may only differ in their number, and share no gradient but through views (``ops.split``)."""
    place, most = tape.place, played(tape, count)
    for number in range(most):
        if most < count and ENDS <= number < most - ENDS:
            tape.quiet, tape.place = 1 + (count - most if number == most // 2 else 0), ("", place[1])
        yield number
        tape.quiet, tape.place = 0, place
