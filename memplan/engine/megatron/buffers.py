"""Buffers that stay: the gathered input of the head, empty weight gradients, rotary tables, the batch, workspaces."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.engine.ledger import Ledger
from memplan.engine.megatron import head, te
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.states import dummy_gradients
from memplan.engine.megatron.weights import Share
from memplan.engine.overhead import enter_overhead
from memplan.spec.recipe import Recipe
from memplan.units import KiB, MiB

BATCH_BYTES = 8 + 8 + 4 + 8
"""Tokens, labels, loss mask and positions of each token (megatron/training/utils.py: get_batch_on_this_tp_rank)."""
TE_WORKSPACE = (32 * MiB + KiB, 4 * MiB)
"""Of TransformerEngine's own matrix products, from compute capability 9 on and below (cpp_extensions/gemm.py)."""
SCHEDULE = "megatron-core 0.14 pipeline_parallel/schedules.py: forward_backward_pipelining_without_interleaving"
STREAMS = 4
"""Streams of grouped products, each with a workspace."""


def enter_buffers(book: Ledger, recipe: Recipe, s: Shape, shares: Sequence[Share]) -> None:
    """Rows that are there over the whole step."""
    degrees = recipe.parallel
    if degrees.last and s.gathers:
        held = head.gathered_buffer(s)
        _whole(
            book,
            held.name,
            "buffers",
            held.bytes,
            held.template,
            held.factors,
            "Megatron's global memory buffer",
            head.OUTPUT,
        )
    if degrees.pipeline > 1 and not degrees.first and recipe.accumulation > 1:
        held = te.stream(s, "gradient that was sent to the stage before")
        _whole(
            book,
            held.name,
            "buffers",
            held.bytes,
            held.template,
            held.factors,
            "the schedule's variable, until the next backward",
            SCHEDULE,
        )
    elements = dummy_gradients(recipe, shares)
    _whole(
        book,
        "empty weight gradients",
        "buffers",
        elements * s.itemsize,
        "elements of every shape × bytes",
        (elements, s.itemsize),
        "autograd must be handed a gradient though the true one is in the buffer: one for each shape, kept",
        "TransformerEngine 2.11 pytorch/module/base.py: get_dummy_wgrad",
    )
    rotary = max((mixer.rotary_width for mixer in recipe.model.mixers), default=0)
    positions = recipe.sequence_length // degrees.context
    _whole(
        book,
        "rotary table",
        "buffers",
        positions * rotary * te.FP32,
        "positions·head_dim·4",
        (positions, rotary, te.FP32),
        "angles of every position, cached",
        "megatron-core 0.14 models/common/embeddings/rotary_pos_embedding.py",
    )
    if degrees.first or degrees.last:
        _whole(
            book, "batch", "batch", s.tokens * BATCH_BYTES, "T·(8 + 8 + 4 + 8)", (s.tokens, BATCH_BYTES),
            "tokens, labels, loss mask and positions", "Megatron-LM 23e00ed0 megatron/training/utils.py",
        )  # fmt: skip


def _whole(
    book: Ledger,
    name: str,
    category: str,
    size: int,
    template: str,
    numbers: tuple[int | float, ...],
    why: str,
    source: str,
) -> None:
    book.add(name, category, size, template=template, numbers=numbers, why=why, source=source)


def enter_surroundings(book: Ledger, recipe: Recipe) -> None:
    """Workspaces once the card is named, context and communicators."""
    enter_overhead(book, recipe)
    gpu = recipe.gpu
    if gpu is None or gpu.vendor != "nvidia":
        return
    large = gpu.architecture.split(".")[0] not in ("7", "8")
    size = TE_WORKSPACE[0 if large else 1]
    grouped = any(layer.experts is not None for layer in (run.layer for run in recipe.model.runs))
    count = 1 + (STREAMS if grouped else 0)
    book.add(
        "Transformer Engine's workspaces",
        "workspaces",
        size * count,
        template="workspaces × bytes",
        numbers=(count, size),
        why="of its own matrix products, beside torch's" + (", and of each stream of grouped ones" if grouped else ""),
        source="TransformerEngine 2.11 pytorch/cpp_extensions/gemm.py",
    )
