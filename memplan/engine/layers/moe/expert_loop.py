"""Experts as modules of their own, one after another: transformers before 5 (4.48, models/mixtral/modeling_mixtral.py:
MixtralSparseMoeBlock.forward). For experts that are frozen; tokens are taken to go to all of them alike."""

from memplan.engine.layers.modules import Pass, project
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Experts, Linear

FAMILIES = frozenset(["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
"""Whose classes of transformers 4 loop over experts."""


def one_by_one(p: Pass, spec: Experts, x: Tensor, weights: Tensor) -> Tensor:
    """Rows of an expert are gathered, put through its three linears, weighted, and added to the result in place."""
    tape, count, hidden = p.tape, spec.count, x.dim.elements // p.tokens
    own = p.part(1, max(1, p.tokens * spec.active // count))
    first, second, last = (
        Linear(name=name, inputs=inputs, outputs=outputs)
        for name, inputs, outputs in (
            ("w1", hidden, spec.intermediate),
            ("w3", hidden, spec.intermediate),
            ("w2", spec.intermediate, hidden),
        )
    )
    result = tape.new(x.dim, x.itemsize, "feed-forward output")
    mask = tape.new(p.dim("k·E", spec.active * count), 8, "mask of experts")
    for _ in range(count):
        places = routing_ops.indices(tape, own.dim("1", 1)), routing_ops.indices(tape, own.dim("1", 1))
        rows = routing_ops.gather_rows(tape, x, own.dim("h", hidden), "expert inputs", places[1])
        product = ops.mul(
            tape,
            ops.unary(tape, project(own, rows, first, "F", "gate"), "activation"),
            project(own, rows, second, "F", "up"),
            "feed-forward product",
        )
        made = project(own, product, last, "h", "expert outputs")
        del product
        picked = routing_ops.gather_rows(tape, weights, own.dim("1", 1), "routing weights", places[0])
        weighted = ops.cast(tape, ops.mul(tape, made, picked, "weighted expert outputs"), x.itemsize, "expert outputs")
        del made, picked
        result = _index_add(tape, result, weighted, places[1])
    del mask, rows, weighted
    return result


def _index_add(tape: Tape, x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """``x.index_add_(0, index, rows)``: x's gradient is handed on, that of the rows is gathered from it."""
    size = rows.dim, rows.itemsize
    node = tape.node((x, rows), (index,), lambda t, g: (g[0], t.gradient(size)))
    return Tensor(x.dim, x.itemsize, x.storage, node)
