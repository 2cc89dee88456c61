"""The units that FSDP2 gathers and reduces: a decoder layer each, and the root around them; sizes of one in bytes.

Sizes are padded: each tensor is split along its first dimension (torch 2.13 _fully_shard/_fsdp_param.py).
"""

from collections.abc import Callable
from typing import NamedTuple

from memplan.engine.parallel.tensor import of_rank
from memplan.engine.tensors import Weight, layer_weights, marked
from memplan.spec.layer import Layer
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.tables.precisions import LOW, fits
from memplan.units import ceil_div


class Unit(NamedTuple):
    """What is gathered and reduced together, in bytes."""

    gathered: int
    """Weights as modules use them."""
    gradients: int
    """Whole gradients as autograd makes them."""
    reduced: int
    """Input of the reduce-scatter, in the reduction's dtype."""
    scattered: int
    """Its output, and the copy in the weights' dtype where that is another."""
    shard: int
    """Gradients that stay: the rank's part, in the weights' dtype."""
    last: int
    """The gradient of its last tensor: a loop's variable keeps it through the reduction (``foreach_reduce``)."""
    held: int
    """Output of the reduce-scatter that hybrid sharding holds to the end of backward, beside a copy of other dtype."""
    cast: int = 0
    """The all-gather's input in backward: the rank's part in the gathered dtype, where it is stored in another; before
    that, its copy from the host. After resharding to a number, a copy of the part that is there."""
    replicated: int = 0
    """Output of the reduce-scatter under hybrid sharding: what is held, where it is added to gradients that are there
    already."""
    waiting: int = 0
    """Whole gradients that no backward has reduced yet, in the reduction's dtype, without its padding."""
    parting: int = 0
    """The most that resharding to a number adds: a tensor's part is cloned before the whole is freed, one after another
    (``to_sharded_post_forward``)."""
    zeros: int = 0
    """FSDP1: gradients of views that nothing used, which autograd makes when it puts the flat gradient together."""
    widest: int = 0
    """The largest of the copies that the weights of one rank are cast to, one after another, before they are taken."""


NOTHING = Unit(0, 0, 0, 0, 0, 0, 0)


class TowerUnits(NamedTuple):
    """The units of a vision tower: its patch embedding, one block, and the projector, where they are any."""

    front: Unit
    block: Unit
    projector: Unit


class Frame(NamedTuple):
    """The units of a model, and how they are gathered."""

    layers: list[Unit]
    root: Unit
    resharding: bool | int
    """True; False: kept from forward to backward; a number: shared among so many ranks meanwhile."""
    first: Unit = NOTHING
    """The input embedding, where it is a unit of its own."""
    tail: Unit = NOTHING
    """Final norm and head, where they are one; with a tied embedding, which then opens the unit."""
    opens: bool = False
    """The tail is gathered at the embedding, and reduced at the end: its inputs are token ids."""
    place: str = "gpu"
    """Where shards are: on the host under CPU offload."""
    first_left: bool = False
    """The embedding, a unit of its own, has no backward: its part is always there under resharding to a number."""
    blocks: Unit = NOTHING
    """The blocks of a vision tower together: units of their own, reduced as the tower runs back."""
    tower: TowerUnits | None = None
    """The units of a tower that sees images, and whose blocks are traced one by one."""
    left: int = 0
    """Layers from the first on that have no backward, under resharding to a number: their part is always there."""
    alone: bool = False
    """One rank: nothing is gathered, each weight is copied as its unit begins (torch 2.13 ``wait_for_unshard``)."""

    @property
    def before_layers(self) -> Unit:
        """The unit that runs before the first layer: its backward gathers that ahead."""
        ends = (self.tower.projector, self.tower.block) if self.tower else ()
        return next((unit for unit in ends if unit.gathered), self.first)

    @property
    def reshards(self) -> bool:
        """Whether a layer's whole weights are freed after its forward."""
        return self.resharding is not False

    def output(self, unit: Unit) -> int:
        """Bytes beside the weights that are copied out of it."""
        return unit.widest if self.alone else unit.gathered

    def ahead(self, unit: Unit) -> int:
        """Bytes that are gathered before the unit begins."""
        return 0 if self.alone else unit.gathered

    def kept(self, unit: Unit) -> int:
        """Bytes that stay of a layer from its forward to its backward."""
        return 0 if self.resharding is True else unit.gathered // max(1, int(self.resharding))

    def kept_until(self, i: int) -> int:
        """Bytes that stay of the layers below ``i``, but for those that always do."""
        total, size, last = 0, 0, None
        for unit in self.layers[self.left : i] if self.resharding is not True else ():
            if unit is not last:
                last, size = unit, self.kept(unit)
            total += size
        return total

    @property
    def first_kept(self) -> int:
        """Bytes that stay of the embedding, from its forward to its backward."""
        return 0 if self.first_left else self.kept(self.first)

    @property
    def all_layers(self) -> int:
        """Gathered bytes of all layers."""
        return sum(unit.gathered for unit in self.layers)

    @property
    def always(self) -> Unit:
        """Of a model that only runs forward: what no forward reshards, root and tail."""
        return self.root._replace(gathered=self.root.gathered + self.tail.gathered)

    @property
    def ends(self) -> tuple[Unit, Unit, Unit]:
        """The units outside the layers."""
        return self.root, self.first, self.tail

    @property
    def named_ends(self) -> tuple[tuple[str, Unit, str], ...]:
        """The same with a name, and the point of backward that reduces them."""
        tail = "reduce" if self.opens else "tail-reduce"
        return ("root", self.root, "reduce"), ("embedding", self.first, "reduce"), ("tail", self.tail, tail)


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
    gathered = gradients = reduced = scattered = shard = last = held = cast = replicated = waiting = parting = 0
    widest = 0
    parts = max(1, int(recipe.sharding.reshard_after_forward))
    base, adapter, own_dtype = recipe.quantised, recipe.adapter, not casts(recipe)
    compute, reduce = recipe.numerics.itemsize, recipe.storage.reduce_itemsize
    stores, fsdp2 = recipe.storage.precision.weights, recipe.sharding.name == "fsdp2"
    offloads, replicates = recipe.sharding.fsdp.cpu_offload, recipe.sharding.fsdp.replicas > 1
    # A flat gradient is of all that the flat parameter is of, frozen or not; accelerate makes trained linears units.
    apart = recipe.sharding.fsdp.wraps_adapters
    flat = recipe.sharding.name == "fsdp" and is_reached(weights, apart, adapter)
    zeros, how = 0, recipe.operators.kernels.float8
    for each in weights:
        weight, ranks = of_rank(each, recipe)
        if base is not None and not weight.trained and weight.quantised_by(base):
            first = next(iter(base.scheme.tensors(weight.rows, weight.columns).values()))
            gathered += ceil_div(first, ranks) * ranks * weight.stacked * weight.copies
            continue
        exact, used, stored = weight.elements * weight.copies, compute, stores
        elements = padded(weight, ranks) * weight.copies if fsdp2 else exact
        if how is not None and how.gathered and weight.linear and fits(weight.rows, weight.columns):
            used = LOW
        if weight.adapter and adapter:
            stored = adapter.itemsize
            used = weight.itemsize or stored if own_dtype else used
        one, before = elements // weight.copies * used, gathered - gathered // parts
        gathered += elements * used
        parting = max(parting, one // parts - before) if parts > 1 else 0
        if parts > 1:  # a gather of a backward reads the part that the forward left, and copies it all the same
            cast += elements // parts * used if used != stored and not offloads else 0
        else:
            cast += elements // ranks * used if used != stored else 0
            widest = max(widest, one if used != stored else 0)
            cast += elements // ranks * stored if offloads else 0
        if flat and (weight.idle or _is_replaced(weight, adapter)):
            zeros += exact * used
        if weight.trained or flat:
            used = max(used, compute) if how is not None else used  # gradients of float8 weights are as wide as theirs
            summed = reduce if reduce != compute else used
            last = exact * used if recipe.sharding.ranks > 1 else 0
            gradients += exact * used
            reduced += elements * summed
            scattered += elements // ranks * (summed + (stored if stored != summed else 0))
            held += elements // ranks * summed if stored != summed and replicates else 0
            waiting += exact * summed
            replicated += elements // ranks * summed if replicates else 0
            shard += elements // ranks * stored
    return Unit(
        gathered, gradients, reduced, scattered, shard, last, held, cast, replicated, waiting, parting, zeros, widest
    )


def _is_replaced(weight: Weight, adapter: Adapter | None) -> bool:
    """The frozen original beside a copy that is trained and used (``modules_to_save``)."""
    return adapter is not None and not weight.trained and weight.name in adapter.saved


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


def casts(recipe: Recipe) -> bool:
    """Whether units are gathered in the compute dtype, adapters of another too (MixedPrecisionPolicy.param_dtype)."""
    return recipe.storage.precision.mixed or recipe.sharding.fsdp.casts


def keeps_buffers(recipe: Recipe) -> bool:
    """Whether weights are cast for use and buffers are not: accelerate's FSDP1 casts them too (``buffer_dtype``)."""
    return gathers(recipe) and casts(recipe) and not (recipe.sharding.name == "fsdp" and recipe.sharding.fsdp.casts)


def used_adapter(recipe: Recipe) -> Adapter | None:
    """Adapters as modules see them: gathered in the compute dtype."""
    adapter = recipe.adapter
    if adapter is None or not gathers(recipe) or not casts(recipe):
        return adapter
    if recipe.sharding.name == "fsdp" and recipe.sharding.fsdp.wraps_adapters and recipe.sharding.fsdp.use_orig_params:
        # Each is a unit of its own: PEFT reads the dtype of what is sharded, and its hook gathers it in another.
        return adapter._replace(itemsize=recipe.numerics.itemsize, read_itemsize=adapter.itemsize)
    return adapter._replace(itemsize=recipe.numerics.itemsize, magnitude_itemsize=recipe.numerics.itemsize)


def layer_units(recipe: Recipe) -> list[Unit]:
    """A unit for each decoder layer."""
    of, spec = recipe.adapter, recipe.model
    return of_layers(spec, lambda each: unit_of([*marked(layer_weights(each, 1, of is None, of), each.frozen)], recipe))


def of_layers(spec: ModelSpec, unit: Callable[[Layer], Unit]) -> list[Unit]:
    """What ``unit`` makes of each layer, asked once of those that are one object (sliding and full in turn)."""
    known = {id(run.layer): unit(run.layer) for run in {id(run.layer): run for run in spec.runs}.values()}
    return [known[id(run.layer)] for run in spec.runs for _ in range(run.count)]


def gathered_layers(recipe: Recipe) -> tuple[int, ...]:
    """Gathered bytes of each layer; none where nothing is gathered."""
    return tuple(unit.gathered for unit in layer_units(recipe)) if gathers(recipe) else ()


def kept_part(recipe: Recipe) -> int:
    """What FSDP keeps gathered of a layer from forward to backward (see ``PassPlan.keeps_gathered``)."""
    if recipe.sharding.reshard_after_forward is False or recipe.sharding.fsdp.keeps_gathered:
        return 1
    return 0 if recipe.sharding.reshard_after_forward is True else recipe.sharding.reshard_after_forward


def casts_inputs(recipe: Recipe) -> bool:
    """Whether each unit casts what it is given to half precision (``MixedPrecisionPolicy``: cast_forward_inputs)."""
    return recipe.sharding.name == "fsdp2" and (recipe.storage.precision.mixed or recipe.sharding.fsdp.casts)


def casts_outputs(recipe: Recipe) -> bool:
    """Whether each unit casts what it gives back to half precision, as accelerate's policy has it."""
    return recipe.sharding.name == "fsdp2" and recipe.sharding.fsdp.casts


def gathers(recipe: Recipe) -> bool:
    """Whether FSDP gathers and reduces units of the model."""
    return recipe.in_units
