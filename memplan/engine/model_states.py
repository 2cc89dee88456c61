"""Model states: parameters, master weights, gradients that stay, optimizer states, and what the step itself holds."""

from itertools import groupby

from memplan.engine.host_copies import copied, parameter_sizes
from memplan.engine.ledger import Ledger
from memplan.engine.optimizer.states import Stepped, is_quantised, orthogonalised, paged_bytes, state_bytes, stepped
from memplan.engine.optimizer.temporaries import PROGRAMS, REFRESHES, peak_bytes
from memplan.engine.parallel.fsdp1.flat_parameters import fullest
from memplan.engine.parallel.fsdp2.units import padded
from memplan.engine.parallel.sharding import Held, main_gradients
from memplan.engine.tensors import SECOND, Weight
from memplan.spec.groups import Quantised
from memplan.spec.recipe import Recipe
from memplan.tables.styles import Fused
from memplan.units import ceil_div

FP32 = 4
BLOCK = 512
"""The caching allocator's unit."""
KERNEL_COPIES = 3
"""Whole matrices that a kernel of GPTQ, AWQ or HQQ may hold beyond those of the one that is modelled."""


def step_temporaries(recipe: Recipe, weights: list[Weight], itemsize: int, shards: int) -> int:
    """Bytes that the optimizer's step holds beside states and gradients.

    foreach: whole copies of everything stepped; loop: what its variables hold of one tensor and of the one before;
    fused and 8-bit kernels: none. Muon steps first, on whole matrices, then AdamW (foreach) on what is left."""
    optimizer, impl = recipe.optimizer.row, recipe.optimizer.implementation
    if impl == "fused":
        return 0
    tensors = [(stepped(recipe, weight, itemsize, shards), weight.copies) for weight in weights]
    copies = optimizer.foreach_copies * itemsize
    if impl == "foreach":
        return copies * sum(tensor.elements * count for tensor, count in tensors)
    whole = (
        [(stepped(recipe, weight, itemsize, 1), weight.copies) for weight in weights] if optimizer.gathers else tensors
    )
    size = loop_bytes(recipe, whole)
    if not copies or optimizer.rule != "muon":
        return size
    return max(size, copies * sum(tensor.elements * count for tensor, count in tensors if not orthogonalised(tensor)))


def loop_bytes(recipe: Recipe, tensors: list[tuple[Stepped, int]]) -> int:
    """The peak of a step that goes tensor by tensor; layers are gone through twice, so that neighbours are met."""
    program, settings, order = PROGRAMS[recipe.optimizer.row.step], recipe.optimizer.settings, []
    for copies, group in groupby(tensors, lambda pair: pair[1]):
        order += [tensor for tensor, _ in group] * min(copies, 2)
    apart = recipe.divided.whole_stream  # DTensors are a group of their own, before the vectors that are whole
    order.sort(key=lambda tensor: (tensor.projected, apart and tensor.columns == 1))
    return peak_bytes(assignment for tensor in order for assignment in program(tensor, settings))


def refresh_bytes(recipe: Recipe, weights: list[Weight], itemsize: int, shards: int) -> int:
    """The peak of the steps that also renew projections; 0 where there are none."""
    program = REFRESHES.get(recipe.optimizer.row.step)
    tensors = (stepped(recipe, weight, itemsize, shards) for weight in weights) if program else ()
    return max((peak_bytes(program(tensor, recipe.optimizer.settings)) for tensor in tensors if program), default=0)


def last_update(recipe: Recipe, trained: list[Weight]) -> tuple[int, int]:
    """(elements, bytes of each) of the update that fused backward leaves for its end: the embedding's, whose hook no
    other gradient follows (lomo.py: fused_backward)."""
    half, single, waits = recipe.fused_backward or Fused(0, 0)
    elements = max((weight.elements for weight in trained if weight.unit == "embedding"), default=0)
    return elements if waits else 0, single if recipe.storage.precision.weights == FP32 else half


def enter_states(ledger: Ledger, recipe: Recipe, weights: list[Weight], held: Held, owner: str = "policy") -> None:
    """Rows that live for the whole step: weights, master weights and optimizer states, as this rank holds them."""
    trained = [weight for weight in weights if weight.trained]
    of_owner = "" if owner == "policy" else f" of the {owner}"
    for label, group, category in (
        ("weights", [w for w in trained if not w.adapter], "parameters"),
        ("adapters", [w for w in trained if w.adapter], "adapters"),
    ):
        _enter_stored(ledger, recipe, f"{label} of the {owner}", category, group, held)
    enter_frozen(ledger, recipe, [weight for weight in weights if not weight.trained], held, owner)
    tensors = stepped_tensors(recipe, weights, held)
    if main_gradients(recipe):
        elements = sum(tensor.elements * copies for tensor, copies in tensors)
        ledger.add(f"main weights{of_owner}", "master_weights", elements * FP32).formula(
            f"elements{_over(held.optimizer_shards)} × 4", elements, FP32
        ).since("the optimizer steps on an fp32 copy of the weights", "megatron-core 0.14 optimizer/optimizer.py")
    enter_optimizer(ledger, recipe, tensors, held.optimizer_shards, of_owner)


def stepped_tensors(recipe: Recipe, weights: list[Weight], held: Held) -> list[tuple[Stepped, int]]:
    """(tensor, how many of it) that the optimizer keeps states of."""
    own = weights if recipe.optimizer.row.states_of_frozen else fullest(recipe, weights)
    return [
        (stepped(recipe, weight, held.stepped_itemsize(recipe, weight), held.optimizer_shards), weight.copies)
        for weight in own
    ]


def enter_optimizer(
    ledger: Ledger, recipe: Recipe, tensors: list[tuple[Stepped, int]], shards: int, of_owner: str
) -> None:
    """States on the card, and managed ones, counted on the host. ``tensors``: what is stepped on, how many."""
    optimizer = recipe.optimizer.row
    elements = sum(tensor.elements * copies for tensor, copies in tensors)
    paged = sum(paged_bytes(recipe, tensor) * copies for tensor, copies in tensors) if optimizer.paged else 0
    size = sum(sum(state_bytes(recipe, tensor)) * copies for tensor, copies in tensors) - paged
    blocks, settings = optimizer.blocks, recipe.optimizer.settings
    if blocks and any(is_quantised(tensor, blocks, settings) for tensor, _ in tensors):
        size += blocks.shared_table * optimizer.per_element
    template, over = f"elements{_over(shards)} × state bytes", max(elements, 1)
    if paged:
        ledger.add(
            f"paged {optimizer.title} states{of_owner}", "optimizer_states", paged, place="host", meter="managed"
        ).formula(template, elements, round(paged / over, 4)).since(
            "managed memory, which the driver moves between host and card; torch's allocator does not see it",
            f"{optimizer.source}; get_state_buffer: tensors of 100,000 elements and more",
        )
    ledger.add(f"{optimizer.title} states{of_owner}", "optimizer_states", size, place=place_of(recipe)).formula(
        template, elements, round(size / over, 4)
    ).since("kept between steps from the first step on", optimizer.source)


def _enter_stored(
    ledger: Ledger, recipe: Recipe, label: str, category: str, group: list[Weight], held: Held, why: str = ""
) -> None:
    """A row of weights for each element size among them."""
    for itemsize in sorted({held.stored_itemsize(recipe, weight) for weight in group}, reverse=True):
        same = [weight for weight in group if held.stored_itemsize(recipe, weight) == itemsize]
        elements = shard_elements(same, held.parameter_shards, recipe.sharding.name == "fsdp2")
        ledger.add(
            label,
            category,
            host_bytes(recipe, same, itemsize) if recipe.sharding.fsdp.cpu_offload else elements * itemsize,
            place=place_of(recipe),
        ).formula(f"elements{_over(held.parameter_shards)} × bytes", elements, itemsize).since(
            why or f"stored in {itemsize} bytes per element ({recipe.storage.precision.name})",
            "MEMORY_ESTIMATION.md, parameters",
        )


def place_of(recipe: Recipe) -> str:
    """Where FSDP's shards of weights, gradients and states are."""
    return "host" if recipe.sharding.fsdp.cpu_offload else "gpu"


def host_bytes(recipe: Recipe, weights: list[Weight], itemsize: int) -> int:
    """Bytes of shards that wait on the host: pinned, each tensor in a block of a power of two (torch 2.13
    CachingHostAllocator); one flat tensor for each unit under FSDP1, which pins whatever is asked for."""
    fsdp2 = recipe.sharding.name == "fsdp2"
    exact = shard_elements(weights, recipe.sharding.ranks, fsdp2) * itemsize
    if fsdp2 and not recipe.sharding.fsdp.pin_memory:
        return exact
    return copied(exact, parameter_sizes(recipe, weights), itemsize)


def enter_frozen(ledger: Ledger, recipe: Recipe, frozen: list[Weight], held: Held, owner: str = "policy") -> None:
    """Frozen weights: a second set of adapters; the rest whole, or quantised linears and what is left beside them."""
    second = [weight for weight in frozen if weight.name.endswith(SECOND)]
    frozen = [weight for weight in frozen if not weight.name.endswith(SECOND)] if second else frozen
    why = "a second set of adapters, of the same shapes, which nobody trains: with it the model is the reference"
    _enter_stored(ledger, recipe, "adapters of the reference", "reference", second, held, why)
    base = recipe.quantised
    if base is None:
        _enter_stored(ledger, recipe, f"frozen weights of the {owner}", "parameters", frozen, held)
        return
    packed = [weight for weight in frozen if weight.quantised_by(base)]
    enter_quantised(ledger, base, "the policy", "parameters", packed, held.parameter_shards, place_of(recipe))
    rest = [weight for weight in frozen if not weight.quantised_by(base)]
    why = f"embeddings, head, norms and biases are not quantised{'' if base.experts else ', stacked experts neither'}"
    _enter_stored(ledger, recipe, "unquantised weights of the policy", "parameters", rest, held, why)
    if base.scheme.assumed:
        largest = max((weight.rows * weight.columns for weight in frozen if weight.linear), default=0)
        ledger.add(
            "another kernel's dequantised weights",
            "temporaries",
            0,
            low=0,
            high=KERNEL_COPIES * largest * base.compute_itemsize,
        ).told(KERNEL_COPIES, largest, base.compute_itemsize, source=base.scheme.source)


def enter_quantised(
    ledger: Ledger,
    base: Quantised,
    owner: str,
    category: str,
    weights: list[Weight],
    shards: int = 1,
    place: str = "gpu",
) -> int:
    """The tensors that quantised matrices become, each rounded up as the allocator does; returns their bytes.

    ``shards``: packed weights are split over so many ranks (FSDP); scales are no parameters, and whole on each.
    ``place``: where FSDP has what is packed, a parameter as any; scales stay on the card, where they were made
    (AnswerDotAI/fsdp_qlora train.py: ``type(param)(value.data.to("cpu"), **value.__dict__)``)."""
    packed = scales = elements = 0
    for weight in weights:
        first, *rest = (
            ceil_div(size, BLOCK) * BLOCK for size in base.scheme.tensors(weight.rows, weight.columns).values()
        )
        matrices = weight.copies * weight.stacked
        packed, scales = packed + ceil_div(first, shards) * matrices, scales + sum(rest) * matrices
        elements += weight.elements * weight.copies
    scheme = base.scheme
    for label, size, where, why in (
        (
            "quantised weights",
            packed,
            place,
            f"{scheme.title}: {scheme.bits} bits for each weight of the layers' linears",
        ),
        ("scales of the quantised weights", scales, "gpu", "scales, zeros and codes, rounded up to 512 bytes a tensor"),
    ):
        ledger.add(f"{label} of {owner}", category, size, place=where).formula(
            "elements × bytes per element", elements, round(size / max(elements, 1), 6)
        ).since(why, scheme.source)
    left = sum(left_bytes(base, weight) * weight.copies for weight in weights)
    ledger.add(f"linears of {owner} that are not quantised", category, left, place=place).told(
        base.share_left, elements, round(left / max(base.share_left * elements, 1), 6), source=scheme.source
    )
    return packed + scales + left


def left_bytes(base: Quantised, weight: Weight) -> int:
    """Bytes by which a matrix is larger than packed, on the average of a checkpoint that leaves a share as they are."""
    packed = sum(base.scheme.tensors(weight.rows, weight.columns).values()) * weight.stacked
    return round(base.share_left * (weight.elements * base.original_itemsize - packed)) if base.share_left else 0


def shard_elements(weights: list[Weight], shards: int, by_rows: bool = False) -> int:
    """Elements of the first rank's shard: each tensor padded to a multiple of the ranks; by rows, its first side."""
    if by_rows:
        return sum(padded(weight, shards) // shards * weight.copies for weight in weights)
    return sum(ceil_div(weight.elements, shards) * weight.copies for weight in weights)


def _over(shards: int) -> str:
    return f" / {shards} ranks" if shards > 1 else ""
