"""RecurrentGemma (Griffin) as transformers 5.23 builds it (``configuration_recurrent_gemma.py``,
``modeling_recurrent_gemma.py``): gated linear recurrences and local attention in turn."""

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import Family, activation, rotary_factor
from memplan.arch.layer_norm import with_layers
from memplan.arch.reading import quotient, width_of_head
from memplan.arch.state_space import convolution
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, FeedForward, Linear
from memplan.spec.state_space import GatedRecurrence

BLOCKS = ("recurrent", "recurrent", "attention")


def mixers(family: Family, config: Config) -> list[AnyMixer]:
    """``block_types`` over and over."""
    given = config.keys.get("block_types", BLOCKS)
    if not isinstance(given, (list, tuple)) or not given or any(not isinstance(kind, str) for kind in given):
        raise config.wrong("block_types", "a list of recurrent and attention", given)
    made: dict[str, AnyMixer] = {"recurrent": recurrence(family, config)}
    layers = config.integer("num_hidden_layers")
    other = local_attention(config)
    return [made.get(str(given[i % len(given)]), other) for i in range(layers)]


def recurrence(family: Family, config: Config) -> GatedRecurrence:
    """Two branches, a convolution and gates in blocks, as many as attention has heads."""
    h, heads, kernel = (config.integer(key) for key in ("hidden_size", "num_attention_heads", "conv1d_width"))
    width = config.optional_integer("lru_width") or h
    block = quotient(config, "lru_width", width, "num_attention_heads", heads)
    gates = [
        Bare(name=f"{name}_gate_{kind}", shape=shape)
        for name in ("input", "recurrent")
        for kind, shape in (("weight", (heads, block, block)), ("bias", (heads, block)))
    ]
    return GatedRecurrence(
        width=width,
        kernel=kernel,
        activation=activation(family, config),
        linears=(
            Linear(name="linear_y", inputs=h, outputs=width, bias=True),
            Linear(name="linear_x", inputs=h, outputs=width, bias=True),
            Linear(name="linear_out", inputs=width, outputs=h, bias=True),
        ),
        tensors=(*convolution(width, kernel, True, "conv_1d"), Bare(name="recurrent_param", shape=(width,)), *gates),
    )


def local_attention(config: Config) -> Attention:
    """Attention within a window; the output has a bias in any case."""
    h, heads, bias = config.integer("hidden_size"), config.integer("num_attention_heads"), config.flag("attention_bias")
    kv_heads, width = attention.num_kv_heads(config, nullable=True), width_of_head(config)
    turns = int(width * rotary_factor(config))
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        linears=attention.projections(h, heads * width, kv_heads * width, False, (bias, True)),
        window=config.integer("sliding_window"),
        rotary="concatenated",
        rotary_dim=turns,
        rotary_tables="made",
    )


def feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """Gated, of half of intermediate_size, with biases."""
    h, f = config.integer("hidden_size"), config.integer("intermediate_size", smallest=2) // 2
    linears = attention.gated_linears(h, f, h, bias=True)
    made = FeedForward(intermediate=f, activation=activation(family, config), linears=linears)
    return [made] * config.integer("num_hidden_layers")


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """The cap of the logits has a name of its own; the layer names its first norm's output until its end."""
    spec = with_layers(spec, locals_held=("norm",))
    return spec.but(logits_softcap=config.optional_positive("logits_soft_cap"), softcap_at_once=True, front=("scale",))


FAMILY = Family(
    model_type="recurrent_gemma",
    feed_forward=feed_forward,
    mixers=mixers,
    norms=("temporal_pre_norm", "channel_pre_norm"),
    norm_kind="rms-plus-one",
    activation_key="hidden_activation",
    classifies=False,
    names={"sliding_window": "attention_window_size"},
    finish=finish,
)

ROWS = (FAMILY,)
