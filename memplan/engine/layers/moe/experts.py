"""Mixtures of experts as programs on the tape: the router, routed experts in grouped matmuls, shared experts.
Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and V3, GLM-4-MoE, Ernie 4.5, GPT-OSS, Llama 4 and their kin.

``grouped_mm_experts_forward`` (transformers 5.23, integrations/moe.py): the default, whatever the dtype. torch's
``grouped_mm`` runs fp32 and fp16 matmuls one expert at a time, into an output of the same size.

Experts as modules of their own, one after another: transformers before 5 (4.48, models/mixtral/modeling_mixtral.py:
MixtralSparseMoeBlock.forward). For experts that are frozen; tokens are taken to go to all of them alike."""

from collections.abc import Callable
from functools import partial

from memplan.engine.layers.activations import activate
from memplan.engine.layers.lora import merged_stack, stack_sides
from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.moe.routing import route
from memplan.engine.layers.quantised_linear import unpacked
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.tensors import expert_ranks
from memplan.spec.parts import Bare, Experts, FeedForward, Linear


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


def mixture(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """Router, routed experts, and the shared ones beside them, in the order of the class."""
    assert spec.experts is not None
    tape = p.tape
    if spec.experts.routing.program == "noisy-mixer":  # the block, and then its router
        x = routing_ops.noise_in_place(tape, routing_ops.noise_in_place(tape, x))
    shared = shared_product(p, spec, x) if spec.shared and spec.shared_first else None
    choice = route(p, spec.experts, x)
    if spec.experts.routing.program == "scatter":
        return _every_expert(p, spec, x, choice.weights)
    if spec.linears:
        latent = project(p, x, spec.linears[0], "l", "latent inputs")
        latent = grouped(p, spec.experts, latent, choice.weights, choice.chosen)
        out = project(p, latent, spec.linears[1], "h", "feed-forward output")
        del latent  # rebound by the projection back
    elif p.mode.expert > 1 or p.mode.tensor > 1:
        from memplan.engine.layers.moe.dispatched import dispatched

        out = dispatched(p, spec.experts, x, choice.weights, choice.chosen)
    elif p.mode.orders_experts and spec.experts.gated and len(spec.experts.stacked) == 2:
        from memplan.engine.layers.moe.in_order import in_order

        out = in_order(p, spec.experts, x, choice.weights)
    elif p.mode.loops_experts:
        out = one_by_one(p, spec.experts, x, choice.weights)
    else:
        out = grouped(p, spec.experts, x, choice.weights, choice.chosen)
    if shared is not None and len(spec.shared) > 3:
        gate = ops.unary(tape, project(p, x, spec.shared[3], "1", "shared expert's gate"), "gate", saves="result")
        shared = ops.mul(tape, shared, gate, "shared experts")
        del gate  # a temporary of ``sigmoid(gate(x)) * shared_expert(x)`` (Qwen2MoeSparseMoeBlock.forward)
    if spec.shared and shared is None:
        shared = shared_product(p, spec, x)
    if shared is None:
        return out
    out = ops.add(tape, out, shared, "feed-forward output")
    return ops.scale(tape, out, "feed-forward output") if spec.shared_average else out


def shared_product(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """What every token visits: three linears; two, the first gate and up (Granite 4), or without gate (Nemotron-H)."""
    linears, tape = spec.shared, p.tape
    if spec.shared_limited:
        return limited_product(p, linears, x)
    if len(linears) > 2:
        return gated_product(p, linears, x)
    inner = project(p, x, linears[0], "Fs" if not spec.gated else "2Fs", "gate and up" if spec.gated else "up")
    if spec.gated:
        gate, up = ops.split(tape, inner, 2, p.dim("Fs", linears[1].inputs))
        product = ops.mul(tape, ops.unary(tape, gate, "activation"), up, "feed-forward product")
        del gate, up  # views: with a graph silu and mul hold the joint output (GraniteMoeHybridMLP.forward)
    else:
        product = activate(tape, spec.activation, inner)
    del inner
    return project(p, product, linears[1], "h", "shared experts")


def limited_product(p: Pass, linears: tuple[Linear, ...], x: Tensor) -> Tensor:
    """The same of gate and up clamped, which are locals until the end (DeepSeek-V4)."""
    tape = p.tape
    gate = ops.unary(tape, project(p, x, linears[0], "Fs", "gate"), "clamped gate")
    up = ops.unary(tape, project(p, x, linears[1], "Fs", "up"), "clamped up")
    product = ops.mul(tape, ops.unary(tape, gate, "activation"), up, "feed-forward product")
    out = project(p, product, linears[2], "h", "shared experts")
    del gate, up  # locals of DeepseekV4MLP.forward
    return out


def gated_product(p: Pass, linears: tuple[Linear, ...], x: Tensor) -> Tensor:
    """``down(act(gate(x)) * up(x))`` of experts that every token visits."""
    tape = p.tape
    product = ops.mul(
        tape,
        ops.unary(tape, project(p, x, linears[0], "Fs", "gate"), "activation"),
        project(p, x, linears[1], "Fs", "up"),
        "feed-forward product",
    )
    return project(p, product, linears[2], "h", "shared experts")


Read = Callable[[], Param]
"""A weight when the module reads it."""


def stacked(p: Pass, spec: Experts) -> tuple[list[Read], list[Param | None]]:
    """The weights of gate_up_proj and down_proj, and their biases; adapters are added where a weight is read."""
    ranks = {bare.name: rank for bare, rank in expert_ranks(p.mode.adapter, spec)} if p.mode.adapter else {}

    base = p.mode.quantised if p.mode.quantised is not None and p.mode.quantised.stacks else None

    def plain(bare: Bare) -> Param:
        if base is None:
            return p.param(bare.name, bare.parameters, p.mode.numerics.stack_itemsize)
        *_, inputs = bare.shape
        whole = Linear(name=bare.name, inputs=inputs, outputs=bare.parameters // inputs)
        return unpacked(p.tape, whole, base, "dequantised weights, saved")

    def read(bare: Bare) -> Read:
        if bare.name not in ranks:
            return partial(plain, bare)
        sides = stack_sides(p, bare.name, bare.shape, ranks[bare.name])

        def merged() -> Param:
            before = plain(bare)
            result = merged_stack(p, bare.name, bare.shape, sides)
            del before  # what ``baddbmm`` adds to
            return result

        return merged

    if len(spec.stacked) == 2:
        return [read(bare) for bare in spec.stacked], [None, None]
    biases = [p.param(bare.name, bare.parameters) for bare in spec.stacked[1::2]]
    return [read(bare) for bare in spec.stacked[::2]], [*biases]


def grouped(p: Pass, spec: Experts, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """Each token's row is copied once for each expert; rows lie in the order of their experts until the end."""
    tape, k = p.tape, spec.active
    hidden, chosen = x.dim.elements // p.tokens, p.dim("k", k)
    rows, width = p.dim("k·h", k * hidden), p.dim("k·F", k * spec.intermediate)
    reads, (gate_up_bias, down_bias) = stacked(p, spec)
    read_gate_up, read_down = [_local(p, read) for read in reads] if p.mode.summed > 1 else reads
    experts_sorted, order = routing_ops.indices(tape, chosen), routing_ops.indices(tape, chosen)
    inputs = routing_ops.gather_rows(tape, x, rows, "expert inputs", routing_ops.indices(tape, chosen))
    picked = routing_ops.gather_rows(tape, weights, chosen, "routing weights", order)
    counted = routing_ops.indices(tape, chosen, 4), routing_ops.indices(tape, Dim("E", spec.count), 4)
    both_dim = p.dim("k·2F", 2 * k * spec.intermediate) if spec.gated else width
    gate_up, bias = read_gate_up(), _bias(p, gate_up_bias, both_dim, experts_sorted)
    both = _product(p, inputs, gate_up, both_dim, "gate and up", bias)
    held = [both]
    del both  # ``proj_out = self._apply_gate(proj_out)`` rebinds it (integrations/moe.py)
    product = _activated(p, spec, held, width)
    down, bias = read_down(), _bias(p, down_bias, rows, experts_sorted)
    out = _product(p, product, down, rows, "expert outputs", bias)
    del product  # ``proj_out`` again, by the second ``_grouped_linear``
    weighted = ops.mul(tape, out, picked, "weighted expert outputs")
    back = routing_ops.indices(tape, chosen)
    weighted = routing_ops.gather_rows(tape, weighted, rows, "weighted expert outputs", back)
    result = routing_ops.sum_groups(tape, weighted, x.dim, "feed-forward output")
    del counted, bias  # ``tokens_per_expert``, ``offsets``, ``selected_biases``: locals of grouped_mm_experts_forward
    return ops.cast(tape, result, x.itemsize, "feed-forward output")


def _local(p: Pass, read: Read) -> Read:
    """The rank's part of a weight, taken when the module begins (transformers 5.24 distributed/parallel_utils.py:
    _use_local_dtensor_params), so that its gradient waits until all of the module has run back."""
    own = read()
    part = Param(p.tape, own.name, own.dim.elements, own.itemsize, trained=False)
    part.node, part.needs_grad = p.tape.node((own,), (), lambda t, g: g), own.needs_grad
    return lambda: part


def _bias(p: Pass, bias: Param | None, rows: Dim, index: Tensor) -> Tensor | None:
    """The bias of each row's expert."""
    return None if bias is None else routing_ops.gather_rows(p.tape, bias, rows, "expert biases", index)


def _product(p: Pass, x: Tensor, weight: Param, out: Dim, label: str, bias: Tensor | None) -> Tensor:
    result = routing_ops.grouped_linear(p.tape, x, weight, out, label)
    return result if bias is None else routing_ops.add_in_place(p.tape, result, bias)


def _activated(p: Pass, spec: Experts, held: list[Tensor], width: Dim) -> Tensor:
    """What goes into the second matmul of each expert."""
    if spec.gated:
        return (_limited if spec.limited else _clamped if spec.clamped else _gated)(p, held, width)
    product = activate(p.tape, spec.activation, held[0])
    held.clear()  # the caller's ``proj_out`` is rebound when the activation has returned
    return product


def _gated(p: Pass, held: list[Tensor], width: Dim) -> Tensor:
    """``act(gate) * up`` of both in one tensor, which the caller holds until the result is there."""
    gate, up = ops.split(p.tape, held[0], 2, width)
    product = ops.mul(p.tape, ops.unary(p.tape, gate, "activation"), up, "feed-forward product")
    held.clear()  # the caller's ``proj_out`` is rebound when _apply_gate has returned
    return product


def _limited(p: Pass, held: list[Tensor], width: Dim) -> Tensor:
    """``act(gate) * up`` of gate and up clamped (DeepSeek-V4)."""
    tape = p.tape
    gate, up = ops.split(tape, held[0], 2, width)
    gate = ops.unary(tape, gate, "clamped gate")
    up = ops.unary(tape, up, "clamped up")
    product = ops.mul(tape, ops.unary(tape, gate, "activation"), up, "feed-forward product")
    held.clear()
    return product


def _clamped(p: Pass, held: list[Tensor], width: Dim) -> Tensor:
    """``(up + 1) * gate * sigmoid(gate * alpha)`` of gate and up clamped, each every second column (GPT-OSS)."""
    tape = p.tape
    gate, up = (ops.view(tape, held[0], width, whole=False) for _ in range(2))
    gate = ops.unary(tape, gate, "clamped gate")
    up = ops.unary(tape, up, "clamped up")
    sigmoid = ops.unary(tape, ops.scale(tape, gate, "scaled gate"), "gate's sigmoid", saves="result")
    glu = ops.mul(tape, gate, sigmoid, "activation")
    del sigmoid  # a temporary of ``glu = gate * torch.sigmoid(gate * self.alpha)`` (GptOssExperts._apply_gate)
    product = ops.mul(tape, ops.scale(tape, up, "up + 1", shares_gradient=True), glu, "feed-forward product")
    held.clear()
    return product


def _every_expert(p: Pass, spec: FeedForward, x: Tensor, scores: Tensor) -> Tensor:
    """Llama 4: all tokens through all experts, scaled by their scores before, and summed over the experts."""
    tape, experts = p.tape, spec.experts
    assert experts is not None
    count, hidden = experts.count, x.dim.elements // p.tokens
    rows, width = p.dim("E·h", count * hidden), p.dim("E·F", count * experts.intermediate)
    wide = p.mode.numerics.stack_itemsize
    gate_up, down = (p.param(bare.name, bare.parameters, wide) for bare in experts.stacked)
    inputs = ops.copy(tape, x, "expert inputs", rows)
    inputs = ops.mul(tape, inputs, ops.copy(tape, scores, "router scores"), "scaled expert inputs")
    both = ops.linear(tape, inputs, gate_up, p.dim("E·2F", 2 * count * experts.intermediate), "gate and up")
    gate, up = ops.split(tape, both, 2, width)
    product = ops.mul(tape, up, ops.unary(tape, gate, "activation"), "feed-forward product")
    out = ops.linear(tape, product, down, rows, "expert outputs")
    del product, gate, up, both  # locals of Llama4TextExperts.forward: ``gate_up``, ``gate``, ``up``
    shared = gated_product(p, spec.shared, x)
    total = routing_ops.sum_groups(tape, out, x.dim, "feed-forward output")
    return routing_ops.add_in_place(tape, shared, total)
