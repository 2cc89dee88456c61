"""Losses of completions alone: the head projects their positions, or the loss reads their part of the logits."""

from __future__ import annotations

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tape import Tape
from memplan.spec.model import ModelSpec


def project_completions(p: Pass, spec: ModelSpec, hidden: Tensor, length: int) -> tuple[Pass, Tensor]:
    """The last ``length`` positions of each row (``logits_to_keep``), and a pass over them alone.

    A product with a trained weight copies a slice of several rows (aten matmul: should_fold); a cast does so anyway.
    """
    if length >= p.length:
        return p, hidden
    tape, part = p.tape, p.part(p.rows, length)
    trained = p.mode.trained and spec.head.name not in p.mode.frozen
    hidden = ops.view(tape, hidden, part.dim("h", spec.head.inputs), whole=False)
    if trained and p.rows > 1 and tape.autocast in (0, hidden.itemsize):
        hidden = ops.copy(tape, hidden, "completions' hidden states")
    return part, hidden


def completions_of(p: Pass, logits: Tensor, length: int, divided: bool = False) -> tuple[Pass, Tensor]:
    """The logits of ``length`` positions of each row, a slice of all, and a pass over them alone.

    ``divided``: by the temperature, in place. The gradient of a view that was written to goes through a copy of the
    whole one, a clone of the slice and the slice's own (torch/csrc/autograd: CopySlices).
    """
    if length >= p.length:
        return p, logits
    tape, part = p.tape, p.part(p.rows, length)
    whole, dim, itemsize = logits.dim, part.dim("V", logits.dim.elements // p.tokens), logits.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        copied = t.gradient((whole, itemsize))
        sides = t.gradient((dim, itemsize)), t.gradient((dim, itemsize))
        del sides  # the slice's clone and own gradient are copied into ``result`` (CopySlices::apply)
        return (copied,)

    if divided:
        logits = Tensor(whole, itemsize, logits.storage, tape.node((logits,), (), backward))
    return part, ops.view(tape, logits, dim, whole=False)
