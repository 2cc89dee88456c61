"""Decoders with LayerNorm and learned positions: GPT-2, GPT-BigCode (SantaCoder, StarCoder), GPT-Neo, OPT.

One row a family, as transformers 5.23 builds it (``models/<type>/configuration_<type>.py``, ``modeling_<type>.py``)."""

from memplan.arch.config import Config
from memplan.arch.decoder import Family
from memplan.arch.layer_norm import (
    GPT_NAMES,
    attention_of,
    inner,
    learned_positions,
    plain,
    plain_feed_forward,
    row,
    with_layers,
)
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, FeedForward, Linear, Norm, Part


def gpt2_attention(family: Family, config: Config, window: int | None) -> Attention:
    """One ``Conv1D`` for q, k and v, cut by ``split``."""
    made = attention_of(
        config,
        ("c_attn", "c_proj"),
        dropout="attn_pdrop",
        rotary="none",
        split_qkv=True,
        style="gpt2-upcast" if config.flag("reorder_and_upcast_attn") else "gpt2",
    )
    return made.but(linears=transposed(made.linears))


def transposed(linears: tuple[Linear, ...]) -> tuple[Linear, ...]:
    """As ``Conv1D`` stores them."""
    return tuple(linear.but(transposed=True) for linear in linears)


def gpt2_feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """c_fc and c_proj of n_inner, or else 4 h; ``Conv1D`` in GPT-2, linears in GPT-BigCode."""
    layers = plain_feed_forward(family, config, ("c_fc", "c_proj"), inner(config, "n_inner"), True)
    if family.model_type == "gpt2":
        conv = layers[0].but(linears=transposed(layers[0].linears))
        layers = [conv] * len(layers)
    return layers


def gpt2_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Learned positions, dropout; GPT-BigCode keeps a causal mask of all positions."""
    positions = config.integer("max_position_embeddings")
    spec = learned_positions(spec, positions, config.drops("embd_pdrop"))
    if "multi_query" in config.defaults:
        spec = spec.but(buffer_bytes=positions * positions)
    dropout = ("mixer", "feed-forward") if config.drops("resid_pdrop") else ()
    return with_layers(spec, dropout=dropout, locals_held=("mixer",))


def bigcode_attention(family: Family, config: Config, window: int | None) -> Attention:
    """One key and value head for all queries, or as many, fused with q."""
    kv_heads = 1 if config.flag("multi_query") else None
    return attention_of(
        config, ("c_attn", "c_proj"), kv_heads=kv_heads, dropout="attn_pdrop", rotary="none", split_qkv=True
    )


def neo_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Scores in fp32, without scaling; a bias on the output alone."""
    return attention_of(
        config,
        ("q_proj", "k_proj", "v_proj", "out_proj"),
        biases=(False, True),
        rotary="none",
        style="gpt-neo",
        eager_only=True,
    )


def neo_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Every layer keeps a causal mask of all positions, one byte each, in which a local window is cut."""
    layers, positions = spec.num_layers, config.integer("max_position_embeddings")
    if attention_types(config) != layers:
        raise config.wrong(
            "attention_types", f"kinds of as many layers as num_layers ({layers})", config.value("attention_types")
        )
    spec = learned_positions(spec, positions, config.drops("embed_dropout"))
    spec = spec.but(buffer_bytes=layers * positions * positions)
    dropout = ("mixer", "feed-forward") if config.drops("resid_dropout") else ()
    return with_layers(spec, dropout=dropout, locals_held=("mixer",))


def attention_types(config: Config) -> int:
    """Layers that attention_types, [[kinds, times], …], names; 24 by default."""
    given = config.value("attention_types")
    if given is None:
        return 24
    wrong = config.wrong("attention_types", "a list of [kinds, times], kinds of global and local", given)
    if not isinstance(given, (list, tuple)):
        raise wrong
    count = 0
    for item in given:
        if not isinstance(item, (list, tuple)) or len(item) != 2:
            raise wrong
        kinds, times = item
        if not isinstance(kinds, (list, tuple)) or not set(map(str, kinds)) <= {"global", "local"}:
            raise wrong
        if not isinstance(times, int) or isinstance(times, bool) or not 0 <= times <= 10_000:
            raise wrong
        count += len(kinds) * times
    return count


def opt_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Queries are scaled before the kernel; biases by enable_bias."""
    bias = config.flag("enable_bias")
    return attention_of(
        config, ("q_proj", "k_proj", "v_proj", "out_proj"), biases=(bias, bias), rotary="none", style="opt"
    )


def opt_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Positions two longer than said; norms after the sums and an embedding of its own width in opt-350m."""
    hidden, before = spec.hidden_size, config.flag("do_layer_norm_before")
    affine = config.flag("layer_norm_elementwise_affine")
    norms = tuple(opt_norm(name, hidden, affine) for name in ("self_attn_layer_norm", "final_layer_norm"))
    final = before and not config.flag("_remove_final_layer_norm")
    width = config.optional_integer("word_embed_proj_dim") or hidden
    spec = with_layers(
        spec,
        norms=norms,
        form="pre" if before else "after-sum",
        dropout=("mixer", "feed-forward") if config.drops("dropout") else (),
    )
    table = Part(
        tensors=(Bare(name="embed_positions", shape=(config.integer("max_position_embeddings") + 2, hidden)),),
        category="pos_or_other_embed",
    )
    update: dict[str, object] = {
        "final_norm": opt_norm("final_layer_norm", hidden, affine) if final else None,
        "extra": (table,),
        "front": ("row-positions",),
    }
    if width != hidden:
        update |= {
            "extra": (table, Part(linears=(Linear(name="project_in", inputs=width, outputs=hidden),))),
            "front": ("project", "row-positions"),
            "project_out": Linear(name="project_out", inputs=hidden, outputs=width),
            "embedding_width": width,
            "head": Linear(name="lm_head", inputs=width, outputs=spec.vocab_size),
        }
    return spec.model_copy(update=update)


def opt_norm(name: str, width: int, affine: bool) -> Norm:
    """An ``nn.LayerNorm``, with or without parameters."""
    return Norm(name=name, width=width, kind="layer" if affine else "layer-plain", bias=affine)


GPT_NORMS = ("ln_1", "ln_2")

SKIPS_LAYERS = "each step skips layers at random"

ROWS = (
    row(model_type="gpt2", names=GPT_NAMES, feed_forward=gpt2_feed_forward, mixer=gpt2_attention, norms=GPT_NORMS,
        activation_key="activation_function", finish=gpt2_finish,
        not_counted=(("add_cross_attention", "attention to an encoder"),)),
    row(model_type="gpt_bigcode", names=GPT_NAMES, feed_forward=gpt2_feed_forward, mixer=bigcode_attention,
        norms=GPT_NORMS, activation_key="activation_function", finish=gpt2_finish,
        not_counted=(("add_cross_attention", "attention to an encoder"),)),
    row(model_type="gpt_neo", names={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        feed_forward=plain("c_fc", "c_proj"), mixer=neo_attention, norms=GPT_NORMS,
        activation_key="activation_function", finish=neo_finish),
    row(model_type="opt", feed_forward=plain("fc1", "fc2", width="ffn_dim", bias="enable_bias"), mixer=opt_attention,
        norms=("self_attn_layer_norm", "final_layer_norm"), activation_key="activation_function", finish=opt_finish,
        not_counted=(("layerdrop", SKIPS_LAYERS),)),
)  # fmt: skip
