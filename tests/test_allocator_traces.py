"""Proves that the simulated allocator reserves what a real one did, after every request of 25 real recordings.

``data/allocator_traces.xz``: sizes alone, from snapshots that people left in public repositories, one stream each.
Three lines a recording: its source, the device, whether segments were expandable; segments at the start, as
``size:small:offset/requested/block,…``; then a number for each request in bytes, ``-k`` where the k-th youngest block
that is alive was freed, ``m`` a segment (or pages) from the driver, ``x`` one given back, ``o`` a failure with the
bytes that were free.
"""

import lzma
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from memplan.engine.allocator.recorded import (
    ALLOC,
    FREE,
    OOM,
    RELEASE,
    SEGMENT,
    Action,
    Recording,
    Segment,
    Used,
    replay,
)
from memplan.engine.allocator.settings import Settings

FILE = Path(__file__).parent / "data" / "allocator_traces.xz"


@cache
def lines() -> list[str]:
    return lzma.decompress(FILE.read_bytes()).decode("ascii").splitlines()


def segments(text: str) -> Iterator[Segment]:
    numbers = iter(range(1 << 30))
    for word in text.split():
        size, small, blocks = word.split(":")
        used = [tuple(map(int, block.split("/"))) for block in blocks.split(",") if block]
        yield Segment(int(size), small == "1", tuple(Used(u[0], u[1], u[-1], next(numbers)) for u in used))


def actions(text: str, alive: list[int]) -> Iterator[Action]:
    for number, word in enumerate(text.split(), start=len(alive)):
        if word[0] == "-":
            yield Action(FREE, 0, alive.pop(int(word)))
        elif word[0] in "mx":
            yield Action(SEGMENT if word[0] == "m" else RELEASE, int(word[1:]))
        elif word[0] == "o":
            asked, free = map(int, word[1:].split("/"))
            yield Action(OOM, free, asked)
        else:
            alive.append(number)
            yield Action(ALLOC, int(word), number)


def recording(which: int) -> Recording:
    head, start, text = lines()[3 * which : 3 * which + 3]
    there = list(segments(start))
    alive = [used.number for segment in there for used in segment.used]
    return Recording(there, list(actions(text, alive)), Settings(expandable_segments=head.endswith(" 1")))


@pytest.mark.parametrize("which", range(25))
def test_reserved_is_what_the_real_allocator_had(which: int) -> None:
    seen = list(replay(recording(which)))
    assert [each for each in seen if each.measured != each.reserved] == []


@pytest.mark.slow
def test_none_is_missing() -> None:
    """A recording that was cut short would agree too."""
    assert len(lines()) == 3 * 25
    asked = sum(action.kind == ALLOC for which in range(25) for action in recording(which).actions)
    assert asked == 82_063
