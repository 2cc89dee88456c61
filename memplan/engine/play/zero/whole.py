"""Stage 0 and BF16_Optimizer on the play: the engine reduces whole gradients when the last backward of a step is
through, and what wraps the optimizer steps on fp32 copies.

deepspeed 0.19 runtime/engine.py (``allreduce_no_retain``, ``allreduce_bucket``), runtime/fp16/unfused_optimizer.py and
fused_optimizer.py (``__init__``, ``step``), which bf16 has too (engine.py: ``_do_optimizer_sanity_check``);
runtime/bf16_optimizer.py (``_update_hp_grad``), whose gradients are added up in a flat fp32 buffer of each group."""

from collections.abc import Callable
from itertools import groupby

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.parallel.zero.flat_groups import Group, buckets_of, groups_of
from memplan.engine.parallel.zero.states import FP32, weight_itemsize, zero_tensors
from memplan.engine.play.optimizer import Optimizer
from memplan.engine.play.sharding import Sharding
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.zero.engine import Engine
from memplan.engine.play.zero.hooks import in_order, opening
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


class Whole(Sharding):
    """The hooks of one engine."""

    def __init__(self, recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> None:
        self.tape, self.zero, self.late = tape, recipe.sharding.deepspeed, recipe.accumulates
        self.groups, self.opening = groups_of(recipe, weights), opening(weights)
        self.of_bf16 = self.zero.wrapper == "bf16"
        self.at_once = self.of_bf16 and self.zero.immediate_grad_update
        self.itemsize = FP32 if self.of_bf16 else weight_itemsize(recipe, self.groups[0])
        reduced = [group.flat for group in self.groups] if self.of_bf16 else [w.elements for w in weights if w.trained]
        self.buckets = buckets_of(reduced) if recipe.several else []
        self.wide = list[Tensor]()
        """The fp32 gradients that are stepped on."""

    def _new(self, elements: int, itemsize: int, label: str, category: str = "gradients") -> Tensor:
        return self.tape.new(Dim("n", elements), itemsize, label, category=category)

    def took(self, param: Param, scope: object, *, is_new: bool) -> None:
        """``accumulate_hp_grads_and_remove_lp``."""
        if self.at_once:
            self._add_up(param)
            del self.tape.stored[param]

    def _add_up(self, param: Param) -> None:
        """A gradient is added in fp32."""
        wide = self._new(param.dim.elements, FP32, "gradient in fp32", "buffers")
        del wide

    def backward_ends(self) -> None:
        """What is added up in fp32; buckets in the order of the model, each flattened unless one tensor fills it, and
        cast."""
        for group in self.groups if self.of_bf16 else ():
            names = {weight.name for weight in group.weights}
            for param in in_order(self.tape, [each for each in self.tape.stored if each.name in names], self.opening):
                self._add_up(param)
        cast = self.zero.communication if self.zero.communication != self.itemsize else 0
        for elements, tensors in self.buckets if self.reduces else ():
            flat = self._new(elements, self.itemsize * (tensors > 1), "flattened bucket", "buffers")
            other = self._new(elements, cast, "cast bucket", "buffers")
            del flat, other

    def step(self, steps: Callable[[], None]) -> None:
        """``unfused``: an fp32 gradient for each. ``fused``: a flat one for each group, whose others go then."""
        for group in self.groups if self.zero.wrapper in ("unfused", "fused") else ():
            each = [self._new(w.elements, FP32, "fp32 gradients") for w in group.weights for _ in range(w.copies)]
            if self.zero.wrapper == "fused":
                each = [self._new(group.elements, FP32, "flat fp32 gradients")] if len(each) > 1 else each
                names = {weight.name for weight in group.weights}
                for param in [param for param in self.tape.stored if param.name in names]:
                    del self.tape.stored[param]
            self.wide += each
        steps()
        self.wide.clear()


class WholeEngine(Engine):
    """The same without a step around it: gradients are there."""

    def __init__(self, recipe: Recipe, groups: list[Group]) -> None:
        super().__init__(StepEvents((), 0))
        alike = (pair for group in groups for pair in groupby(group.weights, lambda weight: weight.copies))
        weights = [each._replace(copies=1) for copies, layer in alike for each in list(layer) * copies]
        self.hooks = Whole(recipe, self.tape, weights)
        itemsize = weight_itemsize(recipe, groups[0])
        for weight in weights if not self.hooks.at_once else ():
            param = Param(self.tape, weight.name, weight.elements, itemsize, trained=True)
            self.tape.stored[param] = self.tape.new(param.dim, param.itemsize, "gradients", category="gradients")
        tensors = zero_tensors(recipe, self.hooks.groups)[0]
        self.optimizers = [Optimizer(recipe, self.tape, [tensor for tensor, _ in tensors])]

    def backward_ended(self, *, last: bool) -> None:
        """The gradients of the last micro-step are there."""
        self.hooks.backward_ends()

    def step(self) -> None:
        """What wraps the optimizer."""
        self.hooks.step(self.optimizers[0].step)


def masters(recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> list[Tensor]:
    """``p.clone().float()`` of each, or of each group's flat buffer; and gradients of zeros, to make the states."""
    held, unfused = list[Tensor](), recipe.sharding.deepspeed.wrapper == "unfused"
    for group in groups_of(recipe, weights) if recipe.sharding.deepspeed.wrapper != "plain" else ():
        sizes = [w.elements for w in group.weights for _ in range(w.copies)] if unfused else [group.elements]
        for size in sizes:
            clone = tape.new(Dim("n", size), weight_itemsize(recipe, group), "clones of weights", category="parameters")
            held.append(tape.new(Dim("n", size), FP32, "fp32 master weights", category="master_weights"))
            del clone
    zeros = [tape.new(each.dim, FP32, "gradients of zeros", category="gradients") for each in held]
    del zeros
    return held
