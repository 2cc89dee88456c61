"""Parameters that outlive a pass: each the same object, with one place in every graph, wherever it is used."""

from __future__ import annotations

from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Accumulate, Param

Name = tuple[object, str, str, int]
"""The layer, or the part outside the layers; the point within it, for a mixer and a feed-forward may have modules of
one name; the module's name, and its elements."""
OUTSIDE = "outside the layers"


class Weights:
    """The parameters of one model, made when they are first used."""

    def __init__(self, tape: PlayTape, tied: dict[str, str]) -> None:
        self.tape, self.tied = tape, tied
        self.params: dict[Name, Param] = {}

    def get(self, scope: object, name: str, elements: int, itemsize: int, trained: bool) -> Param:
        """The parameter of this name; a tied one is that of the module it is tied to."""
        inside = scope != OUTSIDE
        key = scope, self.tape.point if inside else "", name if inside else self.tied.get(name, name), elements
        found = self.params.get(key)
        if found is None:
            found = self.params[key] = Param(self.tape, name, elements, itemsize, trained)
            self.tape.scopes[found] = scope
        if trained and found.node is None:
            found.node, found.needs_grad = Accumulate(self.tape, found), True
        self.tape.use(found)
        return found


class ModelPass(Pass):
    """A pass whose weights are those of a model."""

    __slots__ = ("scope", "weights")

    def __init__(self, weights: Weights, mode: Mode, rows: int, length: int) -> None:
        super().__init__(weights.tape, mode, rows, length)
        self.weights = weights
        self.scope: object = OUTSIDE

    def part(self, rows: int, length: int) -> Pass:
        """A pass over other tokens through the same modules."""
        other = ModelPass(self.weights, self.mode, rows, length)
        other.scope = self.scope
        return other

    def _weight(self, name: str, elements: int, itemsize: int, trained: bool) -> Param:
        if self.params is not None:
            return super()._weight(name, elements, itemsize, trained)
        return self.weights.get(self.scope, name, elements, itemsize, trained)
