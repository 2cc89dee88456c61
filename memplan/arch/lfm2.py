"""LFM2, dense and with experts, as transformers 5.23 builds it: gated short convolutions, attention in some."""

from collections.abc import Callable
from functools import partial

from memplan.arch import attention
from memplan.arch.config import CLASSES, Config
from memplan.arch.decoder import Family, build, softmax_attention
from memplan.arch.hybrid import of_each_layer, with_mask
from memplan.arch.routed import ROUTER_LOSS, expert_count, experts_per_token, layer_numbers, make_experts
from memplan.arch.state_space import convolution
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward, Linear, Norm
from memplan.spec.routing import Routing
from memplan.spec.state_space import ShortConvolution

OLD_NAMES = {"tie_word_embeddings": "tie_embedding", "intermediate_size": "block_ff_dim"}
"""Names that replace the class's own where a config has them."""
CONV = "conv"
NAMES = {CONV: CONV, "attention": attention.FULL, attention.FULL: attention.FULL}


def kinds(config: Config) -> list[str]:
    """As layer_types lists them; else attention in the layers that full_attn_idxs names, in all without either."""
    layers = config.integer("num_hidden_layers")
    if config.value("layer_types") is not None or "full_attn_idxs" not in config.defaults:
        return of_each_layer(config, NAMES)
    if config.value("full_attn_idxs") is None:
        return [attention.FULL] * layers
    named = layer_numbers(config, "full_attn_idxs")
    return [attention.FULL if i in named else CONV for i in range(layers)]


def mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Both kinds of layer."""
    made: dict[str, AnyMixer] = {CONV: short_convolution(config), attention.FULL: attends(family, config)}
    return [made[kind] for kind in kinds(config)]


def short_convolution(config: Config) -> ShortConvolution:
    """in_proj to two gates and the channels that are convolved."""
    h, kernel, bias = config.integer("hidden_size"), config.integer("conv_L_cache"), config.flag("conv_bias")
    return ShortConvolution(
        width=h,
        kernel=kernel,
        linears=(
            Linear(name="in_proj", inputs=h, outputs=3 * h, bias=bias),
            Linear(name="out_proj", inputs=h, outputs=h, bias=bias),
        ),
        tensors=convolution(h, kernel, bias, "conv"),
    )


def attends(family: Family, config: Config) -> Attention:
    """Attention whose heads are normalised, and whose output projection has another name."""
    made = softmax_attention(family, config, None)
    *into, out = made.linears
    norms = tuple(Norm(name=name, width=made.head_dim) for name in ("q_layernorm", "k_layernorm"))
    return made.but(linears=(*into, out.but(name="out_proj")), norms=norms)


def fed(config: Config, f: int) -> FeedForward:
    """w2(silu(w1(x)) * w3(x))."""
    h = config.integer("hidden_size")
    linears = (
        Linear(name="w1", inputs=h, outputs=f),
        Linear(name="w3", inputs=h, outputs=f),
        Linear(name="w2", inputs=f, outputs=h),
    )
    return FeedForward(intermediate=f, linears=linears)


def adjusted(config: Config) -> int:
    """Two thirds of intermediate_size, times a factor, rounded up, unless block_auto_adjust_ff_dim is false."""
    f = config.integer("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim"):
        return f
    factor, multiple = config.value("block_ffn_dim_multiplier"), config.integer("block_multiple_of")
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 < factor < 1e6:
        raise config.wrong("block_ffn_dim_multiplier", "a positive number", factor)
    return -(-int(factor * int(2 * f / 3)) // multiple) * multiple


def dense_layers(family: Family, config: Config) -> list[FeedForward]:
    """The same in every layer."""
    return [fed(config, adjusted(config))] * config.integer("num_hidden_layers")


def moe_layers(family: Family, config: Config) -> list[FeedForward]:
    """num_dense_layers dense ones, then experts chosen by their sigmoids, over their sum."""
    layers, first = config.integer("num_hidden_layers"), config.integer("num_dense_layers", smallest=0)
    count, f = expert_count(config, "num_experts"), config.integer("moe_intermediate_size")
    routing = Routing(
        behind=True,
        scores="sigmoid",
        corrected=config.flag("use_expert_bias"),
        normalize="epsilon-apart" if config.flag("norm_topk_prob") else "no",
        scaled=True,
    )
    routed = make_experts(config, count, experts_per_token(config, count), f, routing)
    sparse = FeedForward(intermediate=f, experts=routed)
    first = min(first, layers)
    return [fed(config, config.integer("intermediate_size"))] * first + [sparse] * (layers - first)


def parse(row: Family, raw: Config) -> ModelSpec:
    """The spec of a config, whose older names replace the class's own."""
    keys = dict(raw.keys)
    for name, old in OLD_NAMES.items():
        if old in keys and (old != "block_ff_dim" or row.model_type == "lfm2"):
            keys[name] = keys.pop(old)
    return build(row, Config(keys, raw.name, raw.source))


def row(model_type: str, feed_forward: Callable[[Family, Config], list[FeedForward]]) -> Family:
    """A row of both."""
    return Family(
        model_type=model_type,
        feed_forward=feed_forward,
        mixers=mixers,
        norms=("operator_norm", "ffn_norm"),
        harmless=("conv_L_cache",),
        not_counted=(("output_router_logits", ROUTER_LOSS),) if "num_experts" in CLASSES[model_type] else (),
        classifies=False,
        finish=with_mask,
    )


ROWS = (row("lfm2", dense_layers), row("lfm2_moe", moe_layers))
FAMILIES = {row.model_type: partial(parse, row) for row in ROWS}
