"""The tower of a pass, traced piece by piece: patch embedding, blocks, projector and scatter; its peaks and what stays.

Equal blocks are traced once (``traces.trace_layer``). The tower runs before the language model's layers, and its
backward after theirs, while the gradient of the embedded sequence waits."""

from functools import lru_cache, partial
from typing import NamedTuple

from memplan.engine.layers.modules import Pass
from memplan.engine.layers.vision.tower_ends import Piece, TowerPlan, front, passes, start, tail
from memplan.engine.layers.vision.vit_block import block_mask, keeps_mask, rotary_tables
from memplan.engine.pass_plan import TowerTrace
from memplan.engine.traces import LayerTrace, trace_layer

CAPTURED = ("llava", "anyres")
"""Projections whose model asks the tower for hidden states of its blocks."""


def blocks(plan: TowerPlan, first: Piece) -> tuple[list[LayerTrace], bool]:
    """A trace for each block, and whether a gradient comes down to the last one's output."""
    p, _, _ = passes(plan, partial(Pass, start(plan)))
    traces: list[LayerTrace] = []
    mode, needs = plan.vision_mode, first.reached or plan.style == "no-grad"
    narrow = mode.quantised is not None and mode.residual_itemsize > first.itemsize
    for run in plan.tower.runs:
        arguments = (mode, p.rows, p.length, plan.style, plan.gradients)
        left = run.count
        while left and (not needs or (narrow and not traces)):
            block = run.block.but(narrow_input=True) if narrow and not traces else run.block
            traces.append(trace_layer(block, *arguments, input_needs_grad=needs))
            needs, left = needs or bool(traces[-1].backward), left - 1
        traces += [trace_layer(run.block, *arguments)] * left
    return traces, needs


class Stretch(NamedTuple):
    """A tower's pass piece by piece, in bytes."""

    plan: TowerPlan
    first: Piece
    layers: list[LayerTrace]
    last: Piece
    reached: bool
    before: list[int]
    """Saved below each block."""
    saved: int
    """Saved by the front and by the blocks that are read."""
    beyond: int
    """Held of those behind."""
    end: int
    """The most in the projector, with what is held beside it."""
    embedded: int
    """The embedded sequence, or its gradient."""
    leaf: int
    """The embedding's output, where adapters make it need a gradient."""
    shared: int
    """Tables and masks, in forward."""
    kept: int
    """What of them stays until the tower has run back."""

    @property
    def beside(self) -> int:
        """Held beside every block in forward."""
        return self.first.locals + self.embedded


@lru_cache(maxsize=256)
def stretch_of(plan: TowerPlan) -> Stretch:
    """Front, blocks and projector of a pass."""
    first = front(plan)
    layers, reached = blocks(plan, first)
    last = tail(plan, reached and plan.style != "no-grad")
    used = plan.tower.used_blocks
    embedded = plan.rows * plan.length * plan.hidden_size * plan.mode.residual_itemsize
    saved, beyond, before = first.saved + first.casts, 0, []
    for i, layer in enumerate(layers):
        before.append(saved)
        if i < used:
            saved += layer.saved.size + layer.casts
        else:
            beyond += layer.saved.size + layer.boundary
    if beyond and layers[used].keeps_input:
        beyond -= layers[used].boundary  # the states that are read
    if plan.style == "no-grad" and plan.tower.projection in CAPTURED:
        beyond += sum(layer.boundary for layer in layers)
    shared, mask = rotary_tables(plan), block_mask(plan)
    kept = (shared + mask * keeps_mask(plan)) * any(layer.backward for layer in layers[:used])
    leaf = embedded if plan.leaf and plan.style != "no-grad" else 0
    end = saved + beyond + last.forward + first.locals
    return Stretch(plan, first, layers, last, reached, before, saved, beyond, end, embedded, leaf, shared + mask, kept)


def copies_in(layer: LayerTrace) -> int:
    """Autocast's copies of weights that its nodes hold."""
    return sum(size for tag, size in layer.saved.tags.items() if tag.category == "autocast_weights")


@lru_cache(maxsize=256)
def trace_tower(plan: TowerPlan) -> TowerTrace:
    """The tower of a pass."""
    got = stretch_of(plan)
    first, layers, last, used = got.first, got.layers, got.last, plan.tower.used_blocks
    plain, grad = plan.style == "plain", plan.style != "no-grad"
    most = max(first.forward + got.embedded, got.end)
    for before, layer in zip(got.before, layers, strict=True):
        most = max(most, before + layer.forward.size + got.beside)
    alone, gradients = got.saved + last.backward, last.gradients
    worst, keep = alone, plan.gradients == "keep"
    for i in reversed(range(used)):
        if layers[i].backward:
            inside = got.before[i] + got.embedded + max(alive.size for alive in layers[i].backward.values())
            alone, worst = max(alone, inside), max(worst, inside + gradients * keep)
        gradients += layers[i].gradients
    ends = first.backward + got.embedded
    alone, worst = max(alone, ends), max(worst, ends + gradients * keep)
    gradients += first.gradients
    trains = last.reached or first.reached or got.reached
    copies = first.casts + sum(layer.casts for layer in layers[:used])
    beside = got.beyond * plan.tower.in_outputs  # states and graphs of blocks that nobody reads
    held, more = last.locals + got.beyond - beside, got.kept + got.leaf
    unread = layers[used:] if plain else ()  # whose graphs hold their copies, where they have some
    idle = sum(layer.casts + (0 if plan.tower.in_outputs else copies_in(layer)) for layer in unread)
    everything = got.saved + got.kept * (trains and grad) - copies + last.saved + got.leaf
    outer = last.outputs + beside + idle
    if not trains:
        return TowerTrace(most + got.shared, everything, held, outer, 0, gradients, trains, copies=copies)
    return TowerTrace(most + got.shared, everything, held, outer, worst + more, gradients, trains, alone + more, copies)
