"""A decoder of equal parts: embedding, layers of softmax attention and a gated feed-forward, final norm, head.

A family of this kind is one row of data (``Family``): the keys it reads with the defaults of its config class, and what
its class builds from them. ``dense.py`` and ``moe.py`` hold the rows; this file turns a row and a config into a spec.
``turned`` says how the classes of a family turn q and k, where they differ from Llama."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

from memplan.arch import attention
from memplan.arch.config import CLASSES, Config, Scalar, note_unread, refuse_foreign
from memplan.arch.reading import share, turning, width_of_head
from memplan.spec.layer import AnyMixer, Form, Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Experts, FeedForward, Linear, Norm, NormKind
from memplan.units import words_of

PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
SANDWICH_NORMS = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")

ACTIVATIONS = {name: name for name in ("silu", "gelu", "gelu_pytorch_tanh")} | {"swish": "silu"}
"""Activations that are one kernel and keep their input; transformers' others keep more or less."""

SIZES = words_of("vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads")
"""Keys whose absence is worth a remark: a config without them is more often cut short than meant so."""

NO_NAMES: Mapping[str, str] = {}


def gated_everywhere(family: "Family", config: Config) -> list[FeedForward]:
    """The same dense feed-forward in every layer."""
    layer = gated(family, config, config.integer("intermediate_size"))
    return [layer] * config.integer("num_hidden_layers")


class Family(NamedTuple):
    """What the transformers class of one model_type builds, as data."""

    model_type: str
    feed_forward: Callable[["Family", Config], Sequence[FeedForward | None]] = gated_everywhere
    """The feed-forward of each layer."""
    windows: Callable[[Config], attention.Windows] = attention.no_windows
    """The attention window of each layer."""
    null_kv_heads: bool = False
    """num_key_value_heads may be null, as where that is its default: then as many as query heads."""
    null_head_dim: bool = False
    """head_dim has a default, but may be null: then hidden_size / num_attention_heads."""
    qkv_bias: Literal["always", "by attention_bias"] = "by attention_bias"
    """Biases of q, k and v; the output projection has one only 'by attention_bias', where the class has that key."""
    bias_keys: tuple[str, str] | None = None
    """The keys that say whether q, k and v, and whether the output projection have biases; an empty one is never."""
    mlp_bias_key: str = "mlp_bias"
    qk_norm: bool = False
    fused: bool = False
    """qkv_proj and gate_up_proj instead of three and two modules."""
    rotary: Literal["half", "concatenated"] = "half"
    norms: tuple[str, ...] = PRE_NORMS
    form: Form = "pre"
    """How the norms stand around mixer and feed-forward: ``Layer.form``."""
    norm_kind: NormKind = "rms"
    activation_key: str = "hidden_act"
    activations: Mapping[str, str] = ACTIVATIONS
    scaled_embedding: bool = False
    score_softcap: bool = False
    """attn_logit_softcapping reaches the scores; Gemma 3 has the key, but its attention does not use it."""
    logits_softcap: bool = False
    heads_divide_hidden: bool = False
    """The config class refuses a hidden_size that is no multiple of num_attention_heads, whatever head_dim says."""
    not_counted: tuple[tuple[str, str], ...] = ()
    """Keys that must be off, and why."""
    probabilities_key: str = "attention_dropout"
    """The key of the dropout of every softmax attention's probabilities, where the class has it; empty where the parts
    of the row say what is dropped out."""
    balances: bool = False
    """Its language-modelling class has a load-balancing loss of the routers (``load_balancing_loss_func``)."""
    dropout_key: str = ""
    """The key of the dropout of both branches' outputs (Phi-3)."""
    names: Mapping[str, str] = NO_NAMES
    """The class's own names of common keys: ``Config.with_defaults``."""
    norm_bias: bool = False
    """Layer norms have a bias."""
    mixer: Callable[["Family", Config, int | None], AnyMixer] | None = None
    """Another mixer than ``softmax_attention``, by the window of its layer."""
    mixers: Callable[["Family", Config], Sequence[AnyMixer | None]] | None = None
    """The mixer of each layer, where its window alone does not say which; equal ones are one object."""
    harmless: tuple[str, ...] = ()
    """Structural keys whose value the class takes for granted (``foreign.py``)."""
    scaled_logits: bool = False
    """The logits are multiplied by a number of the config."""
    classifies: bool = True
    """transformers has a sequence-classification class of this type."""
    finish: Callable[[ModelSpec, Config], ModelSpec] = lambda spec, config: spec
    """What is left to say of the model as a whole: positions, biases of the head, parts outside the layers."""

    @property
    def defaults(self) -> Mapping[str, Scalar]:
        """Every key that decides the structure, with the default of the config class."""
        return CLASSES[self.model_type]


def build(family: Family, raw: Config) -> ModelSpec:
    """The spec of a config that names this family's model_type."""
    config = raw.with_defaults(family.model_type, family.names)
    refuse_foreign(config, granted(family))
    for key, why in family.not_counted:
        config.require_off(key, why)
    note_unread(config)
    config.note_defaults(SIZES if "use_sliding_window" in family.defaults else (*SIZES, "sliding_window"))
    dtype, quantization = config.dtype(), config.quantization()
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    if family.heads_divide_hidden:
        width_of_head(config)
    spec = ModelSpec(
        name=raw.name,
        family=family.model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        tied=config.flag("tie_word_embeddings"),
        runs=runs(family, config),
        final_norm=make_norm(family, "norm", hidden),
        head=Linear(name="lm_head", inputs=hidden, outputs=vocab),
        embedding_multiplier=family.scaled_embedding,
        logits_softcap=config.optional_positive("final_logit_softcapping") if family.logits_softcap else None,
        logits_scaled=family.scaled_logits,
        classifies=family.classifies,
        dtype=dtype,
        max_positions=config.integer("max_position_embeddings")
        if "max_position_embeddings" in family.defaults
        else None,
        rotary_positions=attention.table_rows(config),
        quantization=quantization,
        source=raw.source,
        notes=tuple(config.notes),
    )
    spec = spec.but(router_loss=router_loss(config)) if family.balances and spec.routed else spec
    return with_dropout(family, family.finish(spec, config), config)


def router_loss(config: Config) -> str:
    """Whether the config asks for the load-balancing loss of its routers."""
    if config.value("output_router_logits") is not None and config.flag("output_router_logits"):
        return "on"
    return "zero" if config.keys.get("router_aux_loss_coef") == 0 else "off"


def with_dropout(family: Family, spec: ModelSpec, config: Config) -> ModelSpec:
    """Where probabilities and the outputs of branches are dropped out; the same spec where nothing is."""
    key = family.probabilities_key
    probabilities = key in family.defaults and config.drops(key, nullable=True)
    branches = bool(family.dropout_key) and config.drops(family.dropout_key, nullable=True)
    if not probabilities and not branches:
        return spec
    runs = []
    for run in spec.runs:
        mixer = run.layer.mixer.dropping if run.layer.mixer and probabilities else run.layer.mixer
        dropped = ("mixer", "feed-forward") if branches else run.layer.dropout
        layer = run.layer.but(mixer=mixer, dropout=dropped)
        runs.append(run.but(layer=layer))
    return spec.but(runs=tuple(runs))


def granted(family: Family) -> tuple[str, ...]:
    """Structural keys that a config may repeat, since the class builds what they ask for in any case."""
    biases = ("attention_bias",) if family.qkv_bias == "always" else ()
    return (*family.harmless, *biases, *(("use_qk_norm", "qk_norm") if family.qk_norm else ()))


def make_norm(family: Family, name: str, width: int) -> Norm:
    """A norm of the family's kind."""
    return Norm(name=name, width=width, kind=family.norm_kind, bias=family.norm_bias)


def runs(family: Family, config: Config) -> tuple[Run, ...]:
    """The layers, with consecutive equal ones in one run."""
    feed_forwards = family.feed_forward(family, config)
    mixers = (family.mixers or by_window)(family, config)
    norms = tuple(make_norm(family, name, config.integer("hidden_size")) for name in family.norms)
    layers: dict[tuple[int, int], Layer] = {}
    for mixer, feed_forward in zip(mixers, feed_forwards, strict=True):
        if (id(mixer), id(feed_forward)) not in layers:
            made = Layer(mixer=mixer, feed_forward=feed_forward, norms=norms, form=family.form)
            layers[id(mixer), id(feed_forward)] = made
    kinds = ((id(mixer), id(feed_forward)) for mixer, feed_forward in zip(mixers, feed_forwards, strict=True))
    return tuple(Run(count=len(list(group)), layer=layers[kind]) for kind, group in groupby(kinds))


def by_window(family: Family, config: Config) -> list[AnyMixer]:
    """The mixer of each layer: one for each window."""
    windows, make = family.windows(config), family.mixer or softmax_attention
    mixers = {window: make(family, config, window) for window in set(windows)}
    return [mixers[window] for window in windows]


def softmax_attention(family: Family, config: Config, window: int | None) -> Attention:
    """The attention of one layer."""
    heads, kv_heads, width = (
        config.integer("num_attention_heads"),
        attention.num_kv_heads(config, family.null_kv_heads or family.defaults.get("num_key_value_heads", 0) is None),
        attention.head_dim(config, family.null_head_dim),
    )
    by_key = family.qkv_bias != "always" and "attention_bias" in family.defaults and config.flag("attention_bias")
    biases = (by_key or family.qkv_bias == "always", by_key)
    if family.bias_keys:
        of_qkv, of_o = family.bias_keys
        biases = (bool(of_qkv) and config.flag(of_qkv), bool(of_o) and config.flag(of_o))
    hidden = config.integer("hidden_size")
    norms = [make_norm(family, name, width) for name in ("q_norm", "k_norm")]
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        linears=attention.projections(hidden, heads * width, kv_heads * width, family.fused, biases),
        norms=tuple(norms) if family.qk_norm else (),
        window=window,
        softcap=config.optional_positive("attn_logit_softcapping") if family.score_softcap else None,
        rotary=family.rotary,
    )


def activation(family: Family, config: Config) -> str:
    """The activation of the feed-forward, by its own name."""
    return config.choice(family.activation_key, family.activations)


def gated(family: Family, config: Config, intermediate: int) -> FeedForward:
    """A dense feed-forward: down(activation(gate(x)) * up(x))."""
    h, f = config.integer("hidden_size"), intermediate
    bias = config.flag(family.mlp_bias_key) if family.mlp_bias_key in family.defaults else False
    linears = attention.gated_linears(h, f, h, bias)
    if family.fused:
        linears = (Linear(name="gate_up_proj", inputs=h, outputs=2 * f, bias=bias), linears[-1])
    return FeedForward(intermediate=f, activation=activation(family, config), linears=linears)


def sparse(family: Family, config: Config, experts: Experts, **more: Any) -> FeedForward:
    """A feed-forward of routed experts, and what ``more`` it has."""
    act = activation(family, config)
    return FeedForward(intermediate=experts.intermediate, activation=act, experts=experts, **more)


Field = Any
"""A value, or a function of the config that gives it."""


def turned(**fields: Field) -> Callable[[Family, Config, int | None], Attention]:
    """The mixer of a row: softmax attention with these fields of ``Attention``."""

    def mixer(family: Family, config: Config, window: int | None) -> Attention:
        values = {name: value(config) if callable(value) else value for name, value in fields.items()}
        return softmax_attention(family, config, window).model_copy(update=values)

    return mixer


def tables_by_kind(spec: ModelSpec, config: Config) -> ModelSpec:
    """A table of cos and one of sin for each kind of layer (Gemma 3, OLMo 3)."""
    return spec.but(rotary_sets=len({mixer.window for mixer in spec.mixers}))


def rotary_dim(config: Config) -> int | None:
    """Elements of each head that turn: int(head_dim × partial_rotary_factor); None for all of them.

    The factor stands in rope_parameters (rope_scaling in older files) or beside it; else the class's default."""
    width = attention.head_dim(config, nullable=True)
    return turning(config, "partial_rotary_factor", rotary_factor(config), width)


def rotary_factor(config: Config) -> float:
    """partial_rotary_factor, wherever the config says it."""
    for section in ("rope_parameters", "rope_scaling"):
        values = config.keys.get(section)
        if isinstance(values, Mapping) and values.get("partial_rotary_factor") is not None:
            factor = values["partial_rotary_factor"]
            break
    else:
        factor = config.value("partial_rotary_factor")
    return share(config, "partial_rotary_factor", factor)
