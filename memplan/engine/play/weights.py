"""Parameters that outlive a pass: each the same object, with one place in every graph, wherever it is used. Those that
several layers apply have one cast, and one gradient that is whole when the first of them has run back."""

from functools import lru_cache
from typing import NamedTuple

from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.play.notes import InTower
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Accumulate, Param, Tensor
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec

Name = tuple[object, str, str, int, int]
"""The layer, the part of a tower, or what is outside of both; the point within it, for a mixer and a feed-forward may
have modules of one name; the module's name, and its elements; which of those that a list of modules has."""
OUTSIDE = "outside the layers"


class Block(NamedTuple):
    """Weights that several layers apply."""

    number: int
    names: frozenset[str]


NO_BLOCK = Block(-1, frozenset())


@lru_cache(maxsize=64)
def blocks_of(spec: ModelSpec) -> list[Block]:
    """That of each layer."""
    found = []
    for run in spec.runs:
        names = applied(run.layer)
        found += [Block(number, names) for number in run.blocks] if names else [NO_BLOCK] * run.count
    return found


@lru_cache(maxsize=64)
def listed(spec: ModelSpec) -> frozenset[str]:
    """Names that modules of a list have in common, or of one part (``intermediate.dense``, ``output.dense``)."""
    layers = [[linear.name for part in run.layer.parts for linear in part.linears] for run in spec.runs]
    layers += [[norm.name for norm in run.layer.norms] for run in spec.runs]
    found = [[linear.name for part in spec.extra for linear in part.linears], *layers]
    if spec.tower is not None:
        ends = spec.tower.after, spec.tower.projector
        found.append([linear.name for part in ends for linear in part.linears])
        found.append([norm.name for part in ends for norm in part.norms])
    return frozenset(name for names in found for name in names if names.count(name) > 1)


class Weights:
    """The parameters of one model, made when they are first used."""

    def __init__(self, tape: PlayTape, tied: dict[str, str], lists: frozenset[str] = frozenset()) -> None:
        self.tape, self.tied, self.lists = tape, tied, lists
        self.used: dict[str, int] = {}
        """Of modules in lists, how many the part that runs has come to."""
        self.params: dict[Name, Param] = {}
        self.remembered: dict[object, Tensor | None] = {}
        """What a module of each layer names until it runs again."""

    def get(self, scope: object, name: str, elements: int, itemsize: int, trained: bool) -> Param:
        """The parameter of this name; a tied one is that of the module it is tied to."""
        inside = scope != OUTSIDE
        own = name if inside else self.tied.get(name, name)
        count = self.used.get(name, 0)
        key = scope, self.tape.point if inside else "", own, elements, count
        if self.lists and name.split(".", maxsplit=1)[0] in self.lists:
            self.used[name] = count + 1
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

    __slots__ = ("_scope", "block", "weights")

    def __init__(self, weights: Weights, mode: Mode, rows: int, length: int) -> None:
        super().__init__(weights.tape, mode, rows, length)
        self.weights = weights
        self._scope: object = OUTSIDE
        self.block = NO_BLOCK

    @property
    def scope(self) -> object:
        """The layer that runs, or the part outside."""
        return self._scope

    @scope.setter
    def scope(self, scope: object) -> None:
        self._scope = scope
        self.weights.used.clear()

    def enter(self, number: int) -> None:
        """The parameters are those of this part of a tower."""
        self.scope = InTower(number)

    def part(self, rows: int, length: int) -> Pass:
        """A pass over other tokens through the same modules."""
        other = ModelPass(self.weights, self.mode, rows, length)
        other._scope, other.block = self.scope, self.block
        return other

    def remember(self, state: Tensor | None) -> None:
        """Of the model, whichever pass runs."""
        self.weights.remembered[self.scope] = state

    def _weight(self, name: str, elements: int, itemsize: int, trained: bool) -> Param:
        if self.params is not None and name in self.params:
            return self.params[name]
        scope = self.block if name in self.block.names else self.scope
        found = self.weights.get(scope, name, elements, itemsize, trained)
        if self.params is not None:
            self.params[name] = found
        return found


SUFFIXES = (".bias", ".lora_A", ".lora_B", ".magnitude")


@lru_cache(maxsize=256)
def applied(layer: Layer) -> frozenset[str]:
    """The weights of a layer that others apply too."""
    names: frozenset[str] = getattr(layer, "shared_names", frozenset())
    suffixes = SUFFIXES[:1] if layer.own_modules else SUFFIXES
    return names | {name + suffix for name in names for suffix in suffixes}
