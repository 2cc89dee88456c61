"""Feed-forwards as programs on the tape: gated products, and routed experts."""

from __future__ import annotations

from memplan.engine import ops, routing_ops
from memplan.engine.modules import Pass, project
from memplan.engine.tape import Tensor
from memplan.spec.parts import Experts, FeedForward


def feed_forward(p: Pass, spec: FeedForward | None, x: Tensor) -> Tensor:
    """``down(act(gate(x)) * up(x))``, the two inner projections apart or fused; or the routed experts."""
    assert spec is not None
    if spec.experts:
        return experts(p, spec.experts, x)
    tape, width = p.tape, p.dim("F", spec.intermediate)
    if len(spec.linears) == 2:
        both = project(p, x, spec.linears[0], "2F", "gate and up")
        gate, up = ops.chunk(tape, both, 2, width)
        product = ops.mul(tape, up, ops.unary(tape, gate, "activation"), "feed-forward product")
        del gate, up
    else:
        product = ops.mul(
            tape,
            ops.unary(tape, project(p, x, spec.linears[0], "F", "gate"), "activation"),
            project(p, x, spec.linears[1], "F", "up"),
            "feed-forward product",
        )
    return project(p, product, spec.linears[-1], "h", "feed-forward output")


ROUTING_BYTES = {"mixtral": 40, "qwen3": 38}
"""Per token and chosen expert: weights, their normalisation, int64 indices, sort order (traced on transformers
5.23).
"""


def experts(p: Pass, spec: Experts, x: Tensor) -> Tensor:
    """Router and grouped products (``grouped_mm_experts_forward``): each token's row is copied once for each expert."""
    tape, k = p.tape, spec.active
    h = x.dim
    hidden = h.elements // p.tokens
    router = p.param(spec.router.name, spec.router.parameters)
    logits = ops.linear(tape, x, router, p.dim("E", spec.count), "router logits")
    probabilities = ops.softmax(tape, logits, "router probabilities")
    index = p.dim("k", k)
    scores = routing_ops.routing(tape, probabilities, index, ROUTING_BYTES[spec.style], x.itemsize)
    del logits, probabilities
    rows, width = p.dim("k·h", k * hidden), p.dim("k·F", k * spec.intermediate)
    gate_up, down = (p.param(bare.name, bare.parameters) for bare in spec.stacked)
    chosen = routing_ops.gather_rows(tape, x, rows, "expert inputs")
    both = routing_ops.grouped_linear(tape, chosen, gate_up, p.dim("k·2F", 2 * k * spec.intermediate), "gate and up")
    gate, up = ops.chunk(tape, both, 2, width)
    del both
    product = ops.mul(tape, ops.unary(tape, gate, "activation"), up, "feed-forward product")
    del gate, up
    out = routing_ops.grouped_linear(tape, product, down, rows, "expert outputs")
    del product
    weighted = ops.mul(tape, out, scores, "weighted expert outputs")
    weighted = routing_ops.gather_rows(tape, weighted, rows, "weighted expert outputs")
    return routing_ops.reduce(tape, weighted, h, "feed-forward output")
