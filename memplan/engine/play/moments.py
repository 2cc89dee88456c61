"""What is alive at the moments of a play: when something begins, and when most is until something else does."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from memplan.engine.play.tape import PlayTape

Label = tuple[str, str]
"""Category, and what it is."""
Things = Mapping[Label, int]
NO_THINGS: Things = MappingProxyType({})
WEIGHTS: Label = ("gradients", "weight gradients outside the layers")
"""Rows of the passes, until a reduction takes them."""


class Key(NamedTuple):
    """A moment: of which micro-step and pass, what begins there, and at which layer."""

    micro_step: int
    name: str
    what: str
    place: int = 0


class Moment(NamedTuple):
    """What is there when something begins, and when most is until something else does."""

    inside: int = 0
    made: int = 0
    """Of it gradients of weights outside the layers."""
    things: Things = NO_THINGS
    most: int = 0
    most_made: int = 0
    """The most of these gradients meanwhile."""
    most_things: Things = NO_THINGS
    """When most is there beside them, while they are."""


def moments(tape: PlayTape, notes: list[tuple[int, Key]], start: int) -> dict[Key, Moment]:
    """Those of the events from ``start`` on."""
    found: dict[Key, Moment] = {}
    events, tags, there = tape.events, tape.tags, dict[Label, int]()
    live = made = at = 0
    ends = [*(index for index, _ in notes[1:]), len(events)]
    for (index, key), end in zip(notes, ends, strict=True):
        for number, size in events[at:index]:
            live += size
            _add(there, tags[number][:2], size)
        made = there.get(WEIGHTS, 0)
        inside, things, most, beside, beside_things = live, there.copy(), live, (made, live), None
        for number, size in events[index:end]:
            if beside_things is None and size < 0 and beside[1] == live:
                beside_things = there.copy()
            live += size
            _add(there, tags[number][:2], size)
            most = max(most, live)
            made = there.get(WEIGHTS, 0)
            if (made, live) > beside:
                beside, beside_things = (made, live), None
        at = end
        if index >= start:
            beside_things = there.copy() if beside_things is None else beside_things
            found[key] = Moment(inside, things.get(WEIGHTS, 0), things, most, beside[0], beside_things)
    return found


def _add(things: dict[Label, int], label: Label, size: int) -> None:
    size += things.get(label, 0)
    if size:
        things[label] = size
    else:
        del things[label]
