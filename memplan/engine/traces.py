"""Tapes of one layer and of the tail (final norm, head, loss): what each saves, and its peaks forward and backward.

A model's step is put together from these in ``passes.py``: layers of one kind are traced once.

The layers of a pass that share more than the residual stream, as they were played together (``play/stacks.py``)."""

import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.layers.decoder_layer import decoder_layer, start_of
from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.layers.shared_inputs import ROUTER_LOGITS
from memplan.engine.losses.tail import casts_of
from memplan.engine.tape.graph import Frame, Leaf, Node, Tensor
from memplan.engine.tape.offloading import OFFLOADS
from memplan.engine.tape.tags import Dim, Log, Tag
from memplan.engine.tape.tape import Tape
from memplan.engine.tape.watched import NO_USES, Uses, Watched
from memplan.spec.layer import Layer
from memplan.spec.recompute import Recompute
from memplan.tables.styles import GradientMode, PassStyle

if TYPE_CHECKING:
    from memplan.spec.vision import Block

Tags = dict[Tag, int]


NO_EVENTS = Log()


class Alive:
    """Bytes alive at an instant of a tape; by tag only when somebody asks, since a search does not."""

    __slots__ = ("_index", "_log", "_tags", "size")

    def __init__(self, size: int, log: Log = NO_EVENTS, index: int = 0, tags: Tags | None = None) -> None:
        self.size, self._log, self._index, self._tags = size, log, index, tags

    @property
    def tags(self) -> Tags:
        """Bytes by tag."""
        if self._tags is None:
            self._tags = self._log.live_at(self._index)
        return self._tags


NOTHING = Alive(0)


class LayerTrace(NamedTuple):
    """One layer's tape, and figures of it alone; ``backward`` counts from its own gradients and saved bytes."""

    boundary: int
    """Its input: what a checkpoint keeps."""
    keeps_input: bool
    """Its nodes, or its checkpoint, hold the input itself."""
    saved: Alive
    """Alive after its forward: what its nodes hold, without its output."""
    casts: int
    """Autocast copies of its weights that no node holds: alive while autocast is open."""
    forward: Alive
    """The most within its forward: input, transients, what is saved so far."""
    backward: dict[str, Alive]
    """The most while the gradients of 'feed-forward' and 'attention' are made."""
    gradients: int
    """Weight gradients it leaves."""
    lingering: int = 0
    """Kept on the contexts of autograd functions: alive until the loss lets go of the graph."""
    host: int = 0
    """Saved tensors that wait on the host."""
    keeps_logits: bool = False
    """Its nodes hold what its router recorded."""
    uses: tuple[Uses, Uses] = NO_USES, NO_USES
    """When its modules run forward, and back, where weights are gathered module by module."""


def peaks_of(tape: Tape, phase: str) -> dict[str, Alive]:
    """The peak at each point of a phase, with the live set at that event."""
    return {
        point: Alive(size, tape.log, index)
        for (kind, point), (size, index) in tape.peaks.items()
        if kind == phase and point
    }


def alive_now(tape: Tape) -> Alive:
    """All that is alive."""
    return Alive(tape.live, tape.log, len(tape.log))


def _checkpoint(tape: Tape, frame: Frame | None, dim: Dim, itemsize: int, size: int) -> Alive:
    """What a checkpoint keeps: the layer's input, and what its functions keep where checkpointing does not reach."""
    tags = {Tag("activations", "checkpoints: the layer's input", dim.symbol, itemsize, dim.elements): size}
    tags = tags if size else {}
    kept = {
        "quantised linears": tape.context,
        "selective checkpointing": frame.policy.kept if frame and frame.policy else (),
    }
    for keeper, storages in kept.items():
        for storage in storages:
            tag = storage.tag._replace(label=f"{storage.tag.label}, kept by {keeper}")
            tags[tag] = tags.get(tag, 0) + storage.size
    return Alive(sum(tags.values()), tags=tags)


def input_of(tape: Tape, p: Pass, width: int, itemsize: int, needs_grad: bool, label: str) -> Tensor:
    """The hidden states that come in, as something that needs a gradient or not."""
    x = tape.new(p.stream(width), itemsize, label)
    node = Node(tape, [], (), lambda t, grads: ()) if needs_grad and tape.grad_enabled else None
    return Tensor(x.dim, itemsize, x.storage, node)


def trace_layer(
    layer: "Layer | Block",
    mode: Mode,
    rows: int,
    length: int,
    style: PassStyle,
    gradients: GradientMode = "keep",
    input_needs_grad: bool = True,
    to_the_end: bool = True,
) -> LayerTrace:
    """One layer, forward and backward; the same object where only that differs which no layer reads: which layers are
    checkpointed, what a checkpoint keeps where there is none, and how gradients arrive where none do.

    ``to_the_end``: its backward is followed, too."""
    again = mode.recompute
    recompute = Recompute(policy=again.policy if style == "checkpoint" else "", modules=again.modules)
    mode = mode if recompute == mode.recompute else mode._replace(recompute=recompute)
    gradients = gradients if to_the_end and style != "no-grad" else "keep"
    return layer_trace(layer, mode, rows, length, style, gradients, input_needs_grad, to_the_end)


@lru_cache(maxsize=1024)
def layer_trace(
    layer: Layer,
    mode: Mode,
    rows: int,
    length: int,
    style: PassStyle,
    gradients: GradientMode,
    input_needs_grad: bool,
    to_the_end: bool,
) -> LayerTrace:
    """What ``trace_layer`` gives, once for what layers read."""
    kind = Watched if mode.saves_inputs else Tape
    outgoing, tape = mode.residual_itemsize, kind(mode.numerics.autocast, in_place=mode.in_place)
    itemsize = mode.numerics.itemsize if layer.narrow_input else outgoing
    itemsize = (mode.numerics.autocast or itemsize) if layer.projected_input else itemsize
    tape.grad_enabled, tape.shared_casts = style in ("plain", "checkpoint"), mode.shared_casts
    frame = tape.start_hollow(mode.recompute.policy) if style == "checkpoint" else None
    away = OFFLOADS[mode.offload]() if mode.offload and style != "no-grad" else None
    if style == "plain":
        tape.offload = away
    p = Pass(tape, mode, rows, length)
    p.checkpointed = style == "checkpoint"
    x = input_of(tape, p, layer.width * layer.streams, itemsize, input_needs_grad, "residual stream")
    boundary, p.returned = x.storage.size if x.storage else 0, [] if style == "reentrant" else None
    x = Leaf(x) if layer.leaf_input else x
    y = decoder_layer(p, layer, x)
    tape.end_hollow(mode.operators.kernels.compiled)
    unread, p.returned = [(each.dim, each.itemsize) for each in p.returned or ()], None
    logits = p.shared.pop(ROUTER_LOGITS, None)
    recorded, read = weakref.ref(logits.storage) if logits and logits.storage else None, _read(mode, logits)
    del logits
    p.shared.clear()
    casts = casts_of(tape) + boundary * (style == "no-grad" and layer.leaf_input)  # its copy's graph holds the leaf
    forward = max(peaks_of(tape, "forward").values(), key=lambda alive: alive.size)
    uses, node, dim = tape.uses() or NO_USES, y.node, y.dim
    held = [x] if style == "checkpoint" and away is None else []
    watched = weakref.ref(x.storage) if x.storage else None
    del x, y  # ``hidden_states = decoder_layer(hidden_states, …)``: from here on what nodes saved lives (LlamaModel)
    keeps_input = style != "plain" or (watched is not None and watched() is not None)
    keeps_logits = recorded is not None and recorded() is not None
    tape.leave_autocast()
    casts -= casts_of(tape)
    if away:
        away.settle()
        away.host_bytes += boundary if style != "plain" else 0
        keeps_input = style == "plain" and watched is not None and watched() is not None
    lasts = sum(storage.size for storage in tape.context)
    saved = (
        alive_now(tape)
        if style == "plain"
        else _checkpoint(tape, frame, dim, itemsize, boundary if away is None else 0)
    )
    if node is None if style == "checkpoint" else style == "reentrant" and not input_needs_grad:
        saved, keeps_input = NOTHING, False  # no graph holds the checkpoint, nor the checkpoint its input
    if style == "no-grad":
        return LayerTrace(boundary, False, NOTHING, casts, forward, {}, 0, uses=(uses, NO_USES))
    kept = boundary, keeps_input, saved, casts, forward
    if not to_the_end:
        tape.close(node)
        return LayerTrace(*kept, {"": NOTHING} if node else {}, 0, uses=(uses, NO_USES))
    tape.category = "recomputation"
    if style == "reentrant":
        tape = kind(mode.numerics.autocast, category="recomputation", in_place=mode.in_place)
        p = Pass(tape, mode, rows, length)
        held = [input_of(tape, p, layer.width * layer.streams, itemsize, input_needs_grad, "checkpoints")]
        read = None
    start: list[Tensor | None] = [tape.gradient((dim, outgoing), "gradient of the residual stream")]
    if style == "reentrant":  # gradients of what nobody reads are zeros (CheckpointFunction.backward)
        zeros, p.returned = [tape.gradient(each, "gradients of unread outputs") for each in unread], []
        held += [decoder_layer(p, layer, held[0]), *p.returned, *filter(None, start), *zeros]
        node = start_of(tape, [held[1], *p.returned])
        start += zeros[: node.outputs - 1] if node else []
        p.shared.clear()
        tape.leave_autocast()
    if frame is not None:
        width = layer.width * layer.streams
        again = held.copy()

        def back() -> Tensor:
            x = again.pop() if again else input_of(tape, p, width, itemsize, input_needs_grad, "checkpoints")
            if mode.offload == "trl":  # ``bwd_tensor_stash``: the copy waits until the next one is read
                held.append(x)
            return x

        frame.run = lambda hollow: recompute(hollow, p, layer, back())
    host = away.host_bytes if away is not None else 0
    if node is None:
        return LayerTrace(*kept, {}, 0, host=host, uses=(uses, NO_USES))
    tape.gradient_mode = gradients
    recomputed = peaks_of(tape, "forward") if style == "reentrant" else {}
    tape.peaks.clear()
    tape.await_others()
    above: dict[Node, list[Tensor | None]] = {}
    if read is not None:
        above[read[0]] = [Tensor(*read[1], None) if mode.router.stacked else tape.gradient(read[1], "router logits")]
    tape.backward(node, start, above)
    backward, used = peaks_of(tape, "backward"), tape.uses() or NO_USES
    for worst in (recomputed or peaks_of(tape, "recompute")).values():
        if worst.size > backward.get("feed-forward", NOTHING).size:
            backward["feed-forward"] = worst
    if "projections" in backward:  # the last part of the attention's
        backward["attention"] = max(backward["attention"], backward["projections"], key=lambda alive: alive.size)
    held.clear()  # CheckpointFunction.backward returns: ``inputs``, ``detached_inputs``, ``outputs`` are gone
    left = sum(grad.storage.size for grad in tape.gradients if grad.storage)
    tape.close()
    return LayerTrace(*kept, backward, left, lasts, host, keeps_logits, (uses, used))


def _read(mode: Mode, logits: Tensor | None) -> tuple[Node, tuple[Dim, int]] | None:
    """Where the load-balancing loss, which runs back before the layers do, leaves the gradient of recorded logits."""
    if logits is None or logits.node is None or mode.router.how != "read":
        return None
    return logits.node, (logits.dim, logits.itemsize)


def recompute(frame: Frame, p: Pass, layer: Layer, x: Tensor) -> None:
    """The forward again, from the checkpointed input, under an autocast of its own."""
    tape = p.tape
    tape.reaches(frame.nodes[-1])
    tape.shared_casts = ""
    tape.refill(frame, lambda: decoder_layer(p, layer, x))
    p.shared.clear()
    tape.leave_autocast()


FORWARD, TAIL, TURN, BACKWARD, REDUCED, AFTER, END = "forward", "tail", "turn", "backward", "reduced", "after", "end"
"""Moments: the most in a layer's forward; while norm, head and loss run; while they run back; the most in a layer's
backward; when it has run back; the most while what was made before the first layer runs back; when all has."""
OUTSIDE = -1
Moment = tuple[str, int, str]
"""Which, of which layer, and at which point of its backward."""


class Shared(NamedTuple):
    """What lives beyond a layer, from one moment to another, by their places among all."""

    tag: Tag
    size: int
    first: int
    """-1: from the step before."""
    last: int
    """The number of moments: to the next step."""


class Stack(NamedTuple):
    """The layers of a pass, and what crosses them."""

    layers: list[LayerTrace]
    reached: bool
    """A gradient comes down to the last layer's output."""
    shared: tuple[Shared, ...]
    places: dict[Moment, int]
    after: Alive
    """The most while what was made before the first layer runs back, beyond what is shared."""
    gradients: int
    """Of weights outside the layers."""
    lasting: int
    """Held by the model's forward alone, to its end."""
    sums: list[int]
    """What is shared at each moment."""

    def beside(self, moment: Moment) -> int:
        """What is shared at a moment."""
        return self.sums[self.places[moment]]
