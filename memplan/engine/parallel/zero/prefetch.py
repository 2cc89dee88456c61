"""What ZeRO-3 has gathered over the passes of a step, stretch by stretch, and of an evaluation after it."""

from functools import lru_cache
from typing import NamedTuple

from memplan.engine.parallel.zero.coordinator import Coordinator, Limits
from memplan.engine.parallel.zero.module_order import Half, Visits
from memplan.engine.play.notes import DONE

Step = tuple[int, int]
"""At a note, elements: the most until a module has what it needs, and then."""


class Gathered(NamedTuple):
    """Elements: the most while a stretch runs, what is left when it has run, what was there when it began, and at each
    of its notes."""

    most: int
    left: int
    first: int
    steps: tuple[Step, ...] = ()

    def joined(self, other: "Gathered") -> "Gathered":
        """The larger figures of two."""
        steps = ((max(a, c), max(b, d)) for (a, b), (c, d) in zip(self.steps, other.steps, strict=True))
        most, left, first = map(max, self[:3], other[:3])
        return Gathered(most, left, first, tuple(steps))


class Pass(NamedTuple):
    """From the begin of a forward to that of the next one: modules, and the names of passes with the halves of them
    that run then."""

    visits: Visits
    halves: tuple[tuple[str, Half], ...]


Figures = dict[tuple[str, str], Gathered]
"""By the names of pass and stretch."""


def gathered(passes: tuple[Pass, ...], after: tuple[Pass, ...], limits: Limits) -> Figures:
    """Elements that are gathered in a step whose micro-steps are of these passes, and in the batches of an evaluation
    ``after`` it. Ranks matter by padding alone: numbers that divide all parameters are played once."""
    whole = not any(size % limits.ranks for one in (*passes, *after) for size in one.visits.sizes)
    return _played(passes, after, limits._replace(ranks=1) if whole else limits)


@lru_cache(maxsize=128)
def _played(passes: tuple[Pass, ...], after: tuple[Pass, ...], limits: Limits) -> Figures:
    """As it is once all micro-steps are alike, or every other: the third and the fourth. Of an evaluation the first
    batch finds nothing whole, and the others what the one before has left."""
    coordinator, found = Coordinator(limits), list[Figures]()
    if len(passes) == 1:
        coordinator.trace = [visit.module for visit in passes[0].visits]
        coordinator.learn()
    for _ in range(1 if coordinator.knows else 4):
        before = coordinator.knows, coordinator.records
        found.append(_run(coordinator, passes))
        if found[-2:-1] == found[-1:] and before == (coordinator.knows, coordinator.records):
            break
    coordinator.end()
    batches = [_run(coordinator, after) for _ in range(2 if after else 0)]
    return _joined(found[-2:]) | (_joined(batches) if batches else {})


def _joined(both: list[Figures]) -> Figures:
    first, last = both[0], both[-1]
    return last if first == last else {key: figure.joined(last[key]) for key, figure in first.items()}


def _run(coordinator: Coordinator, passes: tuple[Pass, ...]) -> Figures:
    """One micro-step."""
    figures = Figures()
    for one in passes:
        coordinator.begins(one.visits)
        for name, half in one.halves:
            for stretch in half:
                coordinator.most = most = first = coordinator.size
                steps = list[Step]()
                for note in stretch.notes:
                    coordinator.most = coordinator.size
                    if note.what == DONE:
                        coordinator.done()
                    elif note.what:
                        coordinator.used()
                    most = max(most, coordinator.most)
                    steps.append((coordinator.most, coordinator.size))
                if stretch is one.halves[-1][1][-1] and len(one.halves) > 1:
                    coordinator.ran_back()
                figures[name, stretch.name] = Gathered(most, coordinator.size, first, tuple(steps))
    return figures
