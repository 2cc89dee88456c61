"""The optimizer on the tape: states made in its first step, and what each step holds for a moment."""

from memplan.engine.optimizer.states import Stepped, is_quantised, orthogonalised, paged_bytes, state_bytes, stepped
from memplan.engine.optimizer.temporaries import PROGRAMS
from memplan.engine.parallel.sharding import held
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

TEMPORARIES = "optimizer_temporaries"


def parts_of(recipe: Recipe, trained: list[Weight]) -> list[Stepped]:
    """What this rank steps on of these weights."""
    holds = held(recipe)
    return [
        stepped(recipe, weight, holds.stepped_itemsize(recipe, weight), holds.optimizer_shards) for weight in trained
    ]


class Optimizer:
    """One optimizer over what this rank steps on, in the model's order."""

    def __init__(self, recipe: Recipe, tape: Tape, tensors: list[Stepped]) -> None:
        self.recipe, self.tape, self.stepped = recipe, tape, tensors
        self.states: list[Tensor] = []

    def step(self) -> None:
        """States, if there are none yet, and the temporaries of the step."""
        if not self.states:
            self.make_states()
        row, implementation = self.recipe.optimizer.row, self.recipe.optimizer.implementation
        if implementation == "foreach":
            self._foreach(self.stepped)
        elif implementation == "loop":
            self._loop()
            if row.rule == "muon":
                self._foreach([tensor for tensor in self.stepped if not orthogonalised(tensor)])

    def _new(self, size: int, label: str, category: str) -> Tensor:
        return self.tape.new(Dim("n", size), 1, label, category=category)

    def make_states(self) -> None:
        """As ``state_bytes`` counts them; what is paged is not torch's."""
        row, settings = self.recipe.optimizer.row, self.recipe.optimizer.settings
        for tensor in self.stepped:
            sizes = state_bytes(self.recipe, tensor)
            paged = sizes[0] if paged_bytes(self.recipe, tensor) else -1
            self.states += [self._new(size, "states", "optimizer_states") for size in sizes if size != paged]
        if row.blocks and any(is_quantised(tensor, row.blocks, settings) for tensor in self.stepped):
            for _ in range(row.per_element):
                self.states.append(self._new(row.blocks.shared_table, "table of codes", "optimizer_states"))

    def _foreach(self, tensors: list[Stepped]) -> None:
        """A buffer for every tensor, none freed before all are there."""
        buffers = [
            self._new(each.elements * each.itemsize, "foreach buffers", TEMPORARIES)
            for _ in range(self.recipe.optimizer.row.foreach_copies)
            for each in tensors
        ]
        del buffers

    def _loop(self) -> None:
        """The variables of the optimizer's program, tensor by tensor; what is projected comes last."""
        program, settings = PROGRAMS[self.recipe.optimizer.row.step], self.recipe.optimizer.settings
        variables = dict[str, Tensor]()
        for tensor in sorted(self.stepped, key=lambda each: each.projected):
            for name, size in program(tensor, settings):
                if size:
                    variables[name] = self._new(size, name, TEMPORARIES)
                else:
                    variables.pop(name, None)
