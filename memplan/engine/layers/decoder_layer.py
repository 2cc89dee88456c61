"""Layers: a mixer and a feed-forward, with the norms and residuals around them, in the order of transformers 5.23.

One program for each form that a layer can have (``Layer.form``): ``pre_norm`` for Llama, Mistral, Qwen2, Qwen3, Phi-3,
GLM-4-MoE, DeepSeek-V3, GPT-OSS and most others; ``sandwich`` for Gemma 2, Gemma 3 and GLM-4.

Layers and heads of encoders (BERT, RoBERTa, ELECTRA, DistilBERT, ALBERT, DeBERTa), as in transformers 5.23."""

from collections.abc import Callable
from typing import Any

from memplan.engine.layers import norm_placement as residuals
from memplan.engine.layers.activations import activate
from memplan.engine.layers.feed_forward import feed_forward
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norm_placement import dropped
from memplan.engine.losses.scored import checkpointed
from memplan.engine.programs import Programs
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Node, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.errors import ModelError
from memplan.spec.encoders import Pooler
from memplan.spec.layer import Layer
from memplan.spec.parts import Norm


def start_of(tape: Tape, outputs: list[Tensor]) -> Node | None:
    """Where the backward of a layer begins that gives several outputs, each with a gradient of its own."""
    if len(outputs) == 1 or not all(output.needs_grad for output in outputs):
        return outputs[0].node
    start = Node(tape, [output.edge for output in outputs], (), lambda t, grads: tuple(grads))
    start.outputs = len(outputs)
    return start


def decoder_layer(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """One layer of any form."""
    if layer.form not in FORMS:
        raise ModelError(
            f"its layers ({layer.form}) are described by their parameters alone: memplan has no program of them",
            "show its parameters with memplan show models, or name another model",
        )
    y = FORMS[layer.form](p, layer, x)
    wide = p.mode.widths.output
    return ops.cast(p.tape, y, wide, "layer's output") if wide and y.itemsize > wide else y


def pre_norm(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm before the mixer and one before the feed-forward, a residual around each (Llama)."""
    tape, norms = p.tape, layer.norms
    with tape.at("attention"):
        hidden = _normed(p, norms[0], x)
        held = [hidden] if "norm" in layer.locals_held else []
        hidden, weights = _mixed(p, layer, hidden)
        hidden = residuals.dropped(p, layer, "mixer", hidden)
        if "mixer" in layer.locals_held:
            held.append(hidden)
        residual = ops.add(tape, x, hidden, "residual stream")
        del hidden  # ``hidden_states = residual + hidden_states`` rebinds it (LlamaDecoderLayer.forward)
    with tape.at("feed-forward"):
        hidden = _normed(p, norms[1], residual)
        hidden = feed_forward(p, layer.feed_forward, hidden)
        hidden = residuals.dropped(p, layer, "feed-forward", hidden)
        out = ops.add(tape, residual, hidden, "residual stream")
    del weights, held  # ``hidden_states, _ = self.self_attn(…)``: ``_`` lives to the layer's end (LlamaDecoderLayer)
    return out


def _normed(p: Pass, one: Norm, x: Tensor) -> Tensor:
    """A norm, checkpointed by itself where norms are."""
    if "norms" not in p.mode.recompute.modules:
        return norm(p, one, x, "h")
    return checkpointed(p.tape, lambda inputs: norm(p, one, inputs[0], "h"), (x,))


def _mixed(p: Pass, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The mixer and its weights, checkpointed by itself where attention is."""
    if "attention" not in p.mode.recompute.modules:
        return mix(p, layer.mixer, x)
    return checkpointed(p.tape, lambda inputs: mix(p, layer.mixer, inputs[0])[0], (x,)), None


def sandwich(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm before and one after mixer and feed-forward each (Gemma 2 and 3)."""
    tape, norms = p.tape, layer.norms
    with tape.at("attention"):
        hidden = _normed(p, norms[0], x)
        hidden, weights = _mixed(p, layer, hidden)
        hidden = _normed(p, norms[1], hidden)
        residual = ops.add(tape, x, hidden, "residual stream")
        del hidden  # ``hidden_states = residual + hidden_states`` rebinds it (Gemma2DecoderLayer.forward)
    with tape.at("feed-forward"):
        hidden = norm(p, norms[2], residual, "h")
        hidden = feed_forward(p, layer.feed_forward, hidden)
        hidden = norm(p, norms[3], hidden, "h")
        out = ops.add(tape, residual, hidden, "residual stream")
    del weights  # ``_`` of ``hidden_states, _ = self.self_attn(…)`` (Gemma2DecoderLayer.forward)
    return out


FORMS: Programs[Callable[[Pass, Any, Tensor], Tensor]] = Programs(
    {
        "pre": "memplan.engine.layers.decoder_layer:pre_norm",
        "sandwich": "memplan.engine.layers.decoder_layer:sandwich",
        "single": "memplan.engine.layers.norm_placement:single",
        "normed-residual": "memplan.engine.layers.norm_placement:normed_residual",
        "post": "memplan.engine.layers.norm_placement:post_norm",
        "pre-scaled": "memplan.engine.layers.norm_placement:scaled_pre_norm",
        "parallel": "memplan.engine.layers.norm_placement:parallel",
        "after-sum": "memplan.engine.layers.norm_placement:after_sum",
        "parallel-branches": "memplan.engine.layers.norm_placement:parallel_branches",
        "gated": "memplan.engine.layers.norm_placement:gated",
        "vit": "memplan.engine.layers.vision.vit_block:vit_block",
        "positions": "memplan.engine.layers.vision.gemma4_tower:position_block",
        "encoder": "memplan.engine.layers.decoder_layer:encoder_layer",
        "t5": "memplan.engine.layers.t5_layer:t5_layer",
        "rwkv": "memplan.engine.layers.state_space.rwkv:rwkv_block",
        "layer-inputs": "memplan.engine.layers.gemma4_layer:layer_with_input",
        "streams": "memplan.engine.layers.gemma3n_layer:layer_of_streams",
        "hyper": "memplan.engine.layers.hyper_connections:layer_of_connections",
        "shared-block": "memplan.engine.layers.zamba2_layer:shared_block_layer",
    }
)
"""A program for each value of ``Layer.form``."""


def encoder_layer(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm of each sum with the residual. BERT's modules hold what goes into their last linear until the norm is done
    ('inner' of ``locals_held``), ALBERT's queries, keys and values ('states'); all hold what they add until then."""
    tape, norms, spec = p.tape, layer.norms, layer.feed_forward
    assert spec is not None
    holds = "inner" in layer.locals_held
    with tape.at("attention"):
        p.held = [] if layer.locals_held else None
        hidden, weights = mix(p, layer.mixer, x)
        context, p.held = p.held, None
        hidden = dropped(p, layer, "mixer", hidden)
        middle = norm(p, norms[0], ops.add(tape, hidden, x, "residual stream"), "h")
        del hidden, context  # BertAttention rebinds ``attention_output`` when the norm has returned
    with tape.at("feed-forward"):
        inner = activate(tape, spec.activation, project(p, middle, spec.linears[0], "F", "up"))
        hidden = project(p, inner, spec.linears[1], "h", "feed-forward output")
        if not holds:
            # ``holds``: feed_forward_chunk names ``intermediate_output`` to its end (BertLayer)
            del inner
        hidden = dropped(p, layer, "feed-forward", hidden)
        out = norm(p, norms[1], ops.add(tape, hidden, middle, "residual stream"), "h")
    del weights  # the second of BertSelfAttention's outputs
    return out


def pooled(p: Pass, pooler: Pooler, hidden: Tensor) -> tuple[Pass, Tensor]:
    """The dense layer over the first position of each row, or over the mean of all; and a pass over one position."""
    tape, one = p.tape, p.part(p.rows, 1)
    width = hidden.dim.elements // p.tokens
    if pooler.mean:
        weighed = ops.with_constant(tape, hidden, hidden.itemsize, "weighed states")
        x = ops.mean(tape, weighed, one.dim("h", width)) if weighed.itemsize == ops.FP32 else summed(p, weighed, width)
        del weighed  # ``(last_hidden_state * attention_mask.unsqueeze(-1)).sum(dim=1)``: a temporary (ModernBERT)
    else:
        x = ops.view(tape, hidden, one.dim("h", width), whole=False)
    if pooler.first_dropout:
        x = ops.dropout(tape, x, "pooled states")
    x = project(one, x, pooler.linears[0], "h", "pooled states", quantised=False)
    x = activate(tape, pooler.activation, x)
    if pooler.norms:
        x = norm(one, pooler.norms[0], x, "h")
    if pooler.dropout:
        x = ops.dropout(tape, x, "pooled states")
    return one, x


def summed(p: Pass, x: Tensor, width: int) -> Tensor:
    """``x.sum(dim=1)``: its gradient is a view."""
    dim, itemsize = x.dim, x.itemsize
    node = p.tape.node((x,), (), lambda t, g: (g[0],))
    del dim
    return p.tape.new(Dim("rows·h", p.rows * width), itemsize, "pooled states", node)
