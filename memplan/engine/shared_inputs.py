"""What a layer reads beside the residual stream and does not own: tables of relative positions.

Each is made once for all layers of a stack. On a layer's tape it has a place in the graph and no bytes; its gradient is
added, out of place, to the one that the layers above have left.
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.engine import ops
from memplan.engine.modules import Mode, Pass
from memplan.engine.tags import Dim
from memplan.engine.tape import Node, Tape, Tensor
from memplan.spec.encoders import DisentangledAttention
from memplan.spec.model import Layer

RELATIVE = "relative positions"


class SharedInput(NamedTuple):
    """A tensor that all layers of a stack read."""

    name: str
    dim: Dim
    itemsize: int
    needs_grad: bool


def shared_inputs(layer: Layer, mode: Mode) -> list[SharedInput]:
    """What this layer reads of others."""
    mixer = layer.mixer
    if not isinstance(mixer, DisentangledAttention) or not mixer.rows:
        return []
    itemsize = ops.FP32 if mode.autocast and mixer.normed else mode.weight_itemsize
    trained = mode.trained and not {"rel_embeddings", "encoder.LayerNorm"} <= mode.frozen
    return [SharedInput(RELATIVE, Dim("rows·h", mixer.rows * layer.width), itemsize, trained)]


def lend(tape: Tape, p: Pass, inputs: list[SharedInput]) -> dict[Node, SharedInput]:
    """Put them into ``p.shared``, and say where in the graph their gradients arrive."""
    places = {}
    for each in inputs:
        nothing = tape.new(Dim(each.dim.symbol, 0), each.itemsize, each.name)
        node = Node(tape, [], (), lambda t, grads: ()) if each.needs_grad and tape.grad_enabled else None
        p.shared[each.name] = Tensor(each.dim, each.itemsize, nothing.storage, node)
        if node is not None:
            places[node] = each
    return places


def gradients_above(tape: Tape, places: dict[Node, SharedInput]) -> dict[Node, list[Tensor | None]]:
    """The gradients that the layers above have left for them."""
    return {
        node: [tape.gradient((each.dim, each.itemsize), f"gradient of {each.name}")] for node, each in places.items()
    }
