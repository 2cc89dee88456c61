"""What FSDP1 leaves of wrapping a model: a shard of each flat parameter, in memory that was made for more.

torch 2.13 distributed/fsdp/_init_utils.py (``_init_param_handle_from_module``: a unit is moved to the card, broadcast,
put together, sharded, before the next one), _flat_param.py (``shard``), csrc/distributed/c10d/comm.cpp
(``broadcast_coalesced``), ProcessGroupNCCL.cpp (``recordStream``); accelerate 1.15 accelerator.py (``prepare_model``:
shards of what is trained are cast to fp32 when all are wrapped, the root first)."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from memplan.engine.allocator.replay import DONE, ELSEWHERE
from memplan.engine.parallel.fsdp1.flat_parameters import flattens
from memplan.engine.parallel.fsdp2.root import parts_of
from memplan.engine.parallel.fsdp2.units import in_flat, upcasts
from memplan.engine.parallel.sharding import held
from memplan.engine.play.sharding import LAUNCHES
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight, layer_weights, marked
from memplan.spec.recipe import Recipe
from memplan.units import MiB, ceil_div

BUCKET_BYTES = 250 * MiB
"""``PARAM_BROADCAST_BUCKET_SIZE``; two are under way at a time."""
SENDING = 4
"""The stream of these broadcasts."""


class Loaded(NamedTuple):
    """One unit before it is wrapped."""

    sizes: list[int]
    """Bytes of each of its tensors."""
    beside: list[int]
    """Of what stays whole on every rank: scales of a quantised base."""
    widened: int = 1
    """By how much the shard grows when it is cast."""

    buckets: int = 1
    """In which it is sent."""
    launches: int = 2
    """Kernels and copies on the stream that computes: buckets of several tensors are put together and copied out of,
    then the flat parameter is made, and its shard is cloned."""


def wraps(recipe: Recipe) -> bool:
    """FSDP1 makes flat parameters of a model that is loaded before, on the card."""
    return flattens(recipe)


def wrapped(recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> list[Tensor]:
    """The shards of all units, and what is beside them."""
    units, ranks, offload = list(_units(recipe, weights)), recipe.sharding.ranks, recipe.sharding.fsdp.cpu_offload
    beside = [_new(tape, size, "quantisation state") for unit in units for size in unit.beside]
    sent, there = recipe.moments.loading.sent, deque[list[Tensor]]()
    if recipe.quantised is not None and not sent:
        there += [_whole(tape, unit) for unit in units]
    shards, launched = list[Tensor](), deque[Loaded]()
    for unit in units:
        if sent:
            _wait(tape, launched)
            launched.append(unit)
        shard = _sharded(tape, unit, there.popleft() if there else _whole(tape, unit), ranks, sent)
        if not offload:
            shards.append(shard)
        del shard
    if sent:
        tape.synchronise()
    if offload:
        return beside
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
    adapter, apart = recipe.adapter, recipe.sharding.fsdp.wraps_adapters
    stored = max(held(recipe).stored_itemsize(recipe, one) for one in weights)
    widened = 1
    for one in weights:
        if base is not None and not one.trained and not one.adapter and one.quantised_by(base):
            for _ in range(one.stacked):
                first, *rest = base.scheme.tensors(one.rows, one.columns).values()
                sizes.append(first)
                beside += rest
            continue
        later = recipe.adapter is None or (upcasts(recipe, one) and in_flat(one._replace(trained=True), apart, adapter))
        itemsize = recipe.numerics.itemsize if later else held(recipe).stored_itemsize(recipe, one)
        widened = max(widened, stored // itemsize) if later else widened
        sizes.append(one.elements * itemsize)
    buckets = _buckets(sizes)
    return Loaded(
        sizes, beside, widened, len(buckets), 2 + sum(1 + len(bucket) for bucket in buckets if len(bucket) > 1)
    )


def _new(tape: PlayTape, size: int, label: str) -> Tensor:
    return tape.new(Dim("n", size), 1, label, category="parameters")


def _whole(tape: PlayTape, unit: Loaded) -> list[Tensor]:
    return [_new(tape, size, "weights before they are sharded") for size in unit.sizes]


def _wait(tape: PlayTape, launched: deque[Loaded]) -> None:
    """The first rank waits for its copies from the host; others launch what their stream takes before they come."""
    tape.mark(f"{DONE}{SENDING}")
    while sum(unit.launches for unit in launched) > LAUNCHES:
        launched.popleft()
    tape.mark(f"{ELSEWHERE}{DONE}{SENDING} {sum(unit.buckets for unit in launched)}")


def _sharded(tape: PlayTape, unit: Loaded, whole: list[Tensor], ranks: int, sent: bool) -> Tensor:
    sizes, at, under_way = unit.sizes, 0, list[Tensor]()
    for bucket in _buckets(sizes):
        under_way.append(_new(tape, sum(bucket), "broadcast bucket") if len(bucket) > 1 else whole[at])
        at += len(bucket)
    while under_way:
        if sent:
            tape.record(under_way[0], SENDING)
        del under_way[0]
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
