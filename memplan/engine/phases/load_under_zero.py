"""A load under DeepSpeed 0.19 (runtime/zero): parameters divided or flattened, partitions, gradients of zeros."""

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.zero.flat_groups import groups_of, sub_groups
from memplan.engine.parallel.zero.states import weight_itemsize
from memplan.engine.phases.parts import POLICY, SHARD, STATES, largest_bytes, whole_bytes
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

FP32 = 4


def enter_deepspeed(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """Its start: flat buffers, partitions, and gradients of zeros."""
    groups, ranks = groups_of(recipe, weights), recipe.sharding.ranks
    zero = recipe.sharding.deepspeed
    if recipe.zero_stage == 3:
        _enter_partitioning(ledger, recipe, weights)
        parts = max((max(sub_groups(group, ranks, zero.sub_group_size)) for group in groups), default=0)
    else:
        parts = sum(group.partition for group in groups) if recipe.zero_stage else 0
        flat = sum(group.flat * weight_itemsize(recipe, group) for group in groups)
        _enter_flattening(ledger, recipe, flat, whole_bytes(recipe, [each for each in weights if not each.trained]))
    ledger.add(
        "gradients of zeros", "gradients", 0 if zero.optimizer or zero.wrapper == "plain" else parts * FP32, at=STATES
    ).told(parts, FP32)


def _enter_flattening(ledger: Ledger, recipe: Recipe, flat: int, frozen: int) -> None:
    """Stages 1 and 2 copy trained weights into a flat buffer: on the card where it has the room, else on the host."""
    size = flat if recipe.sharding.deepspeed.wrapper == "zero" else 0
    gpu, others = recipe.hardware.gpu, sum(each.spec.params.total * each.itemsize for each in recipe.others.residents)
    roomy = gpu is not None and 2 * size + frozen + others <= gpu.usable_bytes
    ledger.add(
        "the flat copy of the weights",
        "temporaries",
        size,
        at=SHARD,
        place="gpu" if roomy else "host",
        low=0 if roomy else -1,
    ).told(size)


def _enter_partitioning(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """ZeRO-3 divides each module's parameters as they are made, or those of a model that is whole."""
    if recipe.moments.loading.way == "partitioned":
        size = largest_bytes(recipe, weights)
        ledger.add("the largest parameter, before it is divided", "temporaries", size, at=POLICY).told(size)
        return
    size = whole_bytes(recipe, weights)
    ledger.add(
        "the whole model, before it is divided",
        "temporaries",
        size,
        POLICY if recipe.quantised is not None else SHARD,
        SHARD,
    ).told(size, of="the whole model, before it is divided (load under zero)")
