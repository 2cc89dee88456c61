"""What decoders with LayerNorm share: attention by its modules' own names, feed-forwards without gate, positions. And
those with rotary embeddings and one branch after the other: StarCoder2, Nemotron, Persimmon, StableLM.

Each class names its modules and its dropouts otherwise, so a family says which; the parts are the same. One row a
family, as transformers 5.23 builds it (``models/<type>/configuration_<type>.py``, ``modeling_<type>.py``).
``parallel_branches.py`` holds those with parallel branches; StableLM-2-12B is one by its config."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import Family, activation, rotary_factor
from memplan.arch.reading import share, turning, width_of_head
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, FeedForward, Linear, Norm, Part

ACTIVATIONS: Mapping[str, str] = {
    name: name
    for name in ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "quick_gelu", "relu", "relu2", "tanh")
} | {"swish": "silu"}
"""Keys of ``engine.activations.ACTIVATIONS`` by the names of transformers' ``ACT2FN``."""


GPT_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
"""``attribute_map`` of GPT-2, GPT-BigCode, GPT-J and CodeGen."""

row = partial(Family, norm_kind="layer", norm_bias=True, probabilities_key="", activations=ACTIVATIONS)
"""A row of a family with LayerNorm, whose parts say which dropouts they have."""


def attention_of(
    config: Config,
    names: tuple[str, ...],
    biases: tuple[bool, bool] = (True, True),
    head_dim: int | None = None,
    kv_heads: int | None = None,
    dropout: str = "attention_dropout",
    **fields: Any,
) -> Attention:
    """Softmax attention whose linears have these names: q, k, v, out; or qkv, out.

    ``biases``: of q, k, v, and of the output. ``kv_heads``: None for as many. ``dropout``: its probability's key."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = head_dim or width_of_head(config)
    q, kv = heads * width, (kv_heads or heads) * width
    outputs = (q + 2 * kv,) if len(names) == 2 else (q, kv, kv)
    into = tuple(
        Linear(name=name, inputs=hidden, outputs=size, bias=biases[0])
        for name, size in zip(names[:-1], outputs, strict=True)
    )
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads or heads,
        head_dim=width,
        linears=(*into, Linear(name=names[-1], inputs=q, outputs=hidden, bias=biases[1])),
        dropout=bool(dropout) and config.drops(dropout, nullable=True),
        **fields,
    )


def rotary(config: Config, width: int, key: str = "partial_rotary_factor") -> dict[str, Any]:
    """Fields of an attention that turns int(head_dim × factor) elements of each head and joins the rest by ``cat``."""
    factor = rotary_factor(config) if key == "partial_rotary_factor" else own_factor(config, key)
    return {"rotary": "concatenated", "rotary_dim": turning(config, key, factor, width)}


def own_factor(config: Config, key: str) -> float:
    """The factor of rope_parameters (rope_scaling in older files), or else the class's own key beside it."""
    for section in ("rope_scaling", "rope_parameters"):
        values = config.keys.get(section)
        if isinstance(values, Mapping) and values:
            factor = values.get("partial_rotary_factor", config.value(key))
            break
    else:
        factor = config.value(key)
    return share(config, key, factor)


def plain_feed_forward(
    family: Family, config: Config, names: tuple[str, str], width: int, bias: bool, act: str = ""
) -> list[FeedForward]:
    """The same feed-forward without gate in every layer; ``act``: where the class names no other."""
    hidden = config.integer("hidden_size")
    up = Linear(name=names[0], inputs=hidden, outputs=width, bias=bias)
    down = Linear(name=names[1], inputs=width, outputs=hidden, bias=bias)
    layer = FeedForward(
        intermediate=width, activation=act or activation(family, config), gated=False, linears=(up, down)
    )
    return [layer] * config.integer("num_hidden_layers")


def plain(
    up: str, down: str, width: str = "intermediate_size", bias: str | bool = True
) -> Callable[[Family, Config], list[FeedForward]]:
    """The same, of modules with these names; ``width`` is a key, for 4 h where null is its default, ``bias`` may be."""

    def layers(family: Family, config: Config) -> list[FeedForward]:
        size = inner(config, width) if config.defaults[width] is None else config.integer(width)
        return plain_feed_forward(
            family, config, (up, down), size, config.flag(bias) if isinstance(bias, str) else bias
        )

    return layers


def inner(config: Config, key: str) -> int:
    """The width of a feed-forward; null is 4 h."""
    return config.optional_integer(key) or 4 * config.integer("hidden_size")


def with_layers(spec: ModelSpec, **fields: Any) -> ModelSpec:
    """The same model, with these fields of ``Layer`` in every layer."""

    def changed(layer: Layer) -> Layer:
        return layer.model_copy(update=fields)

    runs = tuple(run.but(layer=changed(run.layer)) for run in spec.runs)
    return spec.but(runs=runs)


def learned_positions(spec: ModelSpec, positions: int, dropout: bool) -> ModelSpec:
    """A table of positions, added to the embedding's output."""
    table = Part(tensors=(Bare(name="wpe", shape=(positions, spec.hidden_size)),), category="pos_or_other_embed")
    front = ("positions", "dropout") if dropout else ("positions",)
    return spec.but(extra=(table,), front=front)


def common_name(raw: Config) -> Config:
    """The same config with ``n_embed``, which its class prefers to hidden_size, under the common name."""
    if raw.keys.get("n_embed") is None:
        return raw
    keys = {key: value for key, value in raw.keys.items() if key != "n_embed"}
    return Config({**keys, "hidden_size": raw.keys["n_embed"]}, raw.name, raw.source)


def biased_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Llama's, with biases by use_bias; or by attention_bias, and a part of each head is rotated (Nemotron). Neither
    class has an answer to null key/value heads."""
    key, width = "use_bias" if "use_bias" in config.defaults else "attention_bias", attention.head_dim(config)
    bias = config.flag(key)
    return attention_of(
        config,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        biases=(bias, bias),
        head_dim=width,
        kv_heads=attention.num_kv_heads(config, nullable=False),
        window=window,
        **({} if key == "use_bias" else rotary(config, width)),
    )


def starcoder2_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Dropout of the embedding's output and of both branches."""
    spec = spec.but(front=("dropout",) if config.drops("embedding_dropout") else ())
    return with_layers(spec, dropout=("mixer", "feed-forward") if config.drops("residual_dropout") else ())


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
        mixer=biased_attention, finish=starcoder2_finish),
    row(model_type="nemotron", feed_forward=plain("up_proj", "down_proj", bias="mlp_bias"), mixer=biased_attention,
        norm_kind="layer-plus-one"),
    row(model_type="persimmon", feed_forward=plain("dense_h_to_4h", "dense_4h_to_h"), mixer=persimmon_attention,
        finish=persimmon_finish),
    row(model_type="stablelm", mixer=stablelm_attention, finish=stablelm_finish),
)  # fmt: skip
