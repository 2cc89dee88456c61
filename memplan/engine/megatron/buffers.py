"""Buffers that stay: the gathered input of the head, empty weight gradients, rotary tables, the batch, workspaces."""

from collections.abc import Sequence

from memplan.engine.ledger import Ledger
from memplan.engine.megatron import head, te
from memplan.engine.megatron.scores import instants_of_scores
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.stages import in_flight
from memplan.engine.megatron.states import dummy_shapes
from memplan.engine.megatron.weights import Share
from memplan.engine.overhead import enter_overhead
from memplan.spec.recipe import Recipe
from memplan.units import KiB, MiB, ceil_div

BATCH_BYTES = 8 + 8 + 4 + 8
"""Tokens, labels, loss mask and positions of each token (megatron/training/utils.py: get_batch_on_this_tp_rank)."""
TE_WORKSPACE = (32 * MiB + KiB, 4 * MiB)
"""Of TransformerEngine's own matmuls, from compute capability 9 on and below (cpp_extensions/gemm.py)."""
SCHEDULE = "megatron-core 0.14 pipeline_parallel/schedules.py: forward_backward_pipelining_without_interleaving"
STREAMS = 4
"""Streams of grouped matmuls, each with a workspace."""


def enter_buffers(ledger: Ledger, recipe: Recipe, s: Shape, shares: Sequence[Share]) -> None:
    """Rows that are there over the whole step."""
    degrees = recipe.parallel
    most = s._replace(tokens=max(s.tokens, ceil_div(recipe.batch.scoring, degrees.context)))
    if degrees.last and s.gathers and head.trains(recipe, recipe.model.head.name):
        held = head.gathered_buffer(most)
        ledger.add(held.name, "buffers", held.bytes).formula(held.template, *held.factors).since(
            "Megatron's global memory buffer", head.OUTPUT
        )
    _enter_boundaries(ledger, recipe, s)
    elements = sum(dummy_shapes(recipe, shares))
    ledger.add("empty weight gradients", "buffers", elements * s.itemsize).told(elements, s.itemsize)
    _enter_rotary(ledger, recipe)
    if degrees.first or degrees.last:
        ledger.add("batch", "batch", most.tokens * BATCH_BYTES).told(most.tokens, BATCH_BYTES)
    if recipe.megatron.create_attention_mask_in_dataloader:
        rows, length = recipe.rows, recipe.batch.sequence_length
        ledger.add("attention mask", "batch", rows * length * length // degrees.context).told(
            rows, length, degrees.context
        )


def _enter_boundaries(ledger: Ledger, recipe: Recipe, s: Shape) -> None:
    """Gradients that the schedule's variables name one round longer: what was sent to the stage before until the next
    backward, what came from the stage behind over the next forward."""
    degrees = recipe.parallel
    if degrees.pipeline == 1:
        return
    if recipe.loss.code.stacked and not degrees.first:
        _enter_stacked(ledger, recipe, s)
    if recipe.batch.accumulation == 1:
        return
    both = 2 if recipe.loss.code.stacked else 1
    held = te.stream(s, "gradient that was sent to the stage before")
    held = held._replace(template=f"{both}·{held.template}", factors=(both, *held.factors)) if both > 1 else held
    if not degrees.first:
        why = "the schedule's variable, until the next backward"
        ledger.add(held.name, "buffers", held.bytes).formula(held.template, *held.factors).since(why, SCHEDULE)
    if not degrees.last:
        update = ledger.schedule[len(instants_of_scores(recipe)) :]
        ledger.add("gradient that came from the stage behind", "buffers", held.bytes, *update[:2]).formula(
            held.template, *held.factors
        ).since("the schedule's variable, over the next forward", SCHEDULE)


def _enter_stacked(ledger: Ledger, recipe: Recipe, s: Shape) -> None:
    """Policy and reference pass between stages as one tensor: what the policy's first layer keeps is a view of it."""
    waiting = in_flight(recipe.parallel, recipe.batch.accumulation, 0)
    held = te.stream(s, "the reference's half of what was received")
    ledger.add(held.name, "activations", held.bytes * waiting, ledger.schedule[0], ledger.schedule[-2]).formula(
        f"micro-batches·{held.template}", waiting, *held.factors
    ).since(
        "one tensor with the policy's half, which is saved",
        "MindSpeed-LLM tasks/posttrain/dpo: actual_micro_batch_size, four times micro_batch_size",
    )


def _enter_rotary(ledger: Ledger, recipe: Recipe) -> None:
    """Angles of every position in fp32, once; latent attention keeps them, and cosines and sines, for each layer."""
    positions = max(recipe.batch.sequence_length, recipe.batch.scoring) // recipe.parallel.context
    width = max((mixer.rotary_width for mixer in recipe.model.mixers), default=0)
    latent = any(mixer.kind == "latent" for mixer in recipe.model.mixers)
    tables = ceil_div(recipe.model.num_layers, recipe.parallel.pipeline) if latent else 1
    e = te.FP32 + (2 * recipe.storage.precision.weights if latent else 0)
    ledger.add("rotary tables" if latent else "rotary table", "buffers", tables * positions * width * e).formula(
        "tables·positions·width·bytes", tables, positions, width, e
    ).since(
        "cached, by each layer's own module" if latent else "angles of every position, cached",
        "megatron-core 0.14 models/common/embeddings/rotary_pos_embedding.py, yarn_rotary_pos_embedding.py",
    )


def enter_surroundings(ledger: Ledger, recipe: Recipe) -> None:
    """Workspaces once the card is named, context and communicators."""
    enter_overhead(ledger, recipe)
    gpu = recipe.hardware.gpu
    if gpu is None or gpu.vendor != "nvidia":
        return
    large = gpu.architecture.split(".")[0] not in ("7", "8")
    size = TE_WORKSPACE[0 if large else 1]
    grouped = any(layer.experts is not None for layer in (run.layer for run in recipe.model.runs))
    count = 1 + (STREAMS if grouped else 0)
    ledger.add("Transformer Engine's workspaces", "workspaces", size * count).formula(
        "workspaces × bytes", count, size
    ).since(
        "of its own matmuls, beside torch's" + (", and of each stream of grouped ones" if grouped else ""),
        "TransformerEngine 2.11 pytorch/cpp_extensions/gemm.py",
    )
