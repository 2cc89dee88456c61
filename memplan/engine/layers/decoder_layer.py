"""Layers: a mixer and a feed-forward, with the norms and residuals around them, in the order of transformers 5.23.

One program for each form that a layer can have (``Layer.form``): ``pre_norm`` for Llama, Mistral, Qwen2, Qwen3, Phi-3,
GLM-4-MoE, DeepSeek-V3, GPT-OSS and most others; ``sandwich`` for Gemma 2, Gemma 3 and GLM-4."""

from collections.abc import Callable
from typing import Any

from memplan.engine.layers import norm_placement as residuals
from memplan.engine.layers.feed_forward import feed_forward
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm
from memplan.engine.losses.scored import checkpointed
from memplan.engine.programs import Programs
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Node, Tensor
from memplan.engine.tape.tape import Tape
from memplan.errors import ModelError
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


FORMS: Programs[Callable[[Pass, Any, Tensor], Tensor]] = Programs("forms")
"""A program for each value of ``Layer.form``."""
