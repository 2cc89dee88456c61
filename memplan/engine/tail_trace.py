"""The tape of a pass's tail (final norm, head, loss): what it saves, and its peaks forward and backward."""

from functools import lru_cache
from typing import NamedTuple

from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.layers.moe.load_balancing_loss import all_logits
from memplan.engine.losses.heads import Head
from memplan.engine.losses.tail import casts_of, tail_forward
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.offloading import OFFLOADS
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tape.watched import NO_USES, Uses, Watched
from memplan.engine.traces import Alive, alive_now, input_of, peaks_of
from memplan.spec.model import ModelSpec
from memplan.spec.recompute import Recompute
from memplan.tables.styles import GradientMode


class TailTrace(NamedTuple):
    """Final norm, head and loss: the same figures, by 'final-norm', 'head' and 'loss'."""

    saved: Alive
    casts: int
    forward: dict[str, Alive]
    backward: dict[str, Alive]
    gradients: int
    head_gradient: int
    input_gradient: int
    host: int = 0
    outputs: int = 0
    """What the caller holds of the model's outputs until backward is done."""
    normed: int = 0
    """What is there when the head is called: what the final norm gives, and what it keeps."""
    uses: tuple[Uses, Uses] = NO_USES, NO_USES
    """When its modules run forward, and back, where weights are gathered module by module."""


def trace_tail(
    spec: ModelSpec,
    mode: Mode,
    rows: int,
    length: int,
    head: Head,
    grad: bool = True,
    gradients: GradientMode = "keep",
    input_needs_grad: bool = True,
) -> TailTrace:
    """Final norm, head and loss, forward and (with ``grad``) backward; the same object where only checkpointing or the
    attention differs, of which no tail reads anything."""
    mode = mode._replace(recompute=Recompute(), operators=mode.operators._replace(attention="sdpa"))
    return tail_trace(spec, mode, rows, length, head, grad, gradients if grad else "keep", input_needs_grad)


@lru_cache(maxsize=1024)
def tail_trace(
    spec: ModelSpec,
    mode: Mode,
    rows: int,
    length: int,
    head: Head,
    grad: bool,
    gradients: GradientMode,
    input_needs_grad: bool,
) -> TailTrace:
    """What ``trace_tail`` gives, once for what tails read."""
    kind = Watched if mode.saves_inputs else Tape
    tape = kind(mode.numerics.autocast, in_place=mode.in_place)
    tape.grad_enabled, tape.shared_casts = grad, mode.shared_casts

    tape.offload = OFFLOADS[mode.offload]() if mode.offload and grad else None
    p = Pass(tape, mode, rows, length)
    p.routers, normed = all_logits(p, spec), list[int]()

    def entering(hidden: Tensor) -> Tensor:
        normed.append(tape.live)
        return hidden

    p.entering = entering
    width = spec.hidden_size * spec.streams
    inputs = [input_of(tape, p, width, mode.residual_itemsize, input_needs_grad, "residual stream")]
    loss, held, whole = tail_forward(p, spec, head, rows, inputs)
    casts, forward, node = casts_of(tape), peaks_of(tape, "forward"), loss.node
    if "log" in forward:  # behind the model's own forward, which made the loss
        forward |= {"own-loss": forward["loss"], "loss": max(forward["loss"], forward["log"], key=lambda at: at.size)}
    del loss  # ``.backward()`` needs its node alone
    tape.leave_autocast()
    if tape.offload is not None:
        tape.offload.settle()
    host = tape.offload.host_bytes if tape.offload is not None else 0
    saved = alive_now(tape)
    if node is None:  # the loss may be the last that reads the head
        tape.used()
    uses = tape.uses() or NO_USES
    whole.clear()  # the trainer's ``compute_loss`` has returned, and with it went its ``logits``
    if node is None:
        held.clear()
        return TailTrace(saved, casts, forward, {}, 0, 0, 0, normed=normed[0], uses=(uses, NO_USES))
    tape.gradient_mode = gradients
    tape.peaks.clear()
    tape.await_others()
    tape.place = ("backward", "loss")  # its gradient is born while all that the tail has saved is there
    tape.backward(node, [tape.gradient((Dim("1", 1), ops.FP32))] + [None] * (node.outputs - 1))
    outputs = 0 if head.code.step_outputs else sum(each.storage.size for each in held if each.storage)
    held.clear()  # ``outputs``, where the caller named them through backward
    sizes = [grad.storage.size for grad in tape.gradients if grad.storage]
    head_trained = mode.trained and spec.head.name not in mode.frozen
    head_gradient = spec.head.parameters * mode.numerics.itemsize if head_trained else 0
    boundary = p.stream(width).elements * mode.residual_itemsize
    backward = peaks_of(tape, "backward")
    used = uses, tape.uses() or NO_USES
    tape.close()
    return TailTrace(
        saved, casts, forward, backward, sum(sizes), head_gradient, boundary, host, outputs, normed[0], used
    )
