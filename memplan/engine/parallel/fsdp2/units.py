"""The units that FSDP2 gathers and reduces: a decoder layer each, and the root around them; sizes of one in bytes.

Sizes are padded: each tensor is split along its first dimension (torch 2.13 _fully_shard/_fsdp_param.py).

Norm and head under FSDP2: whether they are a unit, and who gathers it."""

from __future__ import annotations

from functools import lru_cache
from operator import add

from memplan.engine.losses.scored import CALLING, FUSED_PROGRAMS
from memplan.engine.parallel.fsdp2.frame import Unit
from memplan.engine.parallel.tensor import of_rank
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.tables.precisions import LOW, fits
from memplan.units import ceil_div

FP32 = 4


def padded(weight: Weight, ranks: int) -> int:
    """Elements of a tensor whose first dimension is filled up to a multiple of the ranks."""
    first = weight.first or (weight.stacked if weight.stacked > 1 else weight.rows)
    return ceil_div(first, ranks) * ranks * (weight.elements // first)


def waits_for_reduction(recipe: Recipe) -> bool:
    """Whether some backward of the step reduces nothing: micro-steps before the last, halves before the last."""
    halves = recipe.method.pairs and recipe.loss.pair_pass in ("split", "gradcache")
    return not recipe.sharding.sync_each_batch and (recipe.accumulates or halves)


def adds_in_place(recipe: Recipe) -> bool:
    """Whether a gradient is added to one that waits in autograd's own dtype; in another dtype it waits as a copy
    (``to_accumulated_grad_if_needed``)."""
    two = recipe.sharding.name == "fsdp2"  # FSDP1 adds flat gradients, when those of a unit are all there
    return two and waits_for_reduction(recipe) and recipe.storage.reduce_itemsize == recipe.numerics.itemsize


def unit_of(weights: list[Weight], recipe: Recipe) -> Unit:
    """The bytes of one unit."""
    base, adapter, apart = recipe.quantised, recipe.adapter, recipe.sharding.fsdp.wraps_adapters
    # A flat gradient is of all that the flat parameter is of, frozen or not; accelerate makes trained linears units.
    flat = recipe.sharding.name == "fsdp" and is_reached(weights, apart, adapter)
    packed = [each for each in weights if base is not None and not each.trained and each.quantised_by(base)]
    found = _of_tensors([each for each in weights if each not in packed] if packed else weights, recipe, flat)
    return Unit(*map(add, found, _packed(packed, recipe, flat))) if packed else found


def _packed(weights: list[Weight], recipe: Recipe, flat: bool) -> Unit:
    """Quantised matrices, to which no gradient comes: in a flat one autograd fills their places."""
    base, compute, reduce = recipe.quantised, recipe.numerics.itemsize, recipe.storage.reduce_itemsize
    assert base is not None
    gathered = exact = 0
    for each in weights:
        weight, ranks = of_rank(each, recipe)
        first, count = (
            next(iter(base.scheme.tensors(weight.rows, weight.columns).values())),
            weight.stacked * each.copies,
        )
        gathered, exact = gathered + ceil_div(first, ranks) * ranks * count, exact + first * count
    if not flat:
        return Unit(gathered=gathered)
    elements, stores = exact // compute, recipe.storage.precision.weights
    part = elements // recipe.sharding.ranks
    return Unit(gathered, exact, elements * reduce, part * stores, waiting=exact, zeros=exact)


def _of_tensors(weights: list[Weight], recipe: Recipe, flat: bool) -> Unit:
    """Of weights that are stored as they are."""
    gathered = gradients = reduced = shard = last = cast = waiting = zeros = widest = largest = 0
    parts = max(1, int(recipe.sharding.reshard_after_forward))
    adapter, own_dtype = recipe.adapter, not casts(recipe)
    compute, reduce = recipe.numerics.itemsize, recipe.storage.reduce_itemsize
    stores, fsdp2 = recipe.storage.precision.weights, recipe.sharding.name == "fsdp2"
    offloads, how = recipe.sharding.fsdp.cpu_offload, recipe.operators.kernels.float8
    for each in weights:
        weight, ranks = of_rank(each, recipe)
        exact, used, stored = weight.elements * weight.copies, compute, stores
        elements = padded(weight, ranks) * weight.copies if fsdp2 else exact
        if how is not None and how.gathered and weight.linear and fits(weight.rows, weight.columns):
            used = LOW
        stored = FP32 if upcasts(recipe, weight) else stored
        if weight.adapter and adapter:
            stored = adapter.itemsize
            used = weight.itemsize or stored if own_dtype else used
        gathered += elements * used
        if parts > 1:  # a gather of a backward reads the part that the forward left, and copies it all the same
            cast += elements // parts * used if used != stored and not offloads else 0
        else:
            cast += elements // ranks * used if used != stored else 0
            widest = max(widest, elements // weight.copies * used if used != stored else 0)
            cast += elements // ranks * stored if offloads else 0
        rests = weight.unit == "vision" and recipe.model.tower_idle  # autograd fills its place, frozen or not
        rests = rests or (adapter is not None and not weight.trained and weight.name in adapter.saved)  # beside a copy
        if flat and (weight.idle or rests):
            zeros += exact * used
        if weight.trained or flat:
            used = max(used, compute) if how is not None else used  # gradients of float8 weights are as wide as theirs
            summed = reduce if reduce != compute else used
            last = exact * used if recipe.sharding.ranks > 1 else 0
            gradients += exact * used
            reduced += elements * summed
            waiting += exact * summed
            shard += elements // ranks * stored
            largest = max(largest, elements // ranks * stored // weight.copies)
    return Unit(gathered, gradients, reduced, shard, last, cast, waiting, zeros, largest, widest)


def in_flat(weight: Weight, apart: bool, adapter: Adapter | None) -> bool:
    """Whether a trained weight is in its layer's, or the root's, flat parameter. ``apart``: PEFT's trained linears are
    units of their own, biases of frozen ones are not."""
    own = apart and adapter is not None and (weight.adapter or weight.name in adapter.saved)
    return weight.trained and not own


def is_reached(weights: list[Weight], apart: bool, adapter: Adapter | None) -> bool:
    """Whether autograd makes a gradient of a flat parameter: it asks for one as soon as a weight of it does, a
    projector's adapter that no image reaches too, and gets it through whatever of it is used."""
    used = any(weight.unit != "vision" for weight in weights)
    asked = (weight._replace(trained=True) if weight.idle and used else weight for weight in weights)
    return any(in_flat(weight, apart, adapter) for weight in asked)


@lru_cache(maxsize=64)
def _beside_trained(spec: ModelSpec, adapter: Adapter | None, apart: bool) -> frozenset[tuple[str, str]]:
    """Units and names of frozen weights whose flat parameter asks for a gradient; blocks of a tower are alike."""
    trained = adapter is None
    layers = [list(marked(layer_weights(run.layer, 1, trained, adapter), run.layer.frozen)) for run in spec.runs]
    outside = [weight for weight in model_weights(spec, trained, adapter) if weight.unit != "layer"]
    found = set[tuple[str, str]]()
    for unit in (*layers, *([each for each in outside if each.apart is own] for own in (True, False))):
        if any(in_flat(each._replace(trained=each.trained or each.idle), apart, adapter) for each in unit):
            found |= {(each.unit, each.name) for each in unit if not each.trained}
    return frozenset(found)


def upcasts(recipe: Recipe, weight: Weight) -> bool:
    """Whether accelerate stores a trained weight in fp32 under FSDP's mixed precision (1.15 accelerator.py:
    ``prepare_model``, utils/fsdp_utils.py: ``fsdp2_prepare_model``), a copy that ``modules_to_save`` makes of one in
    half precision too. Beside 4-bit weights of bitsandbytes its FSDP2 leaves them as they are. A flat parameter is cast
    whole."""
    if not (recipe.sharding.fsdp.casts and gathers(recipe)):
        return False
    base, flat = recipe.quantised, recipe.sharding.name == "fsdp"
    if not weight.trained:
        place, apart = (weight.unit, weight.name), recipe.sharding.fsdp.wraps_adapters
        return flat and place in _beside_trained(recipe.model, recipe.adapter, apart)
    return flat or base is None or base.scheme.product != "bnb-4bit"


def casts(recipe: Recipe) -> bool:
    """Whether units are gathered in the compute dtype, adapters of another too (MixedPrecisionPolicy.param_dtype)."""
    return recipe.storage.precision.mixed or recipe.sharding.fsdp.casts


def keeps_buffers(recipe: Recipe) -> bool:
    """Whether weights are cast for use and buffers are not: accelerate's FSDP1 casts them too (``buffer_dtype``). State
    spaces alone read any (``layers/state_space/mamba2.py``)."""
    read = any(mixer.kind in ("state-space-dual", "both") for mixer in recipe.model.mixers)
    casts_both = recipe.sharding.name == "fsdp" and recipe.sharding.fsdp.casts
    return read and gathers(recipe) and casts(recipe) and not casts_both


def used_adapter(recipe: Recipe) -> Adapter | None:
    """Adapters as modules see them: gathered in the compute dtype."""
    adapter = recipe.adapter
    if adapter is None or not gathers(recipe) or not casts(recipe):
        return adapter
    fsdp, ahead = recipe.sharding.fsdp, recipe.sharding.fsdp.forward_prefetch and not recipe.checkpointing.layers
    if recipe.sharding.name == "fsdp" and fsdp.wraps_adapters and fsdp.use_orig_params and not ahead:
        # Each is a unit of its own: PEFT reads the dtype of what is sharded, and its hook gathers it in another. What
        # is gathered ahead has that other dtype by then, but in a recomputation.
        return adapter._replace(itemsize=recipe.numerics.itemsize, read_itemsize=adapter.itemsize)
    size = recipe.numerics.itemsize
    return adapter._replace(itemsize=size, magnitude_itemsize=size, crossed=False)


def gathered_layers(recipe: Recipe) -> int:
    """Gathered bytes of all layers."""
    of, size = recipe.adapter, 0
    for run in recipe.model.runs:
        weights = [*marked(layer_weights(run.layer, 1, of is None, of), run.layer.frozen)]
        size += run.count * unit_of(weights, recipe).gathered
    return size


def casts_inputs(recipe: Recipe) -> bool:
    """Whether each unit casts what it is given to half precision (``MixedPrecisionPolicy``: cast_forward_inputs)."""
    return recipe.sharding.name == "fsdp2" and (recipe.storage.precision.mixed or recipe.sharding.fsdp.casts)


def casts_outputs(recipe: Recipe) -> bool:
    """Whether each unit casts what it gives back to half precision, as accelerate's policy has it."""
    return recipe.sharding.name == "fsdp2" and recipe.sharding.fsdp.casts


def gathers(recipe: Recipe) -> bool:
    """Whether FSDP gathers and reduces units of the model."""
    return recipe.in_units


def has_tail(recipe: Recipe) -> bool:
    """Whether head and final norm are a unit that is reduced when it has run back."""
    if wraps_copies(recipe):
        return recipe.adapter is not None and recipe.model.head.name in recipe.adapter.saved
    return gathers(recipe) and recipe.sharding.fsdp.own_ends and not recipe.model.head_is_tied


def wraps_copies(recipe: Recipe) -> bool:
    """FSDP1 around what PEFT trains, linear by linear."""
    return gathers(recipe) and recipe.sharding.name == "fsdp" and recipe.sharding.fsdp.wraps_adapters


def reads_head(recipe: Recipe) -> bool:
    """Whether the head's weight is read within the model's forward and its module never called: a tail of norm and head
    has then no hook of its own in backward, and the root begins it (trl 1.16, trainer/utils.py: _fused_forward)."""
    return recipe.loss.head in FUSED_PROGRAMS and recipe.loss.head not in CALLING


def head_gathered_whole(recipe: Recipe) -> bool:
    """Whether the head alone is accelerate's tail, and is never called: no hook gathers it, and the loss that reads it
    takes its ``full_tensor()``, in the dtype it is stored in (trl 1.16, trainer/utils.py: _fused_forward)."""
    saved = recipe.adapter is not None and recipe.model.head.name in recipe.adapter.saved
    untied = has_tail(recipe) and recipe.sharding.name == "fsdp2"
    return untied and reads_head(recipe) and hides_norm(recipe) and not saved


def hides_norm(recipe: Recipe) -> bool:
    """Whether accelerate does not find the final norm among the children of the base model, so that it stays with the
    root: PEFT's base model is the whole one, and that of a class which sees has it in its language model (accelerate
    1.15, utils/fsdp_utils.py: _find_final_norm)."""
    return recipe.adapter is not None or recipe.model.tower is not None
