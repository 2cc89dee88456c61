"""What the phases' rows are made from, and what several of them ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from memplan.engine.critic import critic_weights
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.sharding import held
from memplan.engine.tensors import Weight, model_weights
from memplan.spec.recipe import Recipe

NODE = "node"
"""Once in the memory of a node."""


class PhaseParts:
    """The parts of one phase; ``parts_of`` gives it instants."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @cached_property
    def weights(self) -> list[Weight]:
        """The policy's tensors."""
        adapter = self.recipe.adapter
        return model_weights(self.recipe.model, adapter is None, adapter)

    @cached_property
    def critic(self) -> list[Weight]:
        """Those of a critic that trains with it."""
        return critic_weights(self.recipe)

    @cached_property
    def schedule(self) -> tuple[str, ...]:
        """The instants of the phase."""
        raise NotImplementedError


def parts_of(instants: tuple[str, ...]) -> type[PhaseParts]:
    """The parts of a phase that has these instants."""

    class _Parts(PhaseParts):
        weights, critic = PhaseParts.__dict__["weights"], PhaseParts.__dict__["critic"]

        @cached_property
        def schedule(self) -> tuple[str, ...]:
            """The instants of the phase."""
            return instants if self.recipe.moments else ()  # a function that is remembered reads something

    return _Parts


class Chosen:
    """A ledger that other rows' functions enter into: ``born`` says at which instant of the phase a row of a category
    and place is born, or nothing where the phase has it not."""

    detailed = False

    def __init__(self, ledger: Ledger, born: Callable[[str, str], str]) -> None:
        self._ledger, self._born = ledger, born

    @property
    def schedule(self) -> tuple[str, ...]:
        """The phase's instants."""
        return self._ledger.schedule

    def add(self, name: str, category: str, size: int, born: str = "", dies: str = "", **rest: Any) -> None:
        """Enter the row, where the phase has it."""
        at = self._born(category, str(rest.get("place", "gpu")))
        if at:
            self._ledger.add(name, category, size, at, **rest)


def stored_itemsize(recipe: Recipe, weight: Weight) -> int:
    """Bytes of an element of a weight as training keeps it; a packed one's as it was before."""
    if recipe.quantised is not None and not weight.trained and weight.quantised_by(recipe.quantised):
        return recipe.quantised.original_itemsize
    return held(recipe).stored_itemsize(recipe, weight)


def whole_bytes(recipe: Recipe, weights: Iterable[Weight]) -> int:
    """Bytes of all tensors as one process would keep them whole; quantised ones packed."""
    base, total = recipe.quantised, 0
    for weight in weights:
        if base is not None and not weight.trained and weight.quantised_by(base):
            sizes = base.scheme.tensors(weight.rows, weight.columns).values()
            total += sum(sizes) * weight.stacked * weight.copies
        else:
            total += weight.elements * weight.copies * stored_itemsize(recipe, weight)
    return total


def largest_bytes(recipe: Recipe, weights: Iterable[Weight]) -> int:
    """Bytes of the largest tensor, whole."""
    return max((weight.elements * stored_itemsize(recipe, weight) for weight in weights), default=0)


def units(recipe: Recipe, weights: Iterable[Weight]) -> dict[str, int]:
    """Bytes of FSDP's units, whole, as they are stored: the largest layer, and the root around them; where the model is
    one unit, all of it is the root.

    A layer's tensors come ``copies`` times; runs of equal layers of as many copies are told apart by name.
    """
    layers: dict[tuple[int, str], int] = {}
    runs: list[int] = []
    root = current = 0
    last = -1
    for weight in weights:
        size = weight.elements * stored_itemsize(recipe, weight)
        if weight.unit != "layer" or not recipe.sharding.fsdp.wraps_layers:
            root += size * weight.copies
            continue
        if weight.copies != last or (weight.copies, weight.name) in layers:
            runs.append(current)
            layers, current, last = {}, 0, weight.copies
        layers[weight.copies, weight.name] = size
        current += size
    return {"layer": max([*runs, current]), "root": root}


def experts_bytes(recipe: Recipe, weights: Iterable[Weight], itemsize: int, fused: bool = False) -> tuple[int, int]:
    """(all layers', one layer's) bytes of stacked experts; ``fused``: of gate and up in one tensor alone."""
    stacks = [w for w in weights if w.stacked > 1 and not w.adapter and "experts" in w.name]
    stacks = [w for w in stacks if not fused or "gate_up" in w.name]
    whole = sum(w.elements * w.copies for w in stacks) * itemsize
    return whole, sum({w.name: w.elements for w in stacks}.values()) * itemsize
