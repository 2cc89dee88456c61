"""Norms other than those of Llama, Qwen3 and Gemma (``modules.norm``), as programs on the tape:
OLMo, Cohere, Helium, Gemma 4, T5, DeepSeek-V4, GPT-2 and all that have ``nn.LayerNorm``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.units import by_name

if TYPE_CHECKING:
    from memplan.engine.layers.modules import Pass
    from memplan.spec.parts import Norm


def norm_weight(p: Pass, spec: Norm) -> Param:
    """The weight of a norm, in the dtype that norms are kept in."""
    return p.param(spec.name, spec.width, spec.itemsize or p.mode.numerics.norm_itemsize)


def rms_wide(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``(weight * x̂).to(dtype)``: of the weight as it is (OLMo 2), or ``weight.float()`` (Helium)."""
    normed = ops.normalise(p.tape, ops.cast(p.tape, x, ops.FP32, "norm inputs in fp32"), per_row, "normalised")
    weight = norm_weight(p, spec)
    wide = ops.cast(p.tape, weight, ops.FP32, "norm weights") if spec.kind == "rms-wide-weight" else weight
    product = ops.mul(p.tape, normed, wide, "norm products in fp32")
    del normed  # a temporary product in Olmo2RMSNorm.forward: ``(self.weight * hidden_states).to(dtype)``
    return ops.cast(p.tape, product, x.itemsize, "norm outputs")


def rms_power(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``(x̂ * weight.float()).to(dtype)``, where x̂ is x times a power of its mean square (Gemma 4)."""
    tape = p.tape
    normed = _by_power(tape, ops.cast(tape, x, ops.FP32, "norm inputs in fp32"), per_row)
    if spec.parameters:
        wide_weight = ops.cast(tape, norm_weight(p, spec), ops.FP32, "norm weights")
        normed = ops.mul(tape, normed, wide_weight, "norm products in fp32")
    return ops.cast(tape, normed, x.itemsize, "norm outputs")


def _by_power(tape: Tape, x: Tensor, per_row: Dim) -> Tensor:
    """``x * (x.pow(2).mean(-1) + eps).pow(-0.5)``: the power keeps what goes into it."""
    squares = ops.power(tape, x)
    variance = ops.mean(tape, squares, per_row)
    del squares  # a temporary of ``x.pow(2).mean(-1)`` (Gemma4RMSNorm._norm)
    shifted = ops.scale(tape, variance, "norm statistics", shares_gradient=True)
    del variance
    return ops.mul(tape, x, ops.unary(tape, shifted, "norm statistics"), "normalised")


def subtract(tape: Tape, a: Tensor, b: Tensor, label: str) -> Tensor:
    """``a - b``, b broadcast: a's gradient is handed on, b's is negated at full size, then summed."""
    dim, b_dim, itemsize = a.dim, b.dim, a.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        negated = t.gradient((dim, itemsize))
        result = t.gradient((b_dim, itemsize))
        del negated  # summed to the broadcast operand's size (engine.cpp: validate_outputs → sum_to)
        return (grads[0], result)

    return tape.new(dim, itemsize, label, tape.node((a, b), (), backward))


def add_bias(tape: Tape, x: Tensor, bias: Tensor, label: str) -> Tensor:
    """``x + bias``, outside of ``F.linear``: the wider dtype of both, and the bias' gradient a sum over tokens."""
    dim, itemsize, before = x.dim, max(x.itemsize, bias.itemsize), x.itemsize
    b_dim, b_size, want_x, want_b = bias.dim, bias.itemsize, x.needs_grad, bias.needs_grad

    def backward(t: Tape, grads: Grads) -> Grads:
        db = t.new(b_dim, b_size, "bias gradients", category="gradients") if want_b else None
        dx = None if not want_x else grads[0] if before == itemsize else t.gradient((dim, before))
        return (dx, db)

    return tape.new(dim, itemsize, label, tape.node((x, bias), (), backward))


def layer_wide(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``CohereLayerNorm``: x - mean is made twice, and both are kept."""
    tape = p.tape
    wide = ops.cast(tape, x, ops.FP32, "norm inputs in fp32")
    mean = ops.mean(tape, wide, per_row)
    squares = ops.power(tape, subtract(tape, wide, mean, "centred"))
    variance = ops.mean(tape, squares, per_row)
    del squares  # a temporary of ``(hidden_states - mean).pow(2).mean(-1)`` (CohereLayerNorm.forward)
    centred = subtract(tape, wide, mean, "centred")
    inverse = ops.unary(tape, ops.scale(tape, variance, "norm statistics"), "norm statistics", saves="result")
    normed = ops.mul(tape, centred, inverse, "normalised")
    # temporaries of ``(hidden_states - mean) * torch.rsqrt(…)``, which rebinds ``hidden_states``
    del centred, inverse, wide
    wide_weight = ops.cast(tape, norm_weight(p, spec), ops.FP32, "norm weights")
    product = ops.mul(tape, normed, wide_weight, "norm products in fp32")
    del normed  # ``hidden_states = self.weight.to(torch.float32) * hidden_states`` rebinds it
    return ops.cast(tape, product, x.itemsize, "norm outputs")


def layer_bare(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``F.layer_norm(x.float(), shape).to(dtype)``, without weight and bias (OLMo)."""
    wide = ops.cast(p.tape, x, ops.FP32, "norm inputs in fp32")
    return ops.cast(p.tape, fused_layer_norm(p.tape, wide, per_row), x.itemsize, "norm outputs")


def layer(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``nn.LayerNorm``, which autocast runs in fp32; with ``groups``, one for each head, and ``cat`` (StableLM-2)."""
    tape = p.tape
    if spec.groups > 1:
        return _layer_of_each_head(p, spec, x, per_row)
    return _layer(p, spec, x, per_row, ops.FP32 if tape.autocast else 0)


def layer_plus_one(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``NemotronLayerNorm1P``: weight + 1, all in the precision of autocast."""
    return _layer(p, spec, x, per_row, p.tape.autocast, plus_one=True)


def _layer(p: Pass, spec: Norm, x: Tensor, per_row: Dim, itemsize: int, plus_one: bool = False) -> Tensor:
    tape, parameters = p.tape, []
    weight: Tensor = norm_weight(p, spec)
    if spec.parameters:
        if plus_one:
            weight = ops.scale(tape, weight, "norm weights", shares_gradient=True)
        parameters = [weight]
    if spec.bias:
        parameters.append(p.param(spec.name + ".bias", spec.width, p.mode.numerics.norm_itemsize))
    if itemsize:
        x = ops.cast(tape, x, itemsize, "norm inputs in fp32")
        parameters = [ops.cast(tape, parameter, itemsize, "norm weights") for parameter in parameters]
    return fused_layer_norm(tape, x, per_row, parameters)


def _layer_of_each_head(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``torch.split`` over heads, a norm without bias on each, ``torch.cat`` of the results."""
    groups = spec.groups
    part, rows = Dim(x.dim.symbol, x.dim.elements // groups), Dim(per_row.symbol, per_row.elements // groups)
    one = spec.but(groups=1, width=spec.width // groups)
    normed = [layer(p, one, piece, rows) for piece in ops.cut(p.tape, x, [part] * groups)]
    return ops.concatenate(p.tape, normed, x.dim, "norm outputs")


def fused_layer_norm(tape: Tape, x: Tensor, per_row: Dim, parameters: Sequence[Tensor] = ()) -> Tensor:
    """``native_layer_norm``: keeps its input, mean and reciprocal deviation in fp32, and its weight and bias."""
    dim, itemsize = x.dim, x.itemsize
    out = tape.new(dim, itemsize, "norm outputs")
    statistics = [tape.new(per_row, ops.FP32, "norm statistics") for _ in range(2)]
    backward = ops.in_turn(ops.of_each(x), ops.of_weights(*parameters))
    node = tape.node((x, *parameters), (x, *statistics, *parameters), backward)
    return Tensor(dim, itemsize, out.storage, node)


def rms_t5(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``weight * (x * rsqrt(variance)).to(dtype)``, the variance of an fp32 copy, the product of x itself (T5)."""
    tape, weight = p.tape, norm_weight(p, spec)
    squares = ops.power(tape, ops.cast(tape, x, ops.FP32, "norm inputs in fp32"))
    variance = ops.mean(tape, squares, per_row)
    del squares  # the fp32 copy and its square are temporaries of one line (T5LayerNorm.forward)
    inverse = ops.unary(tape, ops.scale(tape, variance, "norm statistics"), "norm statistics", saves="result")
    normed = ops.mul(tape, x, inverse, "normalised")
    del inverse  # a temporary of ``hidden_states * torch.rsqrt(…)``
    if weight.itemsize < ops.FP32:
        normed = ops.cast(tape, normed, weight.itemsize, "normalised")
    return ops.mul(tape, normed, weight, "norm outputs")


def rms_bare(p: Pass, x: Tensor, per_row: Dim) -> Tensor:
    """``x * rsqrt(mean(x.float() ** 2) + eps).to(dtype)`` (DeepSeek-V4)."""
    tape = p.tape
    squares = ops.power(tape, ops.cast(tape, x, ops.FP32, "norm inputs in fp32"))
    variance = ops.mean(tape, squares, per_row)
    del squares  # a temporary of ``x.float().square().mean(-1)`` (DeepseekV4UnweightedRMSNorm.forward)
    inverse = ops.scale(tape, variance, "norm statistics", shares_gradient=True)
    del variance  # a temporary of the same line, which is the whole forward
    inverse = ops.unary(tape, inverse, "norm statistics", saves="result")
    return ops.mul(tape, x, ops.cast(tape, inverse, x.itemsize, "norm statistics"), "normalised")


def identity(p: Pass, spec: Norm, x: Tensor, per_row: Dim) -> Tensor:
    """``nn.Identity``."""
    return x


NORMS: dict[str, Callable[[Pass, Norm, Tensor, Dim], Tensor]] = {
    **by_name(rms_wide, layer_wide, layer_bare, identity, rms_t5, rms_power, layer, layer_plus_one),
    "rms-wide-weight": rms_wide,
    "rms-power-bare": rms_power,
    "layer-plain": layer,
}
"""A program for each kind of norm that ``modules.norm`` does not write itself."""
