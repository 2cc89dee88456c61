"""Experts that other ranks hold: rows of tokens are sent there and come back, as torchtitan's expert parallelism does.

torchtitan 0.2.2 models/moe/moe.py (MoE.forward, _run_experts_grouped_mm), models/moe/utils.py (_permute, _unpermute),
distributed/expert_parallel.py (ExpertParallel, ExpertTensorParallel, ReordererSequenceParallel). Each rank's experts
receive the mean. Ranks that share products send a part of the tokens each where they hold whole experts, and all of
them otherwise; the rows of all tokens are there again for the sum. Letters, per token: k experts of a token, h hidden,
F an expert's width; N rows of tokens, k of each token."""

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Experts
from memplan.units import ceil_div

ALIGNED = 8
"""Rows that each expert's tokens are filled up to a multiple of (TOKEN_GROUP_ALIGN_SIZE_M)."""


def dispatched(p: Pass, spec: Experts, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """``MoE.forward`` behind its router, whose scores weigh what comes back."""
    tape, k = p.tape, spec.active
    hidden, mine = x.dim.elements // p.tokens, ceil_div(p.tokens, p.mode.slices) * k
    chosen, sent, rows = Dim("T·k", mine), Dim("T·k·h", mine * hidden), p.dim("k·h", k * hidden)
    scores = ops.cast(tape, weights, ops.FP32, "routing weights")
    order, sorted_scores = routing_ops.indices(tape, chosen), tape.new(chosen, ops.FP32, "routing weights")
    inputs = routing_ops.gather_rows(tape, x, sent, "expert inputs", routing_ops.indices(tape, chosen))
    outputs = _experts(p, spec, inputs, hidden)
    zeros = tape.new(rows, outputs.itemsize, "expert outputs")
    unsorted = _put(tape, outputs, rows, order, zeros)
    del zeros
    wide = ops.cast(tape, unsorted, ops.FP32, "expert outputs in fp32")
    del unsorted  # ``routed_output_unsorted.float()`` is an argument; the name is rebound by the reshape alone
    result = _weighed(tape, scores, wide, Dim("T·h", x.dim.elements))
    out = ops.cast(tape, result, x.itemsize, "feed-forward output")
    del wide, result, inputs, outputs, sorted_scores, order  # locals of MoE.forward
    return out


def _experts(p: Pass, spec: Experts, inputs: Tensor, hidden: int) -> Tensor:
    """``ExpertParallel`` around ``GroupedExperts``: there, filled up and in order of the experts, and back."""
    tape, count = p.tape, spec.count // p.mode.expert
    rows, padding = inputs.dim, count * ALIGNED
    tokens = rows.elements // hidden + padding
    padded, width = Dim("N·h", tokens * hidden), Dim("N·F", tokens * spec.intermediate)
    more = Dim("N·h", rows.elements + hidden)
    order = routing_ops.indices(tape, Dim("N", tokens), 4)
    arrived = _exchange(p, inputs, "rows from other ranks")
    joined = ops.concatenate(tape, [arrived], more, "rows from other ranks")
    sorted_rows = routing_ops.gather_rows(tape, joined, padded, "expert inputs", order)
    del joined, arrived  # rebound by ``_permute`` and by ``_token_dispatch``
    gate_up, down = (bare.parameters * p.mode.slices // p.mode.expert for bare in spec.stacked)
    first, second, third = (
        p.param(name, size)
        for name, size in (
            (spec.stacked[0].name + ".w1", gate_up // 2),
            (spec.stacked[1].name, down),
            (spec.stacked[0].name + ".w3", gate_up - gate_up // 2),
        )
    )
    gate = ops.unary(tape, routing_ops.grouped_linear(tape, sorted_rows, first, width, "gate"), "activation")
    product = ops.mul(
        tape, gate, routing_ops.grouped_linear(tape, sorted_rows, third, width, "up"), "feed-forward product"
    )
    del gate  # ``h`` is rebound
    out = routing_ops.grouped_linear(tape, product, second, padded, "expert outputs")
    del product, sorted_rows  # ``h`` and ``x`` end with _run_experts_grouped_mm
    empty = tape.new(more, out.itemsize, "expert outputs")
    placed = _put(tape, out, more, order, empty)
    del out, empty
    back = ops.view(tape, placed, rows, whole=False)
    del placed  # ``routed_output`` is rebound by the exchange
    return _exchange(p, back, "rows back from other ranks")


def _exchange(p: Pass, x: Tensor, label: str) -> Tensor:
    """``all_to_all_single_autograd``: a buffer of what comes, and on the way back one of its gradient."""
    size = x.dim, x.itemsize
    if p.mode.expert == 1:
        return x
    return p.tape.result("all-to-all", *size, label, p.tape.node((x,), (), lambda t, g: (t.gradient(size),)))


def _put(tape: Tape, x: Tensor, rows: Dim, index: Tensor, into: Tensor) -> Tensor:
    """``into[index] = x``, in place: the gradient is gathered, beside that of what was there."""
    size = x.dim, x.itemsize
    node = tape.node((x,), (index,), lambda t, g: (t.gradient(size),))
    return Tensor(rows, x.itemsize, into.storage, node)


def _weighed(tape: Tape, scores: Tensor, wide: Tensor, out: Dim) -> Tensor:
    """``torch.bmm(top_scores, rows.float())``, which saves both."""
    sizes = ((scores.dim, ops.FP32), (wide.dim, ops.FP32))

    def backward(t: Tape, grads: Grads) -> Grads:
        return [t.gradient(size) for size in sizes]

    return tape.result("bmm", out, ops.FP32, "feed-forward output", tape.node((scores, wide), (scores, wide), backward))
