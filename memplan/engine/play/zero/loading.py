"""What DeepSpeed leaves of loading a model: flat buffers, the rank's part in fp32.

deepspeed 0.19 runtime/zero/stage_1_and_2.py (``__init__``, ``initialize_optimizer_states``). Weights are on the card
one by one; a group's flat buffer is made beside them, or on the host where there is no room: here they are freed first,
which leaves the same segments behind.
"""

from __future__ import annotations

from memplan.engine.allocator.replay import EMPTY_CACHE
from memplan.engine.parallel.zero.flat_groups import groups_of, largest
from memplan.engine.parallel.zero.states import FP32, weight_itemsize
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def loaded(recipe: Recipe, tape: Tape, weights: list[Weight]) -> list[Tensor]:
    """The trained weights of stages 1 and 2, and the masters of this rank's parts."""
    held, groups = list[Tensor](), groups_of(recipe, weights)
    names = [{weight.name for weight in group.weights} for group in groups]
    single = [
        [
            _new(tape, w.elements * weight_itemsize(recipe, group), w.name)
            for w in weights
            if w.trained and w.name in own
        ]
        for group, own in zip(groups, names, strict=True)
    ]
    for i, group in enumerate(groups):
        assert isinstance(tape, PlayTape)
        tape.mark(EMPTY_CACHE)
        single[i].clear()
        itemsize = weight_itemsize(recipe, group)
        held.append(_new(tape, group.flat * itemsize, "flat weights"))
        part = _new(tape, group.partition * itemsize, "the rank's part")
        if not recipe.sharding.deepspeed.optimizer:
            held.append(_new(tape, group.partition * FP32, "fp32 master weights", "master_weights"))
        del part
    if recipe.sharding.deepspeed.optimizer:
        biggest = max(largest(group) * weight_itemsize(recipe, group) for group in groups)
        held.append(_new(tape, biggest, "gradient buffer of the offload", "buffers"))
        return held
    zeros = [_new(tape, group.partition * FP32, "zeros of the rank's part", "gradients") for group in groups]
    del zeros
    return held


def _new(tape: Tape, size: int, label: str, category: str = "parameters") -> Tensor:
    return tape.new(Dim("n", size), 1, label, category=category)
