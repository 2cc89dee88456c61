"""Experts whose rows lie in their order, each projection a matmul of its own, as prime-rl runs them.

PrimeIntellect-ai/prime-rl@559b447 trainer/models/layers/moe.py (MoE.forward, _run_experts_grouped_mm), and
lora/multi_moe.py (MultiLoRAGroupedExperts): adapters are products beside each projection, not added to its weight. The
scores multiply in fp32 what comes back. Letters, per token: k experts of a token, h hidden, F an expert's width."""

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import expert_ranks
from memplan.spec.parts import Bare, Experts

FAMILIES = frozenset(
    ["afmoe", "glm4_moe", "glm_moe_dsa", "laguna", "minimax_m2", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe"]
)
"""Whose classes are prime-rl's own; others' are transformers'."""


def in_order(p: Pass, spec: Experts, x: Tensor, weights: Tensor) -> Tensor:
    """``MoE.forward`` behind its router."""
    tape, k = p.tape, spec.active
    chosen, rows = p.dim("k", k), p.dim("k·h", k * (x.dim.elements // p.tokens))
    scores = ops.cast(tape, weights, ops.FP32, "routing weights")
    order = routing_ops.indices(tape, chosen)
    scores = routing_ops.gather_rows(tape, scores, chosen, "routing weights", order)
    inputs = routing_ops.gather_rows(tape, x, rows, "expert inputs", order)
    out = _experts(p, spec, inputs, rows)
    del inputs  # a local of _run_routed_experts, like ``routed_output``, which is rebound
    wide = ops.cast(tape, out, ops.FP32, "expert outputs in fp32")
    del out
    weighted = ops.mul(tape, wide, scores, "weighted expert outputs in fp32")
    del wide  # a temporary of ``(routed_output.to(float32) * scores).to(x.dtype)``
    narrow = ops.cast(tape, weighted, x.itemsize, "weighted expert outputs")
    del weighted
    size = narrow.dim, narrow.itemsize
    zeros = tape.new(x.dim, x.itemsize, "feed-forward output")
    node = tape.node((narrow,), (order,), lambda t, g: (t.gradient(size),))
    result = tape.new(x.dim, x.itemsize, "feed-forward output", node)  # ``out.scatter_add(…)``
    del zeros, narrow
    return result


def _experts(p: Pass, spec: Experts, x: Tensor, rows: Dim) -> Tensor:
    """Gate, up and down; what has a name is there until the module has returned."""
    tape, width = p.tape, p.dim("k·F", spec.active * spec.intermediate)
    both, last = spec.stacked
    names: list[Tensor] = []
    gate = _product(p, spec, x, both, "w1", width, names)
    up = _product(p, spec, x, both, "w3", width, names)
    product = ops.mul(tape, ops.unary(tape, gate, "activation"), up, "feed-forward product")
    del gate, up  # without adapters ``h`` is rebound
    return _product(p, spec, product, last, "", rows, names)


def _product(p: Pass, spec: Experts, x: Tensor, stack: Bare, half: str, out: Dim, names: list[Tensor]) -> Tensor:
    """``base + scaling * lora``, each a grouped matmul of the same rows. ``half``: of a stack that spec has as one."""
    tape, adapter = p.tape, p.mode.adapter
    name, parts = f"{stack.name}.{half}" if half else stack.name, 2 if half else 1
    base = routing_ops.grouped_linear(tape, x, p.param(name, stack.parameters // parts), out, "expert products")
    ranks = dict(expert_ranks(adapter, spec)) if adapter else {}
    if adapter is None or stack not in ranks:
        return base
    *_, outputs, inputs = stack.shape
    wide = ranks[stack] // parts * spec.count
    first = p.adapter(name + ".lora_A", wide * inputs, adapter.itemsize)
    second = p.adapter(name + ".lora_B", outputs // parts * wide, adapter.itemsize)
    low = routing_ops.grouped_linear(tape, x, first, p.dim("k·r", spec.active * ranks[stack] // parts), "rank-r rows")
    high = routing_ops.grouped_linear(tape, low, second, out, "adapter products")
    del low  # a local of _run_lora_grouped_mm
    result = ops.add(tape, base, ops.scale(tape, high, "adapter products"), "sums with adapters")
    names += [base, high, result]
    return result
