"""Gated delta rules in three of four layers, gated attention in the fourth: Qwen3-Next, and the language models of
Qwen3.5, as transformers 5.23 builds them."""

from collections.abc import Callable

from memplan.arch import attention
from memplan.arch.config import CLASSES, Config
from memplan.arch.decoder import ACTIVATIONS, Family, gated, gated_everywhere, rotary_dim, softmax_attention
from memplan.arch.hybrid import LAYER_NAMES, LINEAR, of_each_layer, with_mask
from memplan.arch.reading import quotient
from memplan.arch.routed import every_step, softmax_routing
from memplan.arch.shared_moe import behind_gate
from memplan.arch.state_space import convolution, served_itemsize
from memplan.spec.layer import AnyMixer
from memplan.spec.parts import Attention, Bare, FeedForward, Linear, Norm
from memplan.spec.routing import Routing
from memplan.spec.state_space import GatedDelta


def kinds(config: Config) -> list[str]:
    """As layer_types lists them; else attention in every full_attention_interval-th layer."""
    layers = config.integer("num_hidden_layers")
    if config.value("layer_types") is None:
        every = config.integer("full_attention_interval")
        return [LINEAR if (i + 1) % every else attention.FULL for i in range(layers)]
    return of_each_layer(config, LAYER_NAMES)


def mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Both kinds of layer."""
    made: dict[str, AnyMixer] = {LINEAR: delta(family, config), attention.FULL: gated_attention(family, config)}
    return [made[kind] for kind in kinds(config)]


def gated_attention(family: Family, config: Config) -> Attention:
    """q_proj makes queries and a gate for each, whose sigmoid multiplies what comes out."""
    made = softmax_attention(family, config, None)
    q, *others = made.linears
    wide = q.but(outputs=2 * q.outputs)
    turns = {"rotary": "concatenated", "rotary_dim": rotary_dim(config), "style": "gated"}
    return made.model_copy(update={"linears": (wide, *others), **turns})


def delta(family: Family, config: Config) -> GatedDelta:
    """The gated delta rule; Qwen3.5 makes of four linears what Qwen3-Next makes of two."""
    h, kernel = config.integer("hidden_size"), config.integer("linear_conv_kernel_dim")
    key_heads, value_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    key_dim, value_dim = config.integer("linear_key_head_dim"), config.integer("linear_value_head_dim")
    quotient(config, "linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)
    config.choice("hidden_act", ACTIVATIONS)
    keys, values = key_heads * key_dim, value_heads * value_dim
    out = Linear(name="out_proj", inputs=values, outputs=h)
    if family.model_type == "qwen3_next":
        into: tuple[tuple[str, int], ...] = (("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * value_heads))
    else:
        into = (
            ("in_proj_qkv", 2 * keys + values),
            ("in_proj_z", values),
            ("in_proj_b", value_heads),
            ("in_proj_a", value_heads),
        )
    return GatedDelta(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        kernel=kernel,
        state_itemsize=served_itemsize(config, "mamba_ssm_dtype", 0 if family.model_type == "qwen3_next" else 4),
        linears=(*(Linear(name=name, inputs=h, outputs=width) for name, width in into), out),
        tensors=(
            Bare(name="dt_bias", shape=(value_heads,)),
            Bare(name="A_log", shape=(value_heads,)),
            *convolution(2 * keys + values, kernel, False),
        ),
        norms=(Norm(name="linear_attn.norm", width=value_dim),),
    )


def next_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts in every decoder_sparse_step-th layer, when there are any."""
    dense = gated(family, config, config.integer("intermediate_size"))
    if config.value("num_experts") == 0:
        return [dense] * config.integer("num_hidden_layers")
    return every_step(config, dense, behind_gate(family, config, softmax_routing(config)))


def moe_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts in every layer, their weights over their sum."""
    routing = Routing(normalize="in-place", narrowed=True)
    return [behind_gate(family, config, routing)] * config.integer("num_hidden_layers")


def row(model_type: str, feed_forward: Callable[[Family, Config], list[FeedForward]], classifies: bool) -> Family:
    """A row of these; sizes of experts in the config of a dense model bear on nothing."""
    return Family(
        model_type=model_type,
        feed_forward=feed_forward,
        qk_norm=True,
        norm_kind="rms-plus-one",
        mixers=mixers,
        balances="num_experts" in CLASSES[model_type],
        classifies=classifies,
        finish=with_mask,
    )


ROWS = (
    row("qwen3_next", next_layers, classifies=True),
    row("qwen3_5_text", gated_everywhere, classifies=True),
    row("qwen3_5_moe_text", moe_layers, classifies=False),
)
