"""Model states under DeepSpeed: weights in flat buffers or partitions, master weights, optimizer states.

deepspeed 0.19: runtime/fp16/fused_optimizer.py, unfused_optimizer.py, runtime/bf16_optimizer.py,
runtime/zero/stage_1_and_2.py, stage3.py."""

from collections.abc import Iterator

from memplan.engine.allocator.settings import pinned
from memplan.engine.ledger import Ledger
from memplan.engine.model_states import enter_frozen, enter_optimizer
from memplan.engine.optimizer.states import Stepped, flat, stepped
from memplan.engine.parallel.sharding import Held
from memplan.engine.parallel.zero.flat_groups import Group, divided, groups_of, persistent, sub_groups
from memplan.engine.parallel.zero.offload import enter_host_states, moved
from memplan.engine.parallel.zero.selective import enter_selected_states
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

FP32 = 4
ZERO = "deepspeed 0.19 runtime/zero"
SOURCES = {
    "plain": "deepspeed 0.19 runtime/engine.py",
    "unfused": "deepspeed 0.19 runtime/fp16/unfused_optimizer.py: fp32_groups",
    "fused": "deepspeed 0.19 runtime/fp16/fused_optimizer.py: fp32_groups_flat",
    "bf16": "deepspeed 0.19 runtime/bf16_optimizer.py: fp32_groups_flat_partition",
    "zero": f"{ZERO}/stage_1_and_2.py: single_partition_of_fp32_groups",
    "zero3": f"{ZERO}/stage3.py: fp32_partitioned_groups_flat",
}


def weight_itemsize(recipe: Recipe, group: Group) -> int:
    """Bytes of an element of a group's flat buffer."""
    return recipe.adapter.itemsize if group.weights[0].adapter and recipe.adapter else recipe.storage.precision.weights


def adds_in_fp32(recipe: Recipe) -> bool:
    """Whether reduced gradients are added to this rank's part of their group in fp32, and stay themselves to the end of
    backward (deepspeed 0.19.8 runtime/zero/stage_1_and_2.py: ``_use_compact_grad_partition_buffer``; before that they
    were copied in half precision, and cast in the step)."""
    zero = recipe.sharding.deepspeed
    low = recipe.storage.precision.weights < FP32
    return zero.wrapper == "zero" and recipe.zero_stage == 2 and low and zero.accumulation == FP32


def master_itemsize(recipe: Recipe, itemsize: int) -> int:
    """Bytes of an element of the fp32 copy that is stepped on; 0 where the weights themselves are.

    Stage 3 steps on fp32 weights themselves, unless the optimizer is on the host; stages 1 and 2 always copy."""
    wrapper = recipe.sharding.deepspeed.wrapper
    if wrapper == "plain" or (wrapper == "zero3" and itemsize == FP32 and not recipe.sharding.deepspeed.optimizer):
        return 0
    return FP32


def partition_elements(recipe: Recipe, group: Group) -> int:
    """Elements of a group that one rank's optimizer steps on."""
    wrapper = recipe.sharding.deepspeed.wrapper
    if wrapper == "zero3":
        return divided(group.weights, recipe.sharding.ranks)
    return group.partition if wrapper in ("zero", "bf16") else group.elements


def enter_zero_states(ledger: Ledger, recipe: Recipe, weights: list[Weight], held: Held, owner: str = "policy") -> None:
    """Rows that live for the whole step, on the card or, where DeepSpeed offloads, on the host."""
    groups, of_owner = groups_of(recipe, weights), "" if owner == "policy" else f" of the {owner}"
    for adapters in (False, True):
        _enter_weights(ledger, recipe, [group for group in groups if group.weights[0].adapter == adapters], owner)
    frozen = [weight for weight in weights if not weight.trained]
    if recipe.sharding.deepspeed.wrapper == "zero3":
        _enter_frozen_partitions(ledger, recipe, frozen, held, owner)
        _enter_persistent(ledger, recipe, weights, of_owner)
        _enter_room_of_gradients(ledger, recipe, groups, of_owner)
    else:
        enter_frozen(ledger, recipe, frozen, held, owner)
    _enter_masters(ledger, recipe, groups, of_owner)
    tensors = zero_tensors(recipe, groups)
    enter_optimizer(ledger, recipe, tensors[0], recipe.sharding.ranks if recipe.zero_stage else 1, of_owner)
    enter_host_states(ledger, recipe, groups, frozen, tensors[1], of_owner)
    enter_selected_states(ledger, recipe, groups, of_owner)


def zero_tensors(recipe: Recipe, groups: list[Group]) -> tuple[list[tuple[Stepped, int]], list[tuple[Stepped, int]]]:
    """(tensor, how many of it) that the optimizer keeps states of: on the card, and on the host."""
    zero = recipe.sharding.deepspeed
    if zero.wrapper in ("plain", "unfused"):
        masters = zero.wrapper == "unfused"
        tensors = []
        for group in groups:
            for weight in group.weights:
                itemsize = FP32 if masters else weight_itemsize(recipe, group)
                tensors.append((stepped(recipe, weight, itemsize, 1), weight.copies))
        return tensors, []
    here: list[tuple[Stepped, int]] = []
    away: list[tuple[Stepped, int]] = []
    for group in groups:
        for part, is_off in _stepped_parts(recipe, groups, group):
            (away if is_off else here).append((flat(part, FP32), 1))
    return here, away


def _stepped_parts(recipe: Recipe, groups: list[Group], group: Group) -> Iterator[tuple[int, bool]]:
    """What one rank steps of a group: elements, and whether they are on the host."""
    zero, parts = recipe.sharding.deepspeed, [partition_elements(recipe, group)]
    if zero.wrapper == "zero3":
        parts = list(sub_groups(group, recipe.sharding.ranks, zero.sub_group_size))
    return zip(parts, moved(recipe, groups, group, parts), strict=True)


def _enter_weights(ledger: Ledger, recipe: Recipe, groups: list[Group], owner: str) -> None:
    """Trained weights: whole in flat buffers, or one rank's partitions."""
    wrapper = recipe.sharding.deepspeed.wrapper
    if not groups or recipe.sharding.deepspeed.parameters:
        return
    itemsize, adapters = weight_itemsize(recipe, groups[0]), groups[0].weights[0].adapter
    if wrapper == "zero3":
        elements = sum(divided(group.weights, recipe.sharding.ranks) for group in groups)
        template = "Σ ⌈elements / ranks⌉ × bytes"
        why = "each parameter is divided over the ranks, padded to a multiple of them"
    elif wrapper in ("zero", "bf16"):
        elements, template = sum(group.flat for group in groups), "⌈elements / (2·ranks)⌉ · 2·ranks × bytes"
        why = "one flat buffer for each group of parameters; the parameters are views of it"
    else:
        elements, template = sum(group.elements for group in groups), "elements × bytes"
        why = f"stored in {itemsize} bytes per element ({recipe.storage.precision.name})"
    ledger.add(
        f"{'adapters' if adapters else 'weights'} of the {owner}",
        "adapters" if adapters else "parameters",
        elements * itemsize,
    ).formula(template, elements, itemsize).since(why, SOURCES[wrapper])


def _enter_frozen_partitions(ledger: Ledger, recipe: Recipe, frozen: list[Weight], held: Held, owner: str) -> None:
    """ZeRO-3 divides frozen weights too; stored as 8-bit integers where ``zero_quantized_nontrainable_weights``."""
    if recipe.sharding.deepspeed.parameters:
        return
    if recipe.quantised is not None:
        enter_frozen(ledger, recipe, frozen, held, owner)
        return
    elements = divided(tuple(frozen), recipe.sharding.ranks)
    small = [w for w in frozen if -(-w.elements // recipe.sharding.ranks) <= 2048 or w.elements <= 500_000]
    packed = (
        elements - divided(tuple(small), recipe.sharding.ranks) if recipe.sharding.deepspeed.quantised_frozen else 0
    )
    ledger.add(
        f"frozen weights of the {owner}", "parameters", (elements - packed) * recipe.storage.precision.weights
    ).told(elements - packed, recipe.storage.precision.weights)
    ledger.add(
        f"quantised frozen weights of the {owner}",
        "parameters",
        packed + packed // GROUP_OF_8_BITS * FP32,
        low=packed + packed // (2 * GROUP_OF_8_BITS) * FP32,
    ).told(packed, 1 + FP32 / GROUP_OF_8_BITS)


GROUP_OF_8_BITS = 4000
"""Elements that share a scale: between half of CUDAQuantizer's 8,000 and the whole."""


def _as_stored(recipe: Recipe, weights: list[Weight]) -> list[Weight]:
    return [weight.packed(recipe.quantised, recipe.storage.precision.weights) for weight in weights]


def persistent_bytes(recipe: Recipe, weights: list[Weight]) -> int:
    """Bytes of small parameters, trained or not, that stay whole; 0 where nothing is gathered."""
    zero = recipe.sharding.deepspeed
    if recipe.zero_stage != 3 or not (recipe.several or zero.parameters):
        return 0
    stored = _as_stored(recipe, weights)
    small = persistent(stored, zero.param_persistence_threshold, zero.model_persistence_threshold)
    return small * recipe.storage.precision.weights


def _enter_persistent(ledger: Ledger, recipe: Recipe, weights: list[Weight], of_owner: str) -> None:
    """Small parameters stay gathered; hpZ keeps a second partition within a node."""
    zero = recipe.sharding.deepspeed
    if not recipe.several and not zero.parameters:
        return
    stored, small = _as_stored(recipe, weights), persistent_bytes(recipe, weights)
    ledger.add(f"persistent parameters{of_owner}", "gathered_parameters", small, dies=ledger.schedule[-2]).formula(
        "Σ elements of parameters up to the threshold × bytes",
        small // recipe.storage.precision.weights,
        recipe.storage.precision.weights,
    ).since(
        f"parameters of {zero.param_persistence_threshold:,} elements or fewer stay whole, but in the step",
        f"{ZERO}/parameter_offload.py: mark_persistent_parameters",
    )
    if zero.hpz > 1 and not zero.parameters:
        released = [w for w in stored if w.elements > zero.param_persistence_threshold]
        elements = sum(
            -(-w.elements // recipe.sharding.ranks) * recipe.sharding.ranks // zero.hpz * w.copies for w in released
        )
        ledger.add(f"hpZ's second partition{of_owner}", "parameters", elements * recipe.storage.precision.weights).told(
            elements, recipe.storage.precision.weights
        )


def _enter_room_of_gradients(ledger: Ledger, recipe: Recipe, groups: list[Group], of_owner: str) -> None:
    """What stage 3 allocates for gradients once, for the whole run."""
    zero, own = recipe.sharding.deepspeed, recipe.sharding.deepspeed.communication
    if zero.contiguous_gradients:
        size = zero.reduce_bucket_size
        ledger.add(f"reduction bucket{of_owner}", "buffers", size * own).told(size, own)
    if not zero.optimizer:
        elements, own = sum(divided(group.weights, recipe.sharding.ranks) for group in groups), zero.accumulation
        ledger.add(f"gradient partitions{of_owner}", "gradients", elements * own).told(elements, own)


def _enter_masters(ledger: Ledger, recipe: Recipe, groups: list[Group], of_owner: str) -> None:
    """The fp32 copies on the card."""
    zero, elements = recipe.sharding.deepspeed, 0
    for group in groups:
        if master_itemsize(recipe, weight_itemsize(recipe, group)):
            elements += sum(part for part, is_off in _stepped_parts(recipe, groups, group) if not is_off)
    over = f" / {recipe.sharding.ranks} ranks" if recipe.zero_stage and recipe.several else ""
    ledger.add(f"fp32 master weights{of_owner}", "master_weights", elements * FP32).formula(
        f"elements{over} × 4", elements, FP32
    ).since("the optimizer steps on an fp32 copy of the weights", SOURCES[zero.wrapper])
    if zero.optimizer and elements:
        ledger.add(f"fp32 gradients of sub-groups on the card{of_owner}", "gradients", elements * FP32).told(
            elements, FP32
        )
    if zero.wrapper == "bf16":
        flat_ = sum(group.flat for group in groups)
        ledger.add(f"fp32 gradients{of_owner}", "gradients", flat_ * FP32).told(flat_, FP32)


def enter_resident_partitions(
    ledger: Ledger, recipe: Recipe, name: str, category: str, weights: list[Weight], itemsize: int
) -> None:
    """Another model under ZeRO-3, in an inference engine of the policy's settings (TRL, LLaMA-Factory:
    ``prepare_deepspeed``; OpenRLHF: ``get_ds_eval_config``): its partitions, on the host where parameters are
    offloaded, and small parameters that stay gathered."""
    zero, elements = recipe.sharding.deepspeed, divided(tuple(weights), recipe.sharding.ranks)
    away = bool(zero.parameters)
    parts = (
        [-(-w.elements // recipe.sharding.ranks) * itemsize for w in weights for _ in range(w.copies)] if away else []
    )
    ledger.add(
        name,
        category,
        sum(map(pinned, parts)) if away and zero.parameters.pinned else elements * itemsize,
        place="host" if away else "gpu",
        low=elements * itemsize if away else -1,
    ).formula("Σ ⌈elements / ranks⌉ × bytes", elements, itemsize).since(
        "frozen weights, split over the ranks as the policy's are",
        f"{ZERO}/partition_parameters.py: _partition_param; trl 1.16 models/utils.py: prepare_deepspeed",
    )
    small = persistent(weights, zero.param_persistence_threshold, zero.model_persistence_threshold)
    ledger.add(f"persistent parameters of the {name}", "gathered_parameters", small * itemsize).told(small, itemsize)
