"""Every allocation and free of whole training steps, in order: what the caching allocator is simulated with.

Steps are played from the start, because the first one decides where things lie: weights are there first, the
optimizer's states come in its first step, between gradients that are still alive. From the second step on all steps
are alike. One GPU; what it does not cover is refused with None.
"""

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.micro_step import stages
from memplan.engine.optimizer.states import Stepped, state_bytes, stepped
from memplan.engine.optimizer.temporaries import PROGRAMS
from memplan.engine.overhead import HANDLES, workspace_bytes
from memplan.engine.rows.model import mask_bytes
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.recording import PassRun, RecordingTape
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight, layer_weights, model_weights
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe

PLAYED = ("elementwise", "factored")
"""Rules of optimizers that are one optimizer, and step on tensors in the model's order."""


def step_events(recipe: Recipe, steps: int = 2) -> StepEvents | None:
    """The events of so many steps; None for several GPUs, 8-bit states, and what else is not played here."""
    if not is_covered(recipe):
        return None
    player = _Player(recipe)
    start = 0
    for _ in range(steps):
        start = len(player.tape.events)
        player.step()
    return StepEvents(tuple(player.tape.events), start)


def is_covered(recipe: Recipe) -> bool:
    """One GPU without DeepSpeed, one trained model, optimizer states of whole elements; accumulation not with two
    forwards."""
    return (
        not recipe.several
        and recipe.zero_stage < 0
        and not recipe.storage.precision.master
        and recipe.optimizer.row.rule in PLAYED
        and recipe.optimizer.row.blocks is None
        and not recipe.fused_backward
        and recipe.quantised is None
        and not recipe.model.is_frozen
        and not recipe.checkpointing.offload
        and not recipe.loss.router.policy
        and recipe.others.critic is None
        and recipe.teacher is None
        and (recipe.batch.accumulation == 1 or recipe.loss.pair_pass != "two-forward")
    )


def tensors_of(spec: ModelSpec, trained: bool, adapter: Adapter | None) -> list[Weight]:
    """Every parameter by itself, in the model's order: layer after layer, not kind after kind."""
    weights = model_weights(spec, trained, adapter)
    before = [weight for weight in weights if weight.unit == "embedding"]
    after = [weight for weight in weights if weight.unit in ("norm", "head")]
    layers = [
        weight
        for run in spec.runs
        for _ in range(run.count)
        for weight in layer_weights(run.layer, 1, trained, adapter)
    ]
    return [*before, *layers, *after]


class _Player:
    """Plays steps of one recipe on one tape."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.tape = recipe, RecordingTape()
        self.tape.in_place = recipe.hardware.gpu is not None
        adapter = recipe.adapter
        weights = tensors_of(recipe.model, adapter is None, adapter)
        self.trained = [weight for weight in weights if weight.trained]
        self.resident = [self._new(weight.elements, self._itemsize(weight)) for weight in weights]
        for model in recipe.others.residents:
            others = tensors_of(model.spec, False, None)
            self.resident += [self._new(weight.elements, model.itemsize) for weight in others]
        if recipe.hardware.gpu is not None:
            self.resident.append(self._new(HANDLES * workspace_bytes(recipe.hardware.gpu), 1))
        self.states: list[Tensor] = []

    def _new(self, elements: int, itemsize: int) -> Tensor:
        return self.tape.new(Dim("n", elements), itemsize, "", category="resident")

    def _itemsize(self, weight: Weight) -> int:
        adapter = self.recipe.adapter
        return adapter.itemsize if weight.adapter and adapter else self.recipe.storage.precision.weights

    def step(self) -> None:
        """Micro-steps (two stand for many: all but the first are alike), the optimizer, zero_grad."""
        for micro_step in range(min(self.recipe.batch.accumulation, 2)):
            self._micro_step(first=micro_step == 0)
        if not self.states:
            self.states = [state for weight in self.trained for state in self._states_of(weight)]
        self._optimizer_temporaries()
        self.tape.gradients.clear()

    def _micro_step(self, first: bool) -> None:
        recipe = self.recipe
        tokens = recipe.rows * recipe.batch.sequence_length
        count = 3 if recipe.trainer.name != "pytorch" or recipe.batch.padded else 1
        batch = [self._new(tokens, 8) for _ in range(count)]
        batch.append(self._new(recipe.image_bytes * recipe.rows, 1))
        runs: dict[int, PassRun] = {}
        kept = not first
        for traced, half in stages(recipe):
            if half == "forward":
                run = PassRun(self.tape, traced.plan, mask_bytes(recipe, traced))
                run.forward()
                if traced.plan.style != "no-grad":
                    runs[id(traced)] = run
                continue
            run = runs.pop(id(traced))
            run.backward(traced.plan.gradients if kept else "keep")
            kept = True
        del run, batch

    def _stepped(self, weight: Weight) -> Stepped:
        return stepped(self.recipe, weight, self._itemsize(weight), 1)

    def _states_of(self, weight: Weight) -> list[Tensor]:
        """As ``state_bytes`` counts them."""
        return [self._new(size, 1) for size in state_bytes(self.recipe, self._stepped(weight))]

    def _optimizer_temporaries(self) -> None:
        """foreach: a buffer for every tensor, none freed before all are there; loop: the variables of the optimizer's
        program, tensor by tensor.
        """
        recipe, optimizer = self.recipe, self.recipe.optimizer.row
        if recipe.optimizer.implementation == "foreach":
            sizes = [(weight.elements, self._itemsize(weight)) for weight in self.trained]
            buffers = [self._new(*size) for _ in range(optimizer.foreach_copies) for size in sizes]
            del buffers
        elif recipe.optimizer.implementation == "loop":
            program, held = PROGRAMS[optimizer.step], dict[str, Tensor]()
            for weight in self.trained:
                for name, size in program(self._stepped(weight), recipe.optimizer.settings):
                    if size:
                        held[name] = self._new(size, 1)
                    else:
                        held.pop(name, None)
