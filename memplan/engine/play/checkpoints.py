"""What a checkpoint does when its layer runs back: the layer once more, and, of a reentrant one, a graph within."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.layers.decoder_layer import decoder_layer
from memplan.engine.layers.shared_inputs import ROUTER_LOGITS
from memplan.engine.tape.graph import Frame, Node, Storage, Tensor
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer

if TYPE_CHECKING:
    from memplan.engine.play.model import PassRun


def catching(tape: Tape, found: list[Tensor | None], i: int, storage: Storage | None) -> Node:
    """A leaf of a checkpoint's graph, whose gradient goes into a place of ``found``; it keeps both, as a detached input
    does, as long as something names the graph."""
    held = [storage]

    def catch(_: Tape, caught: list[Tensor | None]) -> tuple[()]:
        grad = caught.pop()
        if grad is not None and grad.storage is not None and grad.storage.size >= 2 * grad.dim.elements * grad.itemsize:
            grad = tape.gradient(grad)  # of a part of another: ``AccumulateGrad`` clones what is not dense
        found[i] = grad
        held.append(grad.storage if grad else None)
        return ()

    node = Node(tape, [], (), catch)
    node.places = held
    return node


class Again:
    """A checkpoint's recomputation: the layer's forward from its input, under an autocast of its own."""

    def __init__(self, run: PassRun, layer: Layer) -> None:
        self.run, self.p, self.layer = run, run.p, layer
        self.closures, run.tape.closures = run.tape.closures, []
        self.mode, self.scope, self.block, self.shared = run.p.mode, run.p.scope, run.p.block, run.p.shared

    def __call__(self, frame: Frame) -> None:
        """Run it, where the frame's first node is about to run back."""
        p, tape = self.p, self.run.tape
        tape.reaches(frame.nodes[-1])
        self.closures.clear()
        outer = p.mode, p.scope, p.block, p.shared, tape.category, tape.autocast
        p.mode, p.scope, p.block, p.shared = self.mode, self.scope, self.block, self.run.seen(self.scope, self.shared)
        tape.category = "recomputation"
        tape.autocast = self.mode.numerics.autocast
        p.checkpointed = True
        x = self.run.back(frame.held[0])
        if self.mode.offload == "trl":  # ``bwd_tensor_stash``: the copy waits until the next one is read
            frame.held[0] = x
        tape.refill(frame, lambda: decoder_layer(p, self.layer, x))
        p.checkpointed = False
        p.shared.pop(ROUTER_LOGITS, None)
        tape.leave_autocast()
        p.mode, p.scope, p.block, p.shared, tape.category, tape.autocast = outer
