"""Pipeline stages: which layers each has, and how many micro-batches wait in it at the fullest moment.

megatron-core 0.14 transformer/transformer_block.py: get_num_layers_to_build; pipeline_parallel/schedules.py:
get_pp_rank_microbatches."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, groupby
from typing import NamedTuple

from memplan.spec.layer import Layer
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel, rows


class Chunk(NamedTuple):
    """A run of equal layers of one virtual stage."""

    layer: Layer
    layers: int
    in_flight: int
    """Micro-batches whose activations it holds when its rank holds the most."""
    recomputed: bool = False
    mtp: bool = False
    """Layers of multi-token prediction, behind all others."""


def layers_of_chunk(layers: int, degrees: Parallel, settings: Megatron, stage: int, virtual: int) -> int:
    """Layers of a chunk: equal shares, or as the first and the last stage were given theirs."""
    if settings.pipeline_model_parallel_layout:
        return rows(settings.pipeline_model_parallel_layout)[virtual * degrees.pipeline + stage].count("t")
    stages, first, last = (
        degrees.pipeline,
        settings.num_layers_in_first_pipeline_stage,
        settings.num_layers_in_last_pipeline_stage,
    )
    if first or last:
        given = (first > 0) + (last > 0)
        rest = (layers - first - last) // (stages - given) if stages > given else 0
        of_stage = first if first and stage == 0 else last if last and stage == stages - 1 else rest
    else:
        extra = settings.account_for_embedding_in_pipeline_split + settings.account_for_loss_in_pipeline_split
        of_stage = (layers + extra) // stages
    count = of_stage // degrees.virtual
    count -= settings.account_for_embedding_in_pipeline_split and stage == 0 and virtual == 0
    count -= settings.account_for_loss_in_pipeline_split and stage == stages - 1 and virtual == degrees.virtual - 1
    return count


def own_layers(layers: int, degrees: Parallel, settings: Megatron) -> tuple[int, ...]:
    """Layers of a rank's chunks, each with those of the chunks before."""
    own = (layers_of_chunk(layers, degrees, settings, degrees.stage, each) for each in range(degrees.virtual))
    return tuple(accumulate(own))


def warm_up(degrees: Parallel) -> int:
    """Forwards of chunks before the first that a backward follows at once (schedules.py)."""
    behind = degrees.pipeline - degrees.stage - 1
    return behind if degrees.virtual == 1 else 2 * behind + (degrees.virtual - 1) * degrees.pipeline


BESIDE_WARM_UP = 3
"""Micro-batches that are played beside those that warm the pipeline up, where a rank has one chunk: all others are like
them. Of several chunks, all take their turns once, with as many micro-batches as the pipeline has stages."""


def schedule(degrees: Parallel, micro_batches: int) -> tuple[int, list[int]]:
    """Forwards that warm up, and the chunk of each in order; backward goes through them in the same order of turns."""
    stages, chunks, warm = degrees.pipeline, degrees.virtual, warm_up(degrees)
    turns = stages * chunks
    most = warm + BESIDE_WARM_UP if chunks == 1 else -(-(warm + turns) // turns) * turns
    total = min(micro_batches * chunks, most)
    return min(warm, total), [number % turns // stages for number in range(total)]


def in_flight(degrees: Parallel, micro_batches: int, virtual: int) -> int:
    """Micro-batches of one chunk that went forward and not back, when the first goes back.

    1F1B: min(m, stages − stage). Interleaved: (stages − stage − 1)·2 + (chunks − 1)·stages forwards of chunks come
    before the first backward, and one more."""
    stages, chunks = degrees.pipeline, degrees.virtual
    if stages == 1:
        return 1
    forwards = min(micro_batches * chunks, warm_up(degrees) + 1)
    whole, rest = divmod(forwards, stages * chunks)
    return whole * stages + min(stages, max(0, rest - virtual * stages))


@lru_cache(maxsize=256)
def _starts(layers: int, degrees: Parallel, settings: Megatron) -> tuple[int, ...]:
    """Layers before each chunk, chunk 0 of every stage first; then all of them."""
    counts = (
        layers_of_chunk(layers, degrees, settings, stage, virtual)
        for virtual in range(degrees.virtual)
        for stage in range(degrees.pipeline)
    )
    return tuple(accumulate(counts, initial=0))


@lru_cache(maxsize=1024)
def chunks_of(
    spec: ModelSpec, degrees: Parallel, settings: Megatron, micro_batches: int, full: bool
) -> tuple[Chunk, ...]:
    """The layers of a stage, in order, those that full recomputation makes again apart.

    Chunk c of stage s comes after chunks 0 to c of the stages before, and chunks 0 to c − 1 of those behind."""
    return tuple(_chunks(spec, degrees, settings, micro_batches, full))


def _chunks(spec: ModelSpec, degrees: Parallel, settings: Megatron, micro_batches: int, full: bool) -> Iterator[Chunk]:
    layers, starts = tuple(spec.layers()), _starts(spec.num_layers, degrees._replace(stage=0), settings)
    uniform = settings.recompute_method == "uniform"
    for virtual in range(degrees.virtual):
        at = virtual * degrees.pipeline + degrees.stage
        before, count = starts[at], starts[at + 1] - starts[at]
        again = count if uniform else min(count, settings.recompute_num_layers)
        waiting = in_flight(degrees, micro_batches, virtual)
        mine = [(layer, full and n < again) for n, layer in enumerate(layers[before : before + count])]
        for (layer, made), run in groupby(mine, key=lambda pair: pair):
            yield Chunk(layer, len(list(run)), waiting, made)
    if settings.mtp_num_layers and degrees.last:
        yield Chunk(layers[-1], settings.mtp_num_layers, waiting, full, mtp=True)
