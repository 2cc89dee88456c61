"""What ZeRO-3 has gathered over the passes of a step, stretch by stretch, and of an evaluation after it."""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import NamedTuple

from memplan.engine.parallel.zero.coordinator import Coordinator, Limits, Module

Read = tuple[bool, tuple[str, ...]]
"""Whether a module runs back, and the names of its parameters."""


class Stretch(NamedTuple):
    """Modules that run one after another, and the name under which the most that is gathered meanwhile is asked for."""

    name: str
    modules: tuple[Module, ...]
    reads: tuple[Read, ...] = ()
    """Of each of them."""


class Step(NamedTuple):
    """A module runs: elements at most from the one before until it has what it needs, while it runs, and then."""

    read: Read
    fetching: int
    using: int
    released: int


class Gathered(NamedTuple):
    """Elements: the most while a stretch runs, and what is left when it has run."""

    most: int
    left: int
    first: int = 0
    """When it begins."""
    steps: tuple[Step, ...] = ()
    """Of the modules with parameters, where the stretch names them."""

    def joined(self, other: Gathered) -> Gathered:
        """The larger figures of two."""
        steps = (
            Step(one.read, *map(max, one[1:], same[1:])) for one, same in zip(self.steps, other.steps, strict=True)
        )
        most, left, first = map(max, self[:3], other[:3])
        return Gathered(most, left, first, tuple(steps))


class Order(tuple[Stretch, ...]):
    """The recorded order. Compared as an object: to hash its hundreds of modules would cost more than what is asked."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @cached_property
    def sizes(self) -> frozenset[int]:
        """Elements of the parameters."""
        return frozenset(size for stretch in self for module in stretch.modules for _, size in module.parameters)


Half = tuple[str, bool, Order]
"""Of a pass of this name, whether it is its forward, and what runs then."""
Figures = dict[tuple[str, str], Gathered]
"""By the names of pass and stretch."""


def gathered(halves: tuple[Half, ...], after: tuple[Half, ...], limits: Limits) -> Figures:
    """Elements that are gathered in a step whose micro-steps are of these halves of passes, and in the batches of an
    evaluation ``after`` it. Ranks matter by padding alone: numbers that divide all parameters are played once."""
    whole = not any(size % limits.ranks for _, _, order in (*halves, *after) for size in order.sizes)
    return _played(halves, after, limits._replace(ranks=1) if whole else limits)


@lru_cache(maxsize=128)
def _played(halves: tuple[Half, ...], after: tuple[Half, ...], limits: Limits) -> Figures:
    """As it is once all micro-steps are alike: the third at the latest. Of an evaluation the first batch finds nothing
    whole, and the others what the one before has left."""
    coordinator, figures = Coordinator(limits), Figures()
    if sum(begins for _, begins, _ in halves) == 1:
        coordinator.trace = [module for *_, order in halves for stretch in order for module in stretch.modules]
        coordinator.learn()
    for _ in range(1 if coordinator.knows else 3):
        figures = _run(coordinator, halves)
    coordinator.end()
    batches = [_run(coordinator, after) for _ in range(2 if after else 0)]
    return {**figures, **{key: found.joined(batch[key]) for batch in batches[1:] for key, found in batches[0].items()}}


def _run(coordinator: Coordinator, halves: tuple[Half, ...]) -> Figures:
    """One micro-step."""
    figures = Figures()
    for name, begins, order in halves:
        if begins:
            coordinator.begin()
        for stretch in order:
            figures[name, stretch.name] = _through(coordinator, stretch)
    return figures


def _through(coordinator: Coordinator, stretch: Stretch) -> Gathered:
    coordinator.most = most = first = coordinator.size
    steps = list[Step]()
    for module, read in zip_longest(stretch.modules, stretch.reads):
        coordinator.fetch(module)
        most, using = max(most, coordinator.most), coordinator.size
        coordinator.release(module)
        if read and read[1]:
            steps.append(Step(read, coordinator.most, using, coordinator.size))
            coordinator.most = coordinator.size
    return Gathered(most, coordinator.size, first, tuple(steps))
