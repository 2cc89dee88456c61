"""The memory of a candidate, with what costs no time: PyTorch's expandable segments, and flash attention for SDPA.

Neither changes the speed, and both only ever save memory (tests/test_plan_order.py). So a candidate that does not fit
with both does not fit; one that does is tried with fewer of them first.
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.plan.candidates import Candidate
from memplan.plan.degrees import Keys
from memplan.reporting import Peak, peak
from memplan.spec.recipe import Recipe

EXPANDABLE: Keys = {"allocator": {"expandable_segments": True}}
FLASH: Keys = {"attention": "flash"}


class Priced(NamedTuple):
    """A candidate's memory, and what it was given to fit."""

    figures: Peak
    keys: Keys
    """Beside the candidate's own."""
    recipe: Recipe

    @property
    def fits(self) -> bool:
        """On the card with its margin, and in the node's memory."""
        return self.figures.verdict is not None and self.figures.verdict.fits == "yes"

    @property
    def bytes(self) -> int:
        """What has to fit: the high figure of the device's meter."""
        return self.figures.device.high

    @property
    def short(self) -> int:
        """Bytes that are missing on the card."""
        return self.figures.verdict.missing_bytes if self.figures.verdict else 0


class Pricing:
    """Prices candidates of one job. ``free``: what may be changed at no cost, as the user fixed neither."""

    def __init__(self, allocator: bool, attention: bool) -> None:
        self.allocator, self.attention = allocator, attention

    def variants(self, recipe: Recipe) -> list[tuple[Keys, Recipe]]:
        """The recipe as it is, then with more and more that costs nothing."""
        found: list[tuple[Keys, Recipe]] = [({}, recipe)]
        if self.allocator and not recipe.expandable_segments:
            found += [({**keys, **EXPANDABLE}, each._replace(expandable_segments=True)) for keys, each in found]
        if self.attention and recipe.attention == "sdpa" and not recipe.in_megatron:
            found += [({**keys, **FLASH}, each._replace(attention="flash")) for keys, each in found]
        return sorted(found, key=lambda pair: len(pair[0]))

    def __call__(self, candidate: Candidate) -> Priced:
        """The first variant that fits; the last one where none does."""
        variants = self.variants(candidate.recipe)
        keys, recipe = variants[-1]
        least = Priced(peak(recipe), keys, recipe)
        if not least.fits:
            return least
        for keys, recipe in variants[:-1]:
            priced = Priced(peak(recipe), keys, recipe)
            if priced.fits:
                return priced
        return least
