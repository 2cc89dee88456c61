"""Whole training steps, played from the start: weights, micro-steps, the optimizer.

The first step decides where things lie: weights are there first, the optimizer's states come in its first step,
between gradients that are still alive. From the second step on all steps are alike.
"""

from __future__ import annotations

from memplan.engine.micro_step import stages
from memplan.engine.optimizer.states import Stepped, paged_bytes, state_bytes, stepped
from memplan.engine.optimizer.temporaries import PROGRAMS
from memplan.engine.parallel.sharding import held
from memplan.engine.passes import PassPlan
from memplan.engine.play.model import PassRun, play_back
from memplan.engine.play.resident import Resident
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.weights import Weights
from memplan.engine.rows.model import keeps_masks, mask_bytes
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


class Player:
    """Plays steps of one recipe on one tape."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.tape = recipe, PlayTape()
        self.tape.in_place = recipe.hardware.gpu is not None
        self.resident = Resident(recipe, self.tape)
        self.weights: dict[str, Weights] = {}
        self.states: list[Tensor] = []

    def weights_of(self, plan: PassPlan) -> Weights:
        """The parameters of a pass: the policy's, or those of a model beside it."""
        own = "reference" if plan.name == "reference" and self.recipe.others.reference == "resident" else ""
        if own not in self.weights:
            adapter, head = None if own else self.recipe.adapter, plan.spec.head.name
            copied = adapter is not None and not adapter.saved.isdisjoint(("embed_tokens", head))
            self.weights[own] = Weights(
                self.tape, {head: "embed_tokens"} if plan.spec.head_is_tied and not copied else {}
            )
        return self.weights[own]

    def new(self, elements: int, itemsize: int, label: str, category: str) -> Tensor:
        """A tensor outside the passes."""
        return self.tape.new(Dim("n", elements), itemsize, label, category=category)

    def step(self) -> None:
        """Micro-steps (two stand for many: all but the first are alike), the optimizer, zero_grad."""
        for _ in range(min(self.recipe.batch.accumulation, 2)):
            self._micro_step()
        self.tape.mark("step.optimizer")
        if not self.states:
            self.states = [state for weight in self.resident.trained for state in self._states_of(weight)]
        self._optimizer_temporaries()
        self.tape.stored.clear()

    def _micro_step(self) -> None:
        recipe = self.recipe
        batch = self._batch()
        runs: dict[int, PassRun] = {}
        joined = recipe.method.pairs and recipe.loss.pair_pass == "two-forward"
        together = joined and not recipe.loss.code.leaves_autocast
        passes = stages(recipe)
        waiting: list[PassRun] = []
        for traced, half in passes:
            name = traced.plan.name
            self.tape.mark(f"{name}.{half}")
            if half == "forward":
                masks = (*mask_bytes(recipe, traced), traced.plan.style == "plain" and keeps_masks(traced))
                run = PassRun(self.weights_of(traced.plan), traced.plan, masks)
                run.forward(leaves=not (together and name == "chosen"))
                if traced.plan.style != "no-grad":
                    runs[id(traced)] = run
                del run
                continue
            waiting.append(runs.pop(id(traced)))
            if joined and runs:
                continue
            play_back(self.tape, waiting[::-1])
            waiting.clear()
        del batch

    def _batch(self) -> list[Tensor]:
        recipe = self.recipe
        tokens = recipe.rows * recipe.batch.sequence_length
        count = 3 if recipe.trainer.name != "pytorch" or recipe.batch.padded else 1
        batch = [self.new(tokens, 8, "token ids, labels, mask", "batch") for _ in range(count)]
        return [*batch, self.new(recipe.image_bytes * recipe.rows, 1, "pixels", "batch")]

    def _stepped(self, weight: Weight) -> Stepped:
        itemsize = held(self.recipe).stepped_itemsize(self.recipe, weight)
        return stepped(self.recipe, weight, itemsize, 1)

    def _states_of(self, weight: Weight) -> list[Tensor]:
        """As ``state_bytes`` counts them; what is paged is not torch's."""
        tensor = self._stepped(weight)
        sizes = state_bytes(self.recipe, tensor)
        if paged_bytes(self.recipe, tensor):
            whole = sizes[0]
            sizes = [size for size in sizes if size != whole]
        return [self.new(size, 1, "optimizer states", "optimizer_states") for size in sizes]

    def _optimizer_temporaries(self) -> None:
        """foreach: a buffer for every tensor, none freed before all are there; loop: the variables of the optimizer's
        program, tensor by tensor.
        """
        recipe, optimizer = self.recipe, self.recipe.optimizer.row
        trained, kind = self.resident.trained, "optimizer_temporaries"
        if recipe.optimizer.implementation == "foreach":
            sizes = [self._stepped(weight) for weight in trained]
            buffers = [
                self.new(each.elements, each.itemsize, "foreach buffers", kind)
                for _ in range(optimizer.foreach_copies)
                for each in sizes
            ]
            del buffers
        elif recipe.optimizer.implementation == "loop":
            program, variables = PROGRAMS[optimizer.step], dict[str, Tensor]()
            for weight in trained:
                for name, size in program(self._stepped(weight), recipe.optimizer.settings):
                    if size:
                        variables[name] = self.new(size, 1, name, kind)
                    else:
                        variables.pop(name, None)


def played(recipe: Recipe, steps: int = 2) -> tuple[PlayTape, int]:
    """The tape of so many steps, and where the last begins."""
    player, start = Player(recipe), 0
    for _ in range(steps):
        start = len(player.tape.events)
        player.step()
    return player.tape, start
