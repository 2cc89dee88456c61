"""Layers whose norms and residuals stand otherwise than in Llama and Gemma, in the order of transformers 5.23: OLMo 2,
EXAONE 4, Granite, MiniCPM, Cohere, BART, GPT-NeoX, GPT-J, Phi, Falcon, Mamba, Nemotron-H, MiniMax, Mllama."""

from memplan.engine.layers.feed_forward import feed_forward
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm
from memplan.engine.tape import ops, routing_ops
from memplan.engine.tape.graph import Tensor
from memplan.spec.layer import Layer
from memplan.spec.parts import Bare


def post_norm(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm after the mixer and one after the feed-forward (OLMo 2, EXAONE 4)."""
    tape, norms = p.tape, layer.norms
    with tape.at("attention"):
        hidden, weights = mix(p, layer.mixer, x)
        hidden = norm(p, norms[0], hidden, "h")
        residual = ops.add(tape, x, hidden, "residual stream")
        del hidden  # ``hidden_states = residual + hidden_states`` rebinds it (Olmo2DecoderLayer.forward)
    with tape.at("feed-forward"):
        hidden = feed_forward(p, layer.feed_forward, residual)
        hidden = norm(p, norms[1], hidden, "h")
        out = ops.add(tape, residual, hidden, "residual stream")
    del weights  # ``_`` of ``self.self_attn(…)``
    return out


def scaled_pre_norm(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """As Llama's; each output is multiplied by a number before it is added (Granite)."""
    tape, norms = p.tape, layer.norms
    with tape.at("attention"):
        hidden = norm(p, norms[0], x, "h")
        hidden, weights = mix(p, layer.mixer, hidden)
        residual = ops.add(tape, x, ops.scale(tape, hidden, "scaled outputs"), "residual stream")
        del hidden  # ``residual + hidden_states * self.residual_multiplier`` rebinds it (GraniteDecoderLayer)
    with tape.at("feed-forward"):
        hidden = norm(p, norms[1], residual, "h")
        hidden = feed_forward(p, layer.feed_forward, hidden)
        out = ops.add(tape, residual, ops.scale(tape, hidden, "scaled outputs"), "residual stream")
    del weights  # ``_`` of ``self.self_attn(…)``
    return out


def parallel(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """One norm for both; the residual, then the mixer's output, then the feed-forward's are added up (Cohere)."""
    tape = p.tape
    with tape.at("attention"):
        hidden = norm(p, layer.norms[0], x, "h")
        mixed, weights = mix(p, layer.mixer, hidden)
    with tape.at("feed-forward"):
        fed = dropped(p, layer, "feed-forward", feed_forward(p, layer.feed_forward, hidden))
        out = ops.add(tape, ops.add(tape, x, mixed, "residual stream"), fed, "residual stream")
    del weights  # ``_`` of ``hidden_states_attention, _ = self.self_attn(…)`` (CohereDecoderLayer.forward)
    return out


def dropped(p: Pass, layer: Layer, branch: str, x: Tensor) -> Tensor:
    """The output of a branch, through dropout where the layer has one."""
    return ops.dropout(p.tape, x, "dropped-out outputs") if branch in layer.dropout else x


def after_sum(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm of each sum with the residual (opt-350m, BART)."""
    tape, norms = p.tape, layer.norms
    with tape.at("attention"):
        hidden, weights = mix(p, layer.mixer, x)
        hidden = dropped(p, layer, "mixer", hidden)
        hidden = ops.add(tape, x, hidden, "residual stream")
        hidden = norm(p, norms[0], hidden, "h")
        if layer.cross:
            crossed, weights = mix(p, layer.cross, hidden)
            hidden = ops.add(tape, hidden, dropped(p, layer, "mixer", crossed), "residual stream")
            del crossed  # ``hidden_states = residual + hidden_states`` rebinds it (BartDecoderLayer.forward)
            hidden = norm(p, norms[1], hidden, "h")
    with tape.at("feed-forward"):
        residual = hidden
        hidden = feed_forward(p, layer.feed_forward, hidden)
        hidden = dropped(p, layer, "feed-forward", hidden)
        hidden = ops.add(tape, residual, hidden, "residual stream")
        out = norm(p, norms[-1], hidden, "h")
    del weights
    return out


def parallel_branches(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """One norm for both, or one for each; both outputs are added to each other, then to the residual (GPT-NeoX).
    Falcon adds them in place, and names both norms' outputs."""
    tape, norms = p.tape, layer.norms
    falcon = getattr(layer.mixer, "style", "").startswith("falcon")
    with tape.at("attention"):
        hidden = norm(p, norms[0], x, "h")
        held = [hidden] if falcon else []
        mixed, weights = mix(p, layer.mixer, hidden)
        mixed = dropped(p, layer, "mixer", mixed)
    with tape.at("feed-forward"):
        if len(norms) > 1:
            hidden = norm(p, norms[1], x, "h")
        fed = dropped(p, layer, "feed-forward", feed_forward(p, layer.feed_forward, hidden))
        if falcon and fed.itemsize == mixed.itemsize:
            both = routing_ops.add_in_place(tape, fed, mixed)
        else:
            both = ops.add(tape, fed, mixed, "sum of both outputs")
        both = dropped(p, layer, "branches", both)
        out = ops.add(tape, both, x, "residual stream")
    del weights, held  # FalconDecoderLayer.forward names ``attention_layernorm_out`` and ``attn_weights`` to its end
    return out


def single(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """One norm, of x in its weight's dtype, and a mixer or a feed-forward (Mamba, Nemotron-H)."""
    tape, only = p.tape, layer.norms[0]
    with tape.at("attention" if layer.mixer else "feed-forward"):
        narrow = ops.cast(tape, x, p.mode.numerics.norm_itemsize or p.mode.numerics.itemsize, "norm inputs")
        hidden = norm(p, only, narrow, "h")
        del narrow  # ``self.norm(hidden_states.to(self.norm.weight.dtype))``: a temporary (MambaBlock.forward)
        residual = ops.cast(tape, x, p.mode.residual_itemsize, "residual stream")
        if layer.mixer:
            hidden, weights = mix(p, layer.mixer, hidden)
            del weights
        else:
            hidden = feed_forward(p, layer.feed_forward, hidden)
        return ops.add(tape, residual, hidden, "residual stream")


def normed_residual(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """The residual is the norm's output; it and what is added to it are multiplied by a number each (MiniMax)."""
    tape, norms = p.tape, layer.norms
    with tape.at("attention"):
        residual = norm(p, norms[0], x, "h")
        hidden, weights = mix(p, layer.mixer, residual)
        hidden = _weighed(p, residual, hidden)
    with tape.at("feed-forward"):
        residual = norm(p, norms[1], hidden, "h")
        del hidden  # ``hidden_states = self.post_attention_layernorm(hidden_states)`` rebinds it (MiniMaxDecoderLayer)
        hidden = feed_forward(p, layer.feed_forward, residual)
        out = _weighed(p, residual, hidden)
    del weights  # ``_`` of ``self.self_attn(…)``
    return out


def _weighed(p: Pass, residual: Tensor, hidden: Tensor) -> Tensor:
    """``residual * number + hidden * number``."""
    kept = ops.scale(p.tape, residual, "scaled residual")
    return ops.add(p.tape, kept, ops.scale(p.tape, hidden, "scaled outputs"), "residual stream")


def gated(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm before attention and one before the feed-forward; each branch is weighed by a gate's tanh, and the second
    by a mask of rows that attend to nothing (Mllama's layers that attend to images)."""
    tape, gates = p.tape, layer.extra[0].tensors
    with tape.at("attention"):
        hidden = norm(p, layer.norms[0], x, "h")
        hidden, weights = mix(p, layer.mixer, hidden)
        residual = ops.add(tape, x, _by_gate(p, gates[0], hidden), "residual stream")
    with tape.at("feed-forward"):
        hidden = norm(p, layer.norms[1], residual, "h")
        hidden = feed_forward(p, layer.feed_forward, hidden)
        hidden = ops.with_constant(tape, hidden, p.mode.numerics.itemsize, "masked feed-forward output")
        out = ops.add(tape, residual, _by_gate(p, gates[1], hidden), "residual stream")
    del weights  # ``attn_weights`` of MllamaCrossAttentionDecoderLayer.forward
    return out


def _by_gate(p: Pass, bare: Bare, x: Tensor) -> Tensor:
    """``gate.tanh() * x``."""
    gate = ops.unary(p.tape, p.param(bare.name, bare.parameters), "gates", saves="result")
    return ops.mul(p.tape, x, gate, "gated branch")
