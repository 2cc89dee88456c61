"""What heads without logits are asked for, and a piece of a loss that is checkpointed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from memplan.engine.layers.modules import Pass
from memplan.engine.programs import Programs
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Node, Param, Storage, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Linear


class Scored(NamedTuple):
    """What a fused head is asked for."""

    tokens: int
    """Scored: completions alone."""
    rows: int
    """Sequences of the pass."""
    reference_itemsize: int = 0
    """Element size of reference hidden states and head that the loss reads too; 0 without."""
    pairs: bool = True
    """Rows are chosen and rejected halves."""
    fp32_outputs: bool = False
    """The model's outputs are converted to fp32 before the loss."""
    linear: Linear | None = None
    """The head itself, for a program that calls it."""
    caller: list[Tensor] | None = None
    """Where a program leaves what its caller holds until backward is done."""
    free: int = 0
    """Bytes of the card that weights leave, where the program makes its chunks by that; 0: not known."""


Program = Callable[[Pass, Tensor, Param, Scored], Tensor]

FUSED_PROGRAMS: Programs[Program] = Programs("fused")
"""Heads that never make all of the logits."""
CALLING = frozenset(
    {"tiled", "chunked-lm-head", "linear-chunks", "output-chunks", "compiled-linear-chunks", "compiled-output-chunks"}
)
"""Of these, those that call the head's module for each chunk."""


def sizes(p: Pass, hidden: Tensor, weight: Param) -> tuple[int, int]:
    """h and V."""
    width = hidden.dim.elements // p.tokens
    return width, weight.dim.elements // width


def _leaf(tape: Tape, x: Tensor, found: list[Tensor | None], slot: int) -> Tensor:
    """x, cut off from its graph; its gradients are summed into ``found``."""

    def catch(t: Tape, grads: list[Tensor | None]) -> tuple[()]:
        found[slot] = grads[0]
        return ()

    if isinstance(x, Param):
        leaf: Tensor = Param(tape, x.name, x.dim.elements, x.itemsize, trained=False)
    else:
        leaf = Tensor(x.dim, x.itemsize, x.storage)
    if x.needs_grad:
        leaf.node, leaf.needs_grad = Node(tape, [], (), catch), True
    return leaf


def _hold(start: Node, storages: Sequence[Storage | None]) -> None:
    """Every node of a graph that saves something holds these too."""
    seen, stack = {start}, [start]
    while stack:
        node = stack.pop()
        if node.saved:
            node.saved, node.packed = [*node.saved, *storages], True
        for edge in node.edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])


def made_in_forward(tape: Tape, inputs: Sequence[Tensor], made: Sequence[Tensor | None]) -> Tensor:
    """The loss of a function that has made its gradients in forward, and hands them on."""
    return tape.new(Dim("1", 1), ops.FP32, "loss", tape.node(inputs, made, lambda t, g: made))


def checkpointed(tape: Tape, run: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """``torch.utils.checkpoint`` around a piece of the loss: keeps its inputs, and runs it again in backward.

    The inputs live until the last of the saved tensors made again has been used."""
    enabled, tape.grad_enabled = tape.grad_enabled, False
    out = run(inputs)
    tape.grad_enabled = enabled
    kept, dim, itemsize = list(inputs), out.dim, out.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        found: list[Tensor | None] = [None] * len(kept)
        again = run([_leaf(t, x, found, slot) for slot, x in enumerate(kept)])
        t.leave_autocast()  # recompute_fn's ``with device_autocast_ctx`` ends
        inner = again.node
        del again  # _checkpoint_without_reentrant's recomputation: its graph's node alone is run back
        if inner is not None:
            _hold(inner, [x.storage for x in kept])
            kept.clear()  # the frame of the unpack hook lets go; nodes made again hold the inputs from here on
            if node is not None:
                node.saved = ()
            t.backward(inner, list(grads))
        return found

    node = tape.node(inputs, inputs, backward)
    return Tensor(dim, itemsize, out.storage, node)
