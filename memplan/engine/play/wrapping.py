"""What FSDP1 leaves of wrapping a model: a shard of each flat parameter, in memory that was made for more.

torch 2.13 distributed/fsdp/_init_utils.py (``_init_param_handle_from_module``: a unit is moved to the card, broadcast,
put together, sharded, before the next one), _flat_param.py (``shard``), csrc/distributed/c10d/comm.cpp
(``broadcast_coalesced``); accelerate 1.15 accelerator.py (``prepare_model``: shards of what is trained are cast to fp32
when all are wrapped, the root first).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from memplan.engine.parallel.fsdp1.flat_parameters import flattens
from memplan.engine.parallel.fsdp2.root import parts_of
from memplan.engine.parallel.fsdp2.units import in_flat
from memplan.engine.parallel.sharding import held
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tensors import Weight, layer_weights, marked
from memplan.spec.recipe import Recipe
from memplan.units import MiB, ceil_div

BUCKET_BYTES = 250 * MiB
"""``PARAM_BROADCAST_BUCKET_SIZE``; two are under way at a time."""


class Loaded(NamedTuple):
    """One unit before it is wrapped."""

    sizes: list[int]
    """Bytes of each of its tensors."""
    beside: list[int]
    """Of what stays whole on every rank: scales of a quantised base."""
    widened: int = 1
    """By how much the shard grows when it is cast."""


def wraps(recipe: Recipe) -> bool:
    """FSDP1 makes flat parameters of a model that is loaded before, on the card."""
    return flattens(recipe) and not recipe.sharding.fsdp.cpu_offload


def wrapped(recipe: Recipe, tape: Tape, weights: list[Weight]) -> list[Tensor]:
    """The shards of all units, and what is beside them."""
    units, ranks = list(_units(recipe, weights)), recipe.sharding.ranks
    beside = [_new(tape, size, "quantisation state") for unit in units for size in unit.beside]
    shards = [_sharded(tape, unit, ranks) for unit in units]
    for i in (len(shards) - 1, *range(len(shards) - 1)):
        if units[i].widened > 1:
            shards[i] = _new(tape, shards[i].dim.elements * units[i].widened, "flat shard")
    return shards + beside


def _units(recipe: Recipe, weights: list[Weight]) -> Iterator[Loaded]:
    """In the order in which they are wrapped: adapters that are units before their layer, the root last."""
    adapter = recipe.adapter
    for run in recipe.model.runs:
        layer = list(marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen))
        for _ in range(run.count):
            yield from _of_module(recipe, layer)
    for part in parts_of(recipe, weights)[:3]:
        yield from _of_module(recipe, part)


def _of_module(recipe: Recipe, weights: list[Weight]) -> Iterator[Loaded]:
    adapter, apart = recipe.adapter, recipe.sharding.fsdp.wraps_adapters
    single = [one._replace(copies=1) for one in weights for _ in range(one.copies)]
    alone = [one for one in single if one.trained and adapter and not in_flat(one, apart, adapter)]
    whole = [one for one in single if one not in alone]
    for group in (*([one] for one in alone), whole):
        if group:
            yield _loaded(recipe, group)


def _loaded(recipe: Recipe, weights: list[Weight]) -> Loaded:
    base, sizes, beside = recipe.quantised, list[int](), list[int]()
    stored = max(held(recipe).stored_itemsize(recipe, one) for one in weights)
    widened = 1
    for one in weights:
        if base is not None and not one.trained and not one.adapter and one.quantised_by(base):
            for _ in range(one.stacked):
                first, *rest = base.scheme.tensors(one.rows, one.columns).values()
                sizes.append(first)
                beside += rest
            continue
        itemsize = recipe.numerics.itemsize if recipe.adapter is None else held(recipe).stored_itemsize(recipe, one)
        widened = max(widened, stored // itemsize) if recipe.adapter is None else 1
        sizes.append(one.elements * itemsize)
    return Loaded(sizes, beside, widened)


def _new(tape: Tape, size: int, label: str) -> Tensor:
    return tape.new(Dim("n", size), 1, label, category="parameters")


def _sharded(tape: Tape, unit: Loaded, ranks: int) -> Tensor:
    sizes = unit.sizes
    whole = [_new(tape, size, "weights before they are sharded") for size in sizes]
    under_way = [_new(tape, sum(bucket), "broadcast bucket") for bucket in _buckets(sizes) if len(bucket) > 1]
    under_way.clear()
    flat = _new(tape, sum(sizes), "flat parameter before it is sharded")
    shard = _new(tape, ceil_div(sum(sizes), ranks), "flat shard")
    del whole, flat
    return shard


def _buckets(sizes: list[int]) -> list[list[int]]:
    """``compute_bucket_assignment_by_size``: full once it has reached the size."""
    found: list[list[int]] = [[]]
    for size in sizes:
        if sum(found[-1]) >= BUCKET_BYTES:
            found.append([])
        found[-1].append(size)
    return found
