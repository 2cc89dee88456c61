"""Where DeepSpeed's hooks run: the play notes them, and its engine is played when the whole step is known.

A reduction bucket is full after so many elements, wherever in a layer that is, and a coordinator looks ahead over
layers: neither repeats itself as layers do. So the hooks leave notes in the stream of events, which say of which layer
they are once all layers are written (``unfolding.py``), and ``engine.py`` puts in between what DeepSpeed allocates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from memplan.engine.parallel.zero.flat_groups import decays
from memplan.engine.play.notes import BEGUN, ENDED, FIRST, POLICY, RESUMED, TAKEN, noted
from memplan.engine.play.sharding import Sharding
from memplan.engine.tape.graph import Param
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.engine.play.tape import PlayTape


def in_order(tape: PlayTape, params: list[Param], opening: set[str]) -> Iterator[Param]:
    """Embedding, layer by layer, norm and head: the last that came is the first that the model names. ``opening``:
    names of what comes before the layers."""
    scopes = tape.scopes
    outside = [param for param in params if not isinstance(scopes.get(param), int)]
    yield from reversed([param for param in outside if param.name in opening])
    for layer in sorted({scope for param in params if isinstance(scope := scopes.get(param), int)}):
        tape.enter(layer)
        yield from reversed([param for param in params if scopes.get(param) == layer])
    tape.enter(-1)
    yield from reversed([param for param in outside if param.name not in opening])


def opening(weights: list[Weight]) -> set[str]:
    """Names of what a model has before its layers."""
    return {weight.name for weight in weights if weight.unit not in ("layer", "norm", "head")}


class Zero(Sharding):
    """The hooks of one engine."""

    def __init__(self, recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> None:
        self.tape, self.decaying = tape, {weight.name for weight in weights if weight.trained and decays(weight)}
        self.split = recipe.sharding.deepspeed.groups > 1
        self.opening = opening(weights)
        overlaps = recipe.sharding.deepspeed.overlap_comm
        self.at_once, self.begun = recipe.zero_stage > 1 or overlaps, False
        self.late = recipe.zero_stage == 1 and (recipe.accumulates or not overlaps)
        """Gradients stay where they are until the last backward of the step, or until it is over."""

    def took(self, param: Param, scope: object, *, is_new: bool) -> None:
        """``process_gradients``, behind every gradient that comes."""
        if not self.begun:
            self.begun = True
            self.tape.mark(noted(FIRST))
        if self.at_once and self.reduces:
            self._hand_over(param)

    def _hand_over(self, param: Param) -> None:
        """The engine has the gradient, if nothing else holds its memory."""
        mark = noted(TAKEN, self.tape.place_of(param), param.name, param.dim.elements)
        self.tape.mark(mark)
        before = len(self.tape.events)
        del self.tape.stored[param]
        if len(self.tape.events) == before:
            self.tape.marks.pop()
            self.tape.mark(mark + " shared")

    def backward_ends(self) -> None:
        """``reduce_gradients``: what has waited, in the order of the model, group by group; then the epilogue."""
        if not self.reduces:
            self.begun = False
            return
        if not self.at_once:
            stored = list(self.tape.stored)
            groups = [stored]
            if self.split:
                groups = [[each for each in stored if (each.name in self.decaying) is first] for first in (True, False)]
            for group in groups:
                for param in in_order(self.tape, group, self.opening):
                    self._hand_over(param)
        self.begun = False
        self.tape.mark(noted(ENDED))

    def step(self, steps: Callable[[], None]) -> None:
        """The engine's, put in with all else."""


class Gathering(Sharding):
    """Stage 3's hooks on a model beside the policy: its modules are gathered, or it is whole (no ``name``)."""

    def __init__(self, tape: PlayTape, name: str) -> None:
        self.tape, self.name = tape, name

    def begin(self) -> None:
        """Its forward begins: another order of modules."""
        self.tape.mark(noted(BEGUN, name=self.name))

    def end(self) -> None:
        """The head has run, also where the loss is the last that reads it: nothing runs back."""
        self.tape.used()


class Zero3(Zero):
    """Stage 3's hooks on the policy: every use of a parameter is noted too."""

    def __init__(self, recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> None:
        super().__init__(recipe, tape, weights)
        tape.watches = True

    def begin(self) -> None:
        """``_start_of_forward_hook``."""
        self.tape.mark(noted(BEGUN, name=POLICY))

    def end(self) -> None:
        """Nothing runs back of an evaluation, whose loss may be the last that reads the head."""
        if not self.tape.grad_enabled:
            self.tape.used()

    def backward_begins(self) -> None:
        """Its modules run, whatever ran since its forward."""
        self.tape.mark(noted(RESUMED, name=POLICY))
