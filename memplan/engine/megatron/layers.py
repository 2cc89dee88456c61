"""From a described layer to the steps that Megatron runs it in; what Megatron has no layer for is refused.

Multi-head latent attention (megatron-core 0.14 transformer/multi_latent_attention.py): the down-projections are
duplicated on every tensor-parallel rank and run on its part of the sequence; the up-projections are column-parallel
with their norm inside. The fused rotary embedding turns q in place and writes k and v anew: their product is freed.

A gated delta net: one product of q, k, v, gate and both numbers of each head, a convolution, the rule, a gated norm of
each head, the output matmul (megatron-core of August 2026 ssm/gated_delta_net/common.py and gdn.py;
flash-linear-attention 0.5.2 modules/convolution.py, ops/gated_delta_rule/chunk.py). Nothing of it is measured: where
torch.compile may keep an input or what is made of it, both are counted. Letters: K keys, V values, H value heads of
this rank; c positions of a chunk, D the sizes of a head. Context parallelism exchanges heads for positions, so that a
rank holds as many elements of each."""

from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.engine.megatron import te
from memplan.engine.megatron.attention import LSE, OUT, K, Q, V, kernel, self_attention, twice
from memplan.engine.megatron.head import with_projection
from memplan.engine.megatron.moe import mixture
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import Held, Step, Steps, checkpointed, made_again
from memplan.engine.megatron.te import dense
from memplan.spec.layer import Layer
from memplan.spec.parts import Attention
from memplan.units import ceil_div

if TYPE_CHECKING:
    from memplan.spec.attention_kinds import LatentAttention
    from memplan.spec.state_space import GatedDelta

Q_NORMED, KV_NORMED = "normalised latent of queries", "normalised latent of keys and values"


def latent_attention(s: Shape, mixer: "LatentAttention") -> Steps:
    """Norm, latents, up-projections, kernel, output matmul."""
    heads = mixer.num_heads // s.tensor
    q = k = heads * (mixer.nope + mixer.rope)
    v, kv = heads * mixer.value, heads * (mixer.nope + mixer.value)
    products = sum(linear.name.startswith(("q_a", "kv_a")) for linear in mixer.linears)
    normed = te.stream(s, "input of the down-projections")
    if s.fp8 is not None:
        normed = normed._replace(template="products·t·h·e", factors=(products, s.local, s.hidden, s.saved))
    norm = te.norm(s, "input-norm", "attention's norm")
    down = _down(s, mixer, normed)
    up = _up(s, mixer, q, kv)
    core = kernel(s, q, k, v, v, heads)
    fused = te.of_tokens(s, "the product of keys and values", kv, "kv")
    core = core._replace(forward=(fused, *core.forward[1:]))
    out = te.row_linear(s, "projection", "the output matmul", v, keeps_input=False)
    return _recomputed(s, (norm, down, up, core, out))


def _latent(s: Shape, name: str, width: int, itemsize: float = 0) -> Held:
    return Held(name, "t·latent·e", (s.local, width, itemsize or s.itemsize))


def _down(s: Shape, mixer: "LatentAttention", normed: Held) -> Step:
    latents = sum(linear.outputs for linear in mixer.linears if linear.name.startswith(("q_a", "kv_a")))
    return Step(
        "down-projections",
        kept=(normed,),
        backward=(te.stream(s, te.STREAM_GRADIENT), _latent(s, "gradients of the latents", latents), normed, normed),
        source=te.LINEAR,
    )


def _up(s: Shape, mixer: "LatentAttention", q: int, kv: int) -> Step:
    kept: list[Held] = []
    ranks = [linear.outputs for linear in mixer.linears if linear.name.startswith("q_a")]
    for rank in ranks:
        kept += [_latent(s, "latent of queries", rank), _latent(s, Q_NORMED, rank, s.saved)]
    whole = mixer.latent + mixer.rope
    kept += [_latent(s, "latent of keys and values", whole), _latent(s, KV_NORMED, mixer.latent, s.saved)]
    kept.append(te.statistics(s, "statistics of the latents' norms"))
    width = max([*ranks, mixer.latent])
    gathered = Held("latent gathered along the sequence", "T·latent·e", (s.tokens, width, s.itemsize))
    return Step(
        "up-projections",
        kept=tuple(kept),
        forward=(gathered,) if s.gathers else (),
        backward=(
            te.stream(s, te.STREAM_GRADIENT),
            te.of_tokens(s, "gradients of queries, and of keys and values", q + kv, "(q + kv)"),
            gathered,
        ),
        source=te.LAYER_NORM_LINEAR,
    )


def _recomputed(s: Shape, steps: Steps) -> Steps:
    modules = s.recomputed
    if "core_attn" in modules:
        steps = made_again(steps, (LSE, *((OUT,) if twice(s) else ())), "attention")
    if "mla_up_proj" in modules:
        steps = made_again(steps, (Q, K, V, Q_NORMED, KV_NORMED, "statistics of the latents' norms"), "attention")
    if "layernorm" in modules:
        steps = made_again(steps, ("input of the down-projections", "statistics of attention's norm"), "projection")
    return steps


RULE = "megatron-core ssm/gated_delta_net/gdn.py; flash-linear-attention 0.5.2 ops/gated_delta_rule/chunk.py"
NORM = "megatron-core ssm/gated_delta_net/common.py: _apply_gated_norm"


def gated_delta(s: Shape, mixer: "GatedDelta") -> Steps:
    """Input norm and product, convolution and rule, gated norm, output."""
    heads = mixer.value_heads // s.tensor
    keys, values = mixer.keys // s.tensor, mixer.values // s.tensor
    fused = 2 * keys + 2 * values + 2 * heads
    *inputs, output = mixer.linears
    numbers = Held("statistics of the norm of heads", "T·H·4", (s.tokens, heads, te.FP32))
    normed = te.of_tokens(s, "normalised outputs before their gate", values, "V")
    norm = Step(
        "gated-norm",
        (numbers, normed),
        (normed._replace(name="gated outputs before they are laid anew"),),
        tuple(te.of_tokens(s, "gradients of output, norm and gate", each, "V") for each in (values,) * 3),
        NORM,
    )
    return (
        te.layernorm_linear(s, "delta-projection", "the q, k, v, gate product", fused, s.product(inputs)),
        _rule(s, mixer, fused, (keys, values, heads)),
        norm,
        te.row_linear(s, "projection", "the output matmul", values, product=s.product([output])),
    )


def _rule(s: Shape, mixer: "GatedDelta", fused: int, of_rank: tuple[int, int, int]) -> Step:
    """Convolution, norms of queries and keys, decays, and the rule in chunks, whose states are made again."""
    keys, values, heads = of_rank
    every = heads * mixer.key_dim
    convolved = 2 * keys + values
    chunks = ceil_div(s.tokens, mixer.chunk)
    states = Held("states of chunks", "T/c·H·D²·e", (chunks, every, mixer.value_dim, s.itemsize))
    made = (
        te.of_tokens(s, "keys that read, of all heads", every, "H·D"),
        te.of_tokens(s, "new values", values, "V"),
        te.of_tokens(s, "values that are written", values, "V"),
        states,
    )
    kept = (
        te.of_tokens(s, "the fused product", fused, "(2K + 2V + 2H)"),
        te.of_tokens(s, "input of the convolution", convolved, "(2K + V)"),
        te.of_tokens(s, "its output", convolved, "(2K + V)"),
        te.of_tokens(s, "normalised queries and keys", 2 * keys, "2K"),
        te.of_tokens(s, "queries and keys of all heads", 2 * every, "2·H·D"),
        te.of_tokens(s, "values and gate", 2 * values, "2V"),
        Held("decays, their sums, write strengths", "T·4·H·4", (s.tokens, 4 * heads, te.FP32)),
        te.of_tokens(s, "inverses of chunks", heads * mixer.chunk, "H·c"),
        te.of_tokens(s, "outputs of heads", values, "V"),
    )
    backward = (
        te.stream(s, te.STREAM_GRADIENT),
        te.of_tokens(s, "gradients of outputs and gate", 2 * values, "2V"),
        *made,
        states._replace(name="gradients of states"),
        te.of_tokens(s, "gradients within the rule", 4 * every + 2 * values, "(4·H·D + 2V)"),
        te.of_tokens(s, "gradients of the convolution's input and the fused product", convolved + fused, "w"),
    )
    exchanged = (te.of_tokens(s, "the fused product by positions", fused, "w"),) if s.context > 1 else ()
    return Step("delta-rule", kept, (*made, *exchanged), (*backward, *exchanged), RULE)


RECOMPUTE = "megatron-core 0.14 transformer/transformer_block.py: _checkpointed_forward"


@lru_cache(maxsize=512)
def layer_steps(s: Shape, layer: Layer) -> Steps:
    """The steps of one layer, in forward order, without full recomputation."""
    mixer, part = layer.mixer, layer.feed_forward
    steps: list[Step] = []
    if mixer is not None and mixer.kind == "latent":
        steps += latent_attention(s, mixer)
    elif mixer is not None and mixer.kind == "gated-delta":
        steps += gated_delta(s, mixer)
    elif isinstance(mixer, Attention):
        steps += self_attention(s, mixer)
    if part is not None and part.experts is not None:
        steps += mixture(s, part, part.experts)
    elif part is not None:
        steps += dense(s, part)
    if s.settings.hidden_dropout:  # fusions/fused_bias_dropout.py: a byte an element of what a branch adds
        masks = Held("dropout masks", "branches·t·h", ((mixer is not None) + (part is not None), s.local, s.hidden))
        steps[-1] = steps[-1]._replace(kept=(*steps[-1].kept, masks))
    return tuple(steps)


@lru_cache(maxsize=512)
def mtp_steps(s: Shape, layer: Layer) -> Steps:
    """The steps of a layer of multi-token prediction."""
    return with_projection(s, layer_steps(s, layer))


@lru_cache(maxsize=512)
def recomputed_steps(s: Shape, layer: Layer) -> Steps:
    """The same under full recomputation: the layer's input is kept, all else is made again."""
    parts = s.tensor if s.settings.distribute_saved_activations and not s.gathers else 1
    steps = layer_steps(s, layer)
    name = steps[0].kept[0].name
    whole = te.stream(s, name)
    kept = Held(name, "t·h·e/tensor parallel", (s.local, s.hidden, s.itemsize, 1 / parts)) if parts > 1 else whole
    return checkpointed(steps, kept)
