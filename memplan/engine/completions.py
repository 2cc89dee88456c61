"""Losses of completions alone: the head projects their positions, or the loss reads their part of the logits."""

from __future__ import annotations

from memplan.engine import ops
from memplan.engine.modules import Pass
from memplan.engine.tape import Tensor
from memplan.spec.model import ModelSpec


def project_completions(p: Pass, spec: ModelSpec, hidden: Tensor, length: int) -> tuple[Pass, Tensor]:
    """The last ``length`` positions of each row (``logits_to_keep``), and a pass over them alone.

    A product with a trained weight copies a slice of several rows (aten matmul: should_fold); a cast does so anyway.
    """
    if length >= p.length:
        return p, hidden
    tape, part = p.tape, Pass(p.tape, p.mode, p.rows, length)
    trained = p.mode.trained and spec.head.name not in p.mode.frozen
    hidden = ops.view(tape, hidden, part.dim("h", spec.head.inputs), whole=False)
    if trained and p.rows > 1 and tape.autocast in (0, hidden.itemsize):
        hidden = ops.copy(tape, hidden, "completions' hidden states")
    return part, hidden


def completions_of(p: Pass, logits: Tensor, length: int) -> tuple[Pass, Tensor]:
    """The logits of ``length`` positions of each row, a slice of all, and a pass over them alone."""
    if length >= p.length:
        return p, logits
    part = Pass(p.tape, p.mode, p.rows, length)
    return part, ops.view(p.tape, logits, part.dim("V", logits.dim.elements // p.tokens), whole=False)
