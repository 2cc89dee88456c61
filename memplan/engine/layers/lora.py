"""LoRA and DoRA beside a linear, as PEFT 0.21 computes them (tuners/lora/layer.py, bnb.py, dora.py, variants.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.engine.layers.quantised_linear import dequantise
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.groups import Quantised
from memplan.spec.lora import EMBEDDING, Adapter
from memplan.spec.parts import Linear

if TYPE_CHECKING:
    from memplan.engine.layers.modules import Pass


def adapted(
    p: Pass, x: Tensor, base_result: list[Tensor], linear: Linear, out: Dim, adapter: Adapter, base: Quantised | None
) -> Tensor:
    """``result + lora_B(lora_A(dropout(x))) * scaling``, in the adapters' dtype, then back to the result's.

    x is cast to lora_A's dtype, one copy for each module; over bitsandbytes' linears only where autocast does not.
    ``base``: the format of the linear's own weight, which the head has not."""
    result = base_result.pop()
    tape, itemsize = p.tape, result.itemsize
    bnb = base is not None and base.scheme.product.startswith("bnb")
    keeps = bnb and tape.autocast > 0
    read, crossed = adapter.read_itemsize or adapter.itemsize, adapter.crossed and not keeps
    source = x if keeps else ops.cast(tape, x, read, "adapter inputs")
    source = ops.copy(tape, x, "adapter inputs") if crossed and source is x else source
    if adapter.dora:
        total = _dora(p, source, result, linear, out, adapter, base)
    else:
        rank = adapter.rank_of(linear.name)
        lora_a = p.adapter(linear.name + ".lora_A", linear.inputs * rank, adapter.itemsize)
        dropped = ops.dropout(tape, source) if adapter.dropout else source
        if adapter.read_itemsize and not tape.autocast:  # FSDP casts the inputs of its units
            dropped = ops.cast(tape, dropped, adapter.itemsize, "adapter inputs")
        low = ops.linear(tape, dropped, lora_a, p.dim("r", rank), "adapter rank-r outputs")
        # temporaries of ``result + lora_B(lora_A(dropout(x))) * scaling`` (PEFT lora/layer.py: Linear.forward)
        del dropped
        lora_b = p.adapter(linear.name + ".lora_B", rank * linear.outputs, adapter.itemsize)
        bias = p.adapter(linear.name + ".lora_B.bias", linear.outputs, adapter.itemsize) if adapter.lora_bias else None
        high = ops.linear(tape, low, lora_b, out, "adapter outputs", bias)
        del low  # lora_A's output: the node of lora_B alone holds it
        scaled = ops.scale(tape, high, "adapter outputs")
        del high  # the product of the same line before it is scaled
        if bnb and not keeps:
            scaled = ops.cast(tape, scaled, itemsize, "adapter outputs")
        mixed = crossed and not (adapter.read_itemsize or tape.autocast)  # bf16 and fp16 are promoted to fp32
        total = ops.add(tape, result, scaled, "adapter sums", ops.FP32 * mixed)
        del scaled  # ``result = result + …``: the summand is gone, and ``result`` before it is rebound
    del result
    return total if keeps else ops.cast(tape, total, itemsize, "adapter sums")


def cloned(tape: Tape, result: Tensor, base: Quantised | None) -> Tensor:
    """The result that PEFT adds to: of some formats a clone, for which the base's own is let go of."""
    return ops.copy(tape, result, "cloned results") if base is not None and base.scheme.clones else result


def adapted_embedding(p: Pass, result: Tensor, vocabulary: int, scaled: bool) -> Tensor:
    """``result + embedding(A.T)(ids) @ B.T * scaling`` beside an embedding's ``result`` of T × h, in its dtype. Dropout
    is left out; ``scaled``: the class multiplies its output by a number of its own, and so does PEFT its branch's.

    The gradient of A is V × r, transposed: the engine copies it into the layout of A (``AccumulateGrad``)."""
    tape, adapter, itemsize = p.tape, p.mode.adapter, result.itemsize
    assert adapter is not None
    rank, own, width = adapter.rank_of(EMBEDDING), adapter.itemsize, result.dim.elements // p.tokens
    lora_a = p.adapter(EMBEDDING + ".lora_A", rank * vocabulary, own)
    lora_b = p.adapter(EMBEDDING + ".lora_B", width * rank, own)
    size = lora_a.dim

    def backward(t: Tape, grads: Grads) -> Grads:
        dense = t.new(size, own, "weight gradients", category="gradients")
        copied = t.new(size, own, "weight gradients", category="gradients")
        del dense  # cloned into the parameter's layout (accumulate_grad.h: clone_obey_contract)
        return (copied,)

    low = tape.new(p.dim("r", rank), own, "adapter rank-r outputs", tape.node((lora_a,), (), backward))
    high = ops.linear(tape, low, lora_b, result.dim, "adapter outputs")
    del low  # ``after_A``: with a graph its product with embedding_B holds it (lora/layer.py: Embedding.forward)
    for _ in range(1 + scaled):
        high = ops.scale(tape, high, "adapter outputs")
    return ops.cast(tape, ops.add(tape, result, high, "adapter sums"), itemsize, "adapter sums")


def merged_rows(p: Pass, name: str, elements: int, width: int, *, again: bool = False, cast: bool = False) -> Param:
    """``W.index_copy(rows)``: a whole copy of a table with those rows in it that are trained (PEFT's
    ``TrainableTokensLayer``). Its gradient is as large, of which the rows are picked.

    ``again``: a second table of the same rows, whose gradient is added to that of the first. ``cast``: as autocast's
    products take it; the copy in fp32 is gone then."""
    tape, adapter, low = p.tape, p.mode.adapter, p.mode.numerics.itemsize
    assert adapter is not None
    count = adapter.tokens_of(name) * width
    rows: Tensor = p.adapter(name + ".tokens", count, adapter.itemsize)
    if again:
        rows = Tensor(rows.dim, rows.itemsize, None, tape.node((rows,), (), lambda t, g: ()))
    rows = ops.cast(tape, rows, low, "trained rows")
    dim = rows.dim
    node = tape.node((rows,), (rows,), lambda t, g: (t.gradient((dim, low)),))
    whole = tape.new(Dim(name, elements), low, "table with its trained rows", node)
    del rows
    if cast and tape.autocast:
        whole = ops.cast(tape, whole, tape.autocast, "autocast copies of weights")
    merged = Param(tape, name, elements, whole.itemsize, trained=False)
    merged.storage, merged.node, merged.needs_grad = whole.storage, whole.node, whole.needs_grad
    return merged


def _dora(
    p: Pass, x: Tensor, result: Tensor, linear: Linear, out: Dim, adapter: Adapter, scheme: Quantised | None
) -> Tensor:
    """``DoraLinearLayer.forward``: the norm of every row of W + scaling·BA, from an identity put through the adapters.

    ΔW and W in x's dtype are locals until it returns. ΔW is detached, so its graph saves nothing for backward. With
    dropout, the base's result is computed again from the dropped input."""
    tape, itemsize, rank = p.tape, x.itemsize, adapter.rank_of(linear.name)
    lora_a = p.adapter(linear.name + ".lora_A", linear.inputs * rank, adapter.itemsize)
    lora_b = p.adapter(linear.name + ".lora_B", rank * linear.outputs, adapter.itemsize)
    magnitude = p.adapter(linear.name + ".magnitude", linear.outputs, adapter.magnitude_itemsize)
    if adapter.dropout:
        x = ops.dropout(tape, x)
    matrix = Dim("in·out", linear.inputs * linear.outputs)
    eye = tape.gradient((Dim("in·in", linear.inputs**2), adapter.itemsize), "identity of DoRA")
    eye_low = ops.linear(tape, eye, lora_a, Dim("in·r", linear.inputs * rank), "adapters of an identity")
    delta = ops.linear(tape, eye_low, lora_b, matrix, "weight of the adapters")
    del eye, eye_low  # ``x_eye`` ends with get_lora_weight, lora_A(x_eye) is a temporary (PEFT lora/dora.py)
    delta = ops.cast(tape, delta, itemsize, "its copy")
    base = _base_weight(p, linear, itemsize, scheme)
    scaled = tape.gradient((matrix, itemsize), "scaled weight of the adapters")
    merged = tape.gradient((matrix, itemsize), "merged weight, for its norm")
    del scaled  # a temporary of ``weight + scaling * lora_weight`` (dora.py: get_weight_norm)
    norms = tape.gradient((Dim("out", linear.outputs), itemsize), "row norms of the merged weight")
    del merged  # ``weight`` is get_weight_norm's local, its norm what returns
    ratio = ops.mul(tape, magnitude, norms, "magnitudes over norms")
    del norms  # detached; ``mag_norm_scale = magnitude / weight_norm`` holds what it needs (dora.py: forward)
    low = ops.linear(tape, x, lora_a, p.dim("r", rank), "adapter rank-r outputs")
    high = ops.linear(tape, low, lora_b, out, "adapter outputs")
    del low  # lora_A's output, a temporary of ``lora_result = lora_B(lora_A(x))``
    plain = _base_result(p, x, result, linear, out, base)
    shrunk = ops.mul(tape, plain, ops.scale(tape, ratio, "magnitudes over norms"), "DoRA's base term")
    product = ops.mul(tape, high, ratio, "DoRA's adapter term")
    grown = ops.scale(tape, product, "DoRA's adapter term")
    del product  # ``mag_norm_scale * lora_result * scaling``: its first matmul is a temporary
    change = ops.add(tape, shrunk, grown, "DoRA's change")
    # DoraLinearLayer.forward returns: ``lora_weight``, ``weight``, ``base_result`` are its locals
    del shrunk, grown, plain, high, ratio, base, delta
    return ops.add(tape, result, change, "adapter sums")


def _base_weight(p: Pass, linear: Linear, itemsize: int, scheme: Quantised | None) -> Tensor:
    """``dequantize_module_weight(base_layer).to(x.dtype)``: the weight itself where it has that dtype already."""
    elements = linear.inputs * linear.outputs
    if scheme is not None:
        own = scheme.original_itemsize
        weight = dequantise(p.tape, linear, scheme, own)
        return weight if own == itemsize else p.tape.gradient((weight.dim, itemsize), "base weight in x's dtype")
    weight = p.param(linear.name, elements)
    return (
        weight if weight.itemsize == itemsize else p.tape.gradient((weight.dim, itemsize), "base weight in x's dtype")
    )


def _base_result(p: Pass, x: Tensor, result: Tensor, linear: Linear, out: Dim, base: Tensor) -> Tensor:
    """The result without its bias; after dropout, a product of its own that saves the base weight's copy."""
    tape, adapter = p.tape, p.mode.adapter
    if adapter is None or not (adapter.dropout or adapter.idle_dropout):
        return _without_bias(tape, result, p.mode.numerics.itemsize) if linear.bias else result
    source = ops.autocast_input(tape, x)
    itemsize = source.itemsize
    matrix = base if base.itemsize == itemsize else tape.gradient((base.dim, itemsize), "base weight in x's dtype")
    return tape.new(out, itemsize, "base result of the dropped input", tape.node((source,), (matrix,), ops.own(source)))


def _without_bias(tape: Tape, result: Tensor, itemsize: int) -> Tensor:
    """``base_result - bias``, in the wider dtype of both: under autocast an fp32 bias widens a half result."""
    dim, before, wide = result.dim, result.itemsize, max(result.itemsize, itemsize)

    def backward(t: Tape, grads: Grads) -> Grads:
        return (grads[0] if wide == before else t.gradient((dim, before)),)

    return tape.new(dim, wide, "base result without bias", tape.node((result,), (), backward))


def stack_sides(p: Pass, name: str, shape: tuple[int, ...], rank: int) -> list[Tensor]:
    """lora_B and lora_A of a stack in its dtype, which ``ParamWrapper`` holds until its module has returned."""
    tape, adapter = p.tape, p.mode.adapter
    assert adapter is not None
    *_, outputs, inputs = shape
    wide = rank * _experts(shape)
    lora_a = p.adapter(name + ".lora_A", wide * inputs, adapter.itemsize)
    lora_b = p.adapter(name + ".lora_B", outputs * wide, adapter.itemsize)
    return [
        ops.cast(tape, side, p.mode.numerics.itemsize, "adapters in the weight's dtype") for side in (lora_b, lora_a)
    ]


def _experts(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 3 else 1


def merged_stack(p: Pass, name: str, shape: tuple[int, ...], sides: list[Tensor]) -> Param:
    """A parameter of experts × outputs × inputs, or a router's, with adapters added (``ParamWrapper``), at first use.

    ``baddbmm(W, lora_B, lora_A)`` makes a whole copy of the stack, which the products save; its gradient is as large.
    Two-dimensional parameters add a product of the adapters' matrices. ``sides``: from ``stack_sides``."""
    tape, mode = p.tape, p.mode
    *_, outputs, inputs = shape
    wide = mode.numerics.stack_itemsize
    elements, low = _experts(shape) * outputs * inputs, wide or mode.numerics.itemsize
    autocast, tape.autocast = tape.autocast, 0
    dims = [side.dim for side in sides]

    def backward(t: Tape, grads: Grads) -> Grads:
        results: list[Tensor | None] = []
        for dim in dims:
            product = t.gradient((dim, low))
            results.append(t.gradient((dim, low)))
            del product
        return [*results, None]

    node = tape.node([*sides, p.param(name, elements, wide)], sides, backward)
    whole = tape.new(Dim(name, elements), low, "weights with their adapters", node)
    tape.autocast = autocast
    merged = Param(tape, name, elements, low, trained=False)
    merged.storage, merged.node, merged.needs_grad = whole.storage, whole.node, whole.needs_grad
    return merged


def sides_of(p: Pass, linear: Linear) -> list[Param]:
    """lora_A and lora_B."""
    adapter = p.mode.adapter
    assert adapter is not None
    rank, itemsize = adapter.rank_of(linear.name), adapter.itemsize
    return [
        p.adapter(f"{linear.name}.lora_{side}", rank * width, itemsize)
        for side, width in (("A", linear.inputs), ("B", linear.outputs))
    ]


def as_cast(tape: Tape, side: Param, itemsize: int) -> Tensor | None:
    """``A.to(dtype)``."""
    return None if side.itemsize == itemsize else tape.new(side.dim, itemsize, "adapters in the inputs' dtype")


def gradients_of(t: Tape, sides: Sequence[Param], itemsize: int) -> list[Tensor]:
    """Gradients of adapters in the inputs' dtype; the engine casts each to its weight's (``validate_outputs``)."""
    return [t.new(side.dim, itemsize, "weight gradients", category="gradients") for side in sides]


def in_their_dtype(t: Tape, grads: list[Tensor], sides: Sequence[Param]) -> list[Tensor]:
    """Each gradient in its weight's dtype."""
    results = []
    for grad, side in zip(grads, sides, strict=True):
        same = grad.itemsize == side.itemsize
        results.append(grad if same else t.new(side.dim, side.itemsize, "weight gradients", category="gradients"))
    return results
