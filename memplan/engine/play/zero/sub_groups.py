"""What stage 3 steps on at once."""

from typing import NamedTuple

from memplan.engine.parallel.zero.flat_groups import Group, sizes_in_order, sub_groups
from memplan.engine.parallel.zero.offload import moved
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


class SubGroup(NamedTuple):
    """Of one rank."""

    parts: tuple[int, ...]
    """Elements of the rank's part of each parameter."""
    away: bool
    """The host steps on it."""

    @property
    def elements(self) -> int:
        """Of all parts."""
        return sum(self.parts)


def sub_groups_of(recipe: Recipe, groups: list[Group]) -> list[SubGroup]:
    """All, in the order in which they are stepped on."""
    found: list[SubGroup] = []
    ranks = recipe.sharding.ranks
    for group in groups:
        sizes = sub_groups(group, ranks, recipe.sharding.deepspeed.sub_group_size)
        parts = iter([ceil_div(elements, ranks) for elements in sizes_in_order(group.weights)])
        for size, away in zip(sizes, moved(recipe, groups, group, sizes), strict=True):
            own, left = list[int](), size
            while left > 0:
                own.append(next(parts))
                left -= own[-1]
            found.append(SubGroup(tuple(own), away))
    return found
