"""What DeepSpeed leaves of loading a model: flat buffers, the rank's part in fp32.

deepspeed 0.19 runtime/zero/stage_1_and_2.py (``__init__``, ``initialize_optimizer_states``), bf16_optimizer.py
(``_setup_for_real_optimizer``, which makes the flat buffer beside the weights, and no states). Weights are on the card
one by one; a group's flat buffer is made beside them, or on the host where there is no room: here they are freed first,
which leaves the same segments behind."""

from memplan.engine.allocator.replay import EMPTY_CACHE
from memplan.engine.parallel.zero.flat_groups import groups_of, largest
from memplan.engine.parallel.zero.states import FP32, weight_itemsize
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.zero.sub_groups import sub_groups_of
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


def loaded(recipe: Recipe, tape: Tape, weights: list[Weight]) -> list[Tensor]:
    """What is trained, and under stage 3 all else, with the masters of this rank's parts."""
    return (_divided if recipe.zero_stage == 3 else _flat)(recipe, tape, weights)


def _flat(recipe: Recipe, tape: Tape, weights: list[Weight]) -> list[Tensor]:
    """The trained weights of stages 1 and 2, and the masters of this rank's parts."""
    held, groups, of_bf16 = list[Tensor](), groups_of(recipe, weights), recipe.sharding.deepspeed.wrapper == "bf16"
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
        itemsize = weight_itemsize(recipe, group)
        if not of_bf16:
            tape.mark(EMPTY_CACHE)
            single[i].clear()
        held.append(_new(tape, group.flat * itemsize, "flat weights"))
        single[i].clear()
        part = _new(tape, group.partition * itemsize, "the rank's part")
        if not recipe.sharding.deepspeed.optimizer:
            held.append(_new(tape, group.partition * FP32, "fp32 master weights", "master_weights"))
        del part
        held += [_new(tape, group.flat * FP32, "fp32 gradients", "gradients")] if of_bf16 else []
    if recipe.sharding.deepspeed.optimizer:
        biggest = max(largest(group) * weight_itemsize(recipe, group) for group in groups)
        held.append(_new(tape, biggest, "gradient buffer of the offload", "buffers"))
        return held
    made = groups if not of_bf16 else ()
    zeros = [_new(tape, group.partition * FP32, "zeros of the rank's part", "gradients") for group in made]
    del zeros
    return held


def _divided(recipe: Recipe, tape: Tape, weights: list[Weight]) -> list[Tensor]:
    """``zero.Init`` divides parameters as made; trained parts are put together by way of the host (``defragment``)."""
    assert isinstance(tape, PlayTape)
    zero, ranks, groups = recipe.sharding.deepspeed, recipe.sharding.ranks, groups_of(recipe, weights)
    sizes = [(each, each.elements * recipe.storage.precision.weights) for each in weights]
    parts: list[tuple[bool, Tensor]] = []
    for each, size in sizes if not zero.parameters else ():
        whole = _new(tape, size, "weights before they are divided")
        parts.append((each.trained, _new(tape, ceil_div(size, ranks), each.name)))
        del whole
    held = [part for is_trained, part in parts if not is_trained]
    parts.clear()
    tape.mark(EMPTY_CACHE)
    itemsize, small = weight_itemsize(recipe, groups[0]), sub_groups_of(recipe, groups)
    whole_part = sum(group.elements for group in small)
    if not zero.parameters:
        held.append(_new(tape, whole_part * itemsize, "divided weights"))
    for group in small:
        if not group.away and (itemsize != FP32 or zero.optimizer):
            wide = _new(tape, group.elements * FP32, "converted part")
            held.append(_new(tape, group.elements * FP32, "fp32 master weights", "master_weights"))
            del wide
            if zero.optimizer:
                held.append(_new(tape, group.elements * FP32, "fp32 gradients of sub-groups", "gradients"))
    if not zero.optimizer:
        zeros = _new(tape, max(group.elements for group in small) * FP32, "zeros of a sub-group", "gradients")
        del zeros
    if zero.contiguous_gradients:
        held.append(_new(tape, zero.reduce_bucket_size * zero.communication, "reduction bucket", "buffers"))
    if not zero.optimizer:
        held.append(_new(tape, whole_part * zero.accumulation, "gradient partitions", "gradients"))
    return held


def _new(tape: Tape, size: int, label: str, category: str = "parameters") -> Tensor:
    return tape.new(Dim("n", size), 1, label, category=category)
