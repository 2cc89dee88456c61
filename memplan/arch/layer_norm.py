"""Decoders with LayerNorm and rotary embeddings, one branch after the other: StarCoder2, Nemotron, Persimmon, StableLM.

One row a family, as transformers 5.23 builds it (``models/<type>/configuration_<type>.py``, ``modeling_<type>.py``).
``parallel.py`` holds those with parallel branches; StableLM-2-12B is one by its config."""

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import Family
from memplan.arch.layer_norm_parts import attention_of, plain, rotary, row, with_layers
from memplan.arch.reading import width_of_head
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Norm


def starcoder2_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Llama's, with biases by use_bias."""
    bias = config.flag("use_bias")
    return attention_of(
        config,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        biases=(bias, bias),
        head_dim=attention.head_dim(config),
        kv_heads=attention.num_kv_heads(config, nullable=False),
        window=window,
    )


def starcoder2_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Dropout of the embedding's output and of both branches."""
    spec = spec.but(front=("dropout",) if config.drops("embedding_dropout") else ())
    return with_layers(spec, dropout=("mixer", "feed-forward") if config.drops("residual_dropout") else ())


def nemotron_attention(family: Family, config: Config, window: int | None) -> Attention:
    """A part of each head is rotated; its class has no answer to null key/value heads."""
    bias, width = config.flag("attention_bias"), attention.head_dim(config)
    return attention_of(
        config,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        biases=(bias, bias),
        head_dim=width,
        kv_heads=attention.num_kv_heads(config, nullable=False),
        **rotary(config, width),
    )


def persimmon_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Heads of q, k and v interleaved in one linear; norms of each head of q and k."""
    width = width_of_head(config)
    norms = tuple(Norm(name=name, width=width, kind="layer", bias=True) for name in ("q_layernorm", "k_layernorm"))
    return attention_of(
        config,
        ("query_key_value", "dense"),
        norms=norms if config.flag("qk_layernorm") else (),
        **rotary(config, width),
        rotary_inline=True,
    )


def persimmon_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Dropout after the feed-forward alone."""
    return with_layers(spec, dropout=("feed-forward",) if config.drops("hidden_dropout") else ())


def stablelm_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Biases of q, k and v by use_qkv_bias; norms of each head of q and k by qk_layernorm."""
    width, heads = width_of_head(config), config.integer("num_attention_heads")
    kv_heads, bias = attention.num_kv_heads(config, nullable=False), config.flag("use_qkv_bias")
    norms = tuple(
        Norm(name=name, width=count * width, kind="layer", groups=count)
        for name, count in (("q_layernorm", heads), ("k_layernorm", kv_heads))
    )
    return attention_of(
        config,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        biases=(bias, False),
        kv_heads=kv_heads,
        norms=norms if config.flag("qk_layernorm") else (),
        **rotary(config, width),
        rotary_inline=True,
    )


def stablelm_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Parallel with one norm, or serial with two; dropout after the feed-forward alone."""
    dropout = ("feed-forward",) if config.drops("hidden_dropout") else ()
    spec = with_layers(spec, dropout=dropout, locals_held=("mixer", "norm"))
    if not config.flag("use_parallel_residual"):
        return spec
    return with_layers(spec, form="parallel", norms=spec.runs[0].layer.norms[:1])


ROWS = (
    row(model_type="starcoder2", feed_forward=plain("c_fc", "c_proj", bias="use_bias"), windows=attention.one_window,
        mixer=starcoder2_attention, finish=starcoder2_finish),
    row(model_type="nemotron", feed_forward=plain("up_proj", "down_proj", bias="mlp_bias"), mixer=nemotron_attention,
        norm_kind="layer-plus-one"),
    row(model_type="persimmon", feed_forward=plain("dense_h_to_4h", "dense_4h_to_h"), mixer=persimmon_attention,
        finish=persimmon_finish),
    row(model_type="stablelm", mixer=stablelm_attention, finish=stablelm_finish),
)  # fmt: skip
