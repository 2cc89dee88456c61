"""Decoders whose attention and feed-forward read the same input: GPT-NeoX, GPT-J, CodeGen, Phi.

One row a family, as transformers 5.23 builds it (``models/<type>/configuration_<type>.py``, ``modeling_<type>.py``)."""

from functools import partial

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import PRE_NORMS, Family
from memplan.arch.layer_norm import GPT_NAMES, attention_of, plain, rotary, row, with_layers
from memplan.arch.reading import width_of_head
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Norm

BOTH = ("mixer", "feed-forward")


def neox_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Heads of q, k and v interleaved in one linear, cut by ``chunk``; a quarter of each head is rotated."""
    bias = config.flag("attention_bias")
    return attention_of(
        config,
        ("query_key_value", "dense"),
        biases=(bias, bias),
        split_qkv=True,
        **rotary(config, width_of_head(config), "rotary_pct"),
    )


def neox_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Parallel, with a norm for each branch, or one branch after the other."""
    dropout = config.drops("hidden_dropout")
    spec = spec.but(front=("dropout",) if dropout else ())
    form = "parallel-branches" if config.flag("use_parallel_residual") else "pre"
    return with_layers(spec, form=form, dropout=BOTH if dropout else ())


def gptj_attention(family: Family, config: Config, window: int | None) -> Attention:
    """rotary_dim of each head are turned in pairs, by tables that are interleaved for each layer."""
    width, turns = width_of_head(config), config.integer("rotary_dim")
    if turns % 2 or turns > width:
        raise config.wrong("rotary_dim", f"even and at most the width of a head ({width})", turns)
    fused = family.model_type == "codegen"
    return attention_of(
        config,
        ("qkv_proj", "out_proj") if fused else ("q_proj", "k_proj", "v_proj", "out_proj"),
        biases=(False, False),
        dropout="attn_pdrop",
        rotary="half",
        rotary_dim=turns,
        rotary_tables="own",
        split_qkv=fused,
        style="interleaved",
    )


def gptj_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """As Phi's, beside an fp32 table of all positions."""
    table = config.integer("max_position_embeddings") * config.integer("rotary_dim") * 4
    return phi_finish(spec.but(buffer_bytes=table), config)


def phi_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Biases everywhere; norms of q and k where qk_layernorm says so, of hidden_size / heads."""
    width = attention.head_dim(config)
    norm_width = config.integer("hidden_size") // config.integer("num_attention_heads")
    if config.flag("qk_layernorm") and norm_width != width:
        raise config.wrong("head_dim", "hidden_size / num_attention_heads, with qk_layernorm", width)
    norms = tuple(Norm(name=name, width=width, kind="layer", bias=True) for name in ("q_layernorm", "k_layernorm"))
    return attention_of(
        config,
        ("q_proj", "k_proj", "v_proj", "dense"),
        head_dim=width,
        kv_heads=attention.num_kv_heads(config, nullable=True),
        norms=norms if config.flag("qk_layernorm") else (),
        **rotary(config, width),
        rotary_inline=True,
    )


def phi_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """The head has a bias."""
    spec = spec.but(head=spec.head.but(bias=True), front=("dropout",) if config.drops("embd_pdrop") else ())
    return with_layers(spec, dropout=BOTH if config.drops("resid_pdrop") else ())


gptj = partial(
    row,
    names=GPT_NAMES,
    feed_forward=plain("fc_in", "fc_out", width="n_inner"),
    mixer=gptj_attention,
    norms=("ln_1",),
    form="parallel-branches",
    activation_key="activation_function",
    finish=gptj_finish,
)

ROWS = (
    row(model_type="gpt_neox", feed_forward=plain("dense_h_to_4h", "dense_4h_to_h"), mixer=neox_attention,
        heads_divide_hidden=True, finish=neox_finish),
    gptj(model_type="gptj"),
    gptj(model_type="codegen", classifies=False),
    row(model_type="phi", feed_forward=plain("fc1", "fc2"), mixer=phi_attention, norms=PRE_NORMS[:1],
        form="parallel-branches", finish=phi_finish),
)  # fmt: skip
