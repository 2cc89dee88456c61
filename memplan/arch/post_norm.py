"""Decoders whose norms stand elsewhere than Llama's: after (OLMo 2 and 3, EXAONE 4), before and after (GLM-4), once for
both (Cohere), or without parameters (OLMo), as transformers 5.23 builds them.

One row a family; see ``dense.py``."""

from functools import partial

from memplan.arch import attention
from memplan.arch.attention import patterned
from memplan.arch.config import Config
from memplan.arch.decoder import Family, rotary_dim, softmax_attention, tables_by_kind, turned
from memplan.arch.dense import fused_everywhere
from memplan.arch.llama_like import both_masks
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Norm

POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
AROUND_NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


def every_fourth(config: Config) -> attention.Windows:
    """Every fourth layer attends to all, unless sliding_window_pattern or layer_types says otherwise."""
    return patterned(config, config.integer("sliding_window_pattern") if "sliding_window_pattern" in config.keys else 4)


def exaone4_windows(config: Config) -> attention.Windows:
    """As ``every_fourth``; without a window, layer_types must say that there is none."""
    size, listed = config.optional_integer("sliding_window"), attention.layer_types(config)
    if listed is None:
        if size is None:
            raise config.wrong("layer_types", "given, since sliding_window is null", None)
        return patterned(config, config.integer("sliding_window_pattern"))
    return attention.layered(config, listed, size)


def olmo_attention(family: Family, config: Config, window: int | None) -> Attention:
    """cos and sin in fp32, and projections that may be clamped."""
    clip = config.optional_positive("clip_qkv") if "clip_qkv" in family.defaults else None
    return turned(rotary_tables="fp32", clipped=clip is not None)(family, config, window)


def olmo2_attention(family: Family, config: Config, window: int | None) -> Attention:
    """As OLMo's, q and k normalised over all heads together."""
    return whole_norms(family, olmo_attention(family, config, window))


def whole_norms(family: Family, made: Attention) -> Attention:
    """q and k normalised over all heads together."""
    widths = (("q_norm", made.num_heads * made.head_dim), ("k_norm", made.num_kv_heads * made.head_dim))
    return made.but(norms=tuple(Norm(name=name, width=width, kind=family.norm_kind) for name, width in widths))


def cohere_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Turned in fp32; q and k may be normalised, each head with weights of its own."""
    made = softmax_attention(family, config, window).but(rotary_wide=True)
    if config.value("use_qk_norm") is None or not config.flag("use_qk_norm"):
        return made
    groups = (("q_norm", made.num_heads), ("k_norm", made.num_kv_heads))
    norms = tuple(Norm(name=name, width=n * made.head_dim, kind="layer-wide", groups=n) for name, n in groups)
    return made.but(norms=norms)


def cohere2_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Turned in fp32 in layers with a window; the others have no positions."""
    made = softmax_attention(family, config, window)
    return made.model_copy(update={"rotary": "none"} if window is None else {"rotary_wide": True})


def exaone4_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Where some layers have windows, the others have no positions."""
    made = softmax_attention(family, config, window)
    hybrid = config.value("sliding_window") is not None
    return made.but(rotary="none") if hybrid and window is None else made


def olmo3(spec: ModelSpec, config: Config) -> ModelSpec:
    """Tables of cos and sin for each kind of layer, too."""
    return tables_by_kind(both_masks(spec, config), config)


OLMO2_ROW = Family(model_type="olmo2", norms=POST_NORMS, form="post", norm_kind="rms-wide", mixer=olmo2_attention)
COHERE_ROW = Family(
    model_type="cohere",
    norms=("input_layernorm",),
    form="parallel",
    norm_kind="layer-wide",
    mixer=cohere_attention,
    scaled_logits=True,
    classifies=False,
)
ROWS = (
    Family(model_type="glm4", feed_forward=fused_everywhere, bias_keys=("attention_bias", ""), norms=AROUND_NORMS,
        form="sandwich", mixer=turned(rotary="concatenated", rotary_tables="repeated", rotary_dim=rotary_dim)),
    Family(model_type="olmo", norm_kind="layer-bare", mixer=olmo_attention),
    OLMO2_ROW,
    OLMO2_ROW._replace(model_type="olmo3", windows=partial(patterned, period=4), finish=olmo3),
    Family(model_type="exaone4", windows=exaone4_windows, qk_norm=True, norms=POST_NORMS, form="post",
        mixer=exaone4_attention),
    COHERE_ROW,
    COHERE_ROW._replace(model_type="cohere2", windows=every_fourth, mixer=cohere2_attention, finish=both_masks),
)  # fmt: skip
