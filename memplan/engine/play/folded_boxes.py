"""Of a run of equal boxes a few are played: its first and last, which have other neighbours, and one between.

What hooks hold grows with the number of boxes by the same for each that is added. So a play without most of them and
one with another of them tell what it is with all, to the byte (tests/test_boxes.py plays them all)."""

from functools import lru_cache
from itertools import groupby
from typing import TypeVar

from memplan.engine.play.boxes import Question, played
from memplan.engine.play.moments import Key, Moment, Things

T = TypeVar("T")

ENDS = 3
"""Boxes at each end of a run that are played: what is gathered ahead, or freed behind, is two boxes away at most."""


class Moments:
    """The moments of a question, answered by plays of shorter ones where its layers repeat."""

    def __init__(self, question: Question) -> None:
        self.first, self.left_out = _run(question)
        self.found: dict[Key, Moment | None] = {}
        if not self.left_out:
            self.one = self.two = played(question)
            return
        self.one = played(_without(question, self.first, self.left_out))
        self.two = played(_without(question, self.first, self.left_out - 1))

    @property
    def middle(self) -> range:
        """Layers for which one is played."""
        return range(self.first, self.first + self.left_out + 1) if self.left_out else range(0)

    def get(self, key: Key) -> Moment | None:
        """A moment; None where it does not come to it."""
        if key not in self.found:
            self.found[key] = self._get(key)
        return self.found[key]

    def _get(self, key: Key) -> Moment | None:
        middle, place = self.middle, key.place
        if not self.left_out or key.what not in OF_LAYERS or place < self.first:
            return self._more(key, key, self.left_out)
        if place >= middle.stop:
            place -= self.left_out
            return self._more(key._replace(place=place), key._replace(place=place + 1), self.left_out)
        below, above = place - self.first, middle.stop - 1 - place
        key = key._replace(place=self.first)
        found = self._more(key, key._replace(place=self.first + 1), below)
        if found is None or not above:
            return found
        return _sum(found, self.one[key], self.two[key], above)

    def _more(self, one: Key, two: Key, times: int) -> Moment | None:
        found = self.one.get(one)
        return found if found is None or not times else _sum(found, found, self.two[two], times)


@lru_cache(maxsize=512)
def moments_of(question: Question) -> Moments:
    """The same for the same question."""
    return Moments(question)


OF_LAYERS = frozenset({"opens", "ahead", "forward", "backward", "opens-backward", "late-backward"})


def _sum(start: Moment, one: Moment, two: Moment, times: int) -> Moment:
    """``start`` and so many times what the second has more than the first."""
    return Moment(
        start.inside + times * (two.inside - one.inside),
        start.made + times * (two.made - one.made),
        _things(start.things, one.things, two.things, times),
        start.most + times * (two.most - one.most),
        start.most_made + times * (two.most_made - one.most_made),
        _things(start.most_things, one.most_things, two.most_things, times),
    )


def _things(base: Things, less: Things, more: Things, times: int) -> Things:
    if less == more:
        return base
    labels = (*base, *(more.keys() - base))
    return {label: base.get(label, 0) + times * (more.get(label, 0) - less.get(label, 0)) for label in labels}


def _run(question: Question) -> tuple[int, int]:
    """The layer that stands for those behind it in the longest run of equal ones, and how many these are."""
    layers, reference = question.policy.layers, question.reference
    if any(len(half.back) != len(layers) for half in question.halves):
        return 0, 0
    flags = (each for half in question.halves for each in (half.back, half.nested) if each)
    kinds = zip(layers, reference.layers if reference else layers, *flags, strict=True)
    at, best = 0, (0, 0)
    for _, same in groupby(kinds):
        count = len(list(same))
        best = max(best, (count - 2 * ENDS - 1, at + ENDS))
        at += count
    return (best[1], best[0]) if best[0] > 1 else (0, 0)


def _without(question: Question, first: int, left_out: int) -> Question:
    """Without so many layers behind the first of those that are alike."""

    def cut(layers: tuple[T, ...]) -> tuple[T, ...]:
        return layers[:first] + layers[first + left_out :]

    policy, reference = question.policy, question.reference
    return question._replace(
        policy=policy._replace(layers=cut(policy.layers)),
        reference=reference and reference._replace(layers=cut(reference.layers)),
        halves=tuple(half._replace(back=cut(half.back), nested=cut(half.nested)) for half in question.halves),
        before=tuple(half._replace(back=cut(half.back), nested=cut(half.nested)) for half in question.before),
    )
