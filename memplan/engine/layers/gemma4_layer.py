"""Gemma 4's layers as a program on the tape: experts beside the feed-forward, an input of each layer's own
(transformers 5.23, ``modeling_gemma4.py``); and what makes these inputs before the first layer."""

from memplan.engine.layers.activations import activate
from memplan.engine.layers.feed_forward import feed_forward
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.moe.experts import grouped
from memplan.engine.layers.moe.routing import route
from memplan.engine.layers.shared_inputs import LAYER_INPUTS, ROWS
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.routing_ops import INDEX, in_place
from memplan.engine.tape.tags import Dim
from memplan.spec.attention_kinds import LayerInput
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import FeedForward, Norm


def layer_with_input(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``Gemma4TextDecoderLayer``; what was cut out of all layers' inputs was cut before."""
    tape, norms, spec = p.tape, layer.norms, layer.feed_forward
    assert spec is not None
    with tape.at("attention"):
        own = cut_out(p, layer.own_input) if layer.own_input else None
        hidden = norm(p, norms[0], x, "h")
        hidden, weights = mix(p, layer.mixer, hidden)
        hidden = norm(p, norms[1], hidden, "h")
        hidden = ops.add(tape, x, hidden, "residual stream")
    with tape.at("feed-forward"):
        residual = hidden
        hidden = norm(p, norms[2], residual, "h")
        hidden = feed_forward(p, spec.but(experts=None) if spec.experts else spec, hidden)
        held: list[Tensor] = []
        if spec.experts:
            weights = None
            hidden = beside_experts(p, spec, norms[4:], residual, hidden, held)
        hidden = norm(p, norms[3], hidden, "h")
        hidden = ops.add(tape, residual, hidden, "residual stream")
        if layer.own_input and own is not None:
            residual = hidden
            hidden = gated_input(p, layer.own_input, hidden, own)
            hidden = ops.add(tape, residual, hidden, "residual stream")
        out = scaled_in_place(p, hidden)
    del weights, held  # ``_`` of ``self.self_attn(…)`` (Gemma4TextDecoderLayer.forward)
    return out


def beside_experts(
    p: Pass, spec: FeedForward, norms: tuple[Norm, ...], residual: Tensor, hidden: Tensor, held: list[Tensor]
) -> Tensor:
    """The feed-forward's output and that of the experts, which read the residual, each normalised, added up.

    ``held``: what stays a local of the layer."""
    assert spec.experts is not None
    first = norm(p, norms[0], hidden, "h")
    choice = route(p, spec.experts, residual)
    second = norm(p, norms[2], residual, "h")
    second = grouped(p, spec.experts, second, choice.weights, choice.chosen)
    second = norm(p, norms[1], second, "h")
    held += [first, second, *choice]
    return ops.add(p.tape, first, second, "feed-forward output")


def cut_out(p: Pass, own: LayerInput) -> Tensor:
    """``per_layer_inputs[:, :, i, :]``: a view, whose gradient is put into zeros of all layers' size."""
    return ops.view(p.tape, p.shared[LAYER_INPUTS], p.dim("d", own.width), whole=False)


def gated_input(p: Pass, own: LayerInput, x: Tensor, cut: Tensor) -> Tensor:
    """``norm(projection(act(gate(x)) * input))``."""
    gate, back = own.linears
    hidden = activate(p.tape, own.activation, project(p, x, gate, "d", "gate of the layer's input"))
    hidden = ops.mul(p.tape, hidden, cut, "gated input")
    hidden = project(p, hidden, back, "h", "projected input")
    return norm(p, own.norms[0], hidden, "h")


def scaled_in_place(p: Pass, x: Tensor) -> Tensor:
    """``x *= scalar``: saves the scalar, a buffer; its gradient is a new tensor."""
    dim, itemsize, scalar = x.dim, x.itemsize, Tensor(Dim("1", 1), x.itemsize, None)
    return Tensor(dim, itemsize, x.storage, p.tape.node((x,), (scalar,), lambda t, g: (t.gradient((dim, itemsize)),)))


def rows_of_table(p: Pass, spec: ModelSpec, own: LayerInput) -> Tensor:
    """A row for each token, scaled."""
    tape, all_layers = p.tape, p.dim("L·d", own.layers * own.width)
    bare = next(bare for part in spec.extra for bare in part.tensors)
    of_table = tape.new(p.dim("1", 1), INDEX, "token ids of the table") if spec.streams > 1 else None
    rows = ops.embedding(tape, p.param(bare.name, bare.parameters), all_layers, p.mode.numerics.itemsize, of_table)
    del of_table
    return ops.scale(tape, rows, "inputs of all layers")


def made_inputs(p: Pass, spec: ModelSpec, own: LayerInput, x: Tensor) -> Tensor:
    """A row of the table for each token, and a normed projection of the embedding, over the root of two. The rows are
    in ``p.shared`` where they were looked up before images were seen."""
    tape = p.tape
    rows = p.shared.pop(ROWS) if ROWS in p.shared else rows_of_table(p, spec, own)
    linear, of_rows = next((part.linears[0], part.norms[0]) for part in spec.extra if part.linears and part.norms)
    projected = project(p, x, linear, "L·d", "projected inputs", quantised=False)
    projected = ops.scale(tape, projected, "projected inputs") if spec.streams == 1 else in_place(tape, projected)
    projected = norm(p, of_rows, projected, "L·d", "L", own.layers)
    return ops.scale(tape, ops.add(tape, projected, rows, LAYER_INPUTS), LAYER_INPUTS)
