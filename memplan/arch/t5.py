"""T5, T5 v1.1, Flan-T5, UL2 and mT5: an encoder and a decoder that attends to it, with relative positions as a bias.

As transformers 5.23 builds them (``models/t5/configuration_t5.py``, ``modeling_t5.py``; mT5's are copies). The
embedding serves both stacks and the head: the class ties them always, and takes ``tie_word_embeddings: false`` of
v1.1's configs for "the decoder's output is not scaled". A checkpoint that holds another head than its embedding (v1.1,
Flan-T5, UL2, mT5) is untied again when it is loaded; that head is not in the counts here."""

from functools import partial

from memplan.arch.config import Config
from memplan.arch.decoder import Family, build
from memplan.arch.encoders import both_stacks, pooled
from memplan.arch.layer_norm import ACTIVATIONS, row
from memplan.spec.encoders import Encoder
from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, FeedForward, Linear, Norm

NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "head_dim": "d_kv",
}

SEPARATE_HEAD = (
    "the checkpoints of T5 v1.1, Flan-T5, UL2 and mT5 hold a separate head of vocab_size × d_model weights, "
    "which is not counted: transformers' class ties it until such a checkpoint is loaded"
)


def t5_norm(name: str, width: int) -> Norm:
    """``T5LayerNorm``."""
    return Norm(name=name, width=width, kind="rms-t5")


def feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """relu, or gated: ``wo(act(wi_0(x)) * wi_1(x))``."""
    hidden, inner, given = config.integer("hidden_size"), config.integer("d_ff"), config.value("feed_forward_proj")
    kind = given.split("-") if isinstance(given, str) else []
    if not 1 <= len(kind) <= 2 or (len(kind) == 2 and kind[0] != "gated") or kind[-1] not in ACTIVATIONS:
        raise config.wrong("feed_forward_proj", "an activation, or gated- and an activation", given)
    gated = kind[0] == "gated"
    names = ("wi_0", "wi_1") if gated else ("wi",)
    into = tuple(Linear(name=name, inputs=hidden, outputs=inner) for name in names)
    made = FeedForward(
        intermediate=inner,
        activation="gelu_new" if given == "gated-gelu" else ACTIVATIONS[kind[-1]],
        gated=gated,
        linears=(*into, Linear(name="wo", inputs=inner, outputs=hidden)),
        dropout=config.drops("dropout_rate"),
    )
    return [made] * config.integer("num_hidden_layers")


def attention(family: Family, config: Config, window: int | None) -> Attention:
    """q, k, v and o without biases; scores are not scaled."""
    hidden, heads, width = (config.integer(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    into = tuple(Linear(name=name, inputs=hidden, outputs=heads * width) for name in "qkv")
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width,
        linears=(*into, Linear(name="o", inputs=heads * width, outputs=hidden)),
        dropout=config.drops("dropout_rate"),
        rotary="none",
        style="t5",
    )


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Two stacks of the same layers; those of the second attend to the first."""
    both_stacks(config)
    hidden, layer = spec.hidden_size, spec.runs[0].layer
    layers = spec.num_layers
    decoder = config.integer("num_decoder_layers")
    dropped, rested = config.drops("dropout_rate"), config.drops("classifier_dropout")
    layer = layer.but(
        norms=tuple(t5_norm("layer_norm", hidden) for _ in range(2)),
        dropout=("mixer", "feed-forward") if dropped else (),
    )
    assert isinstance(layer.mixer, Attention)
    second = layer.but(
        norms=tuple(t5_norm("layer_norm", hidden) for _ in range(3)),
        mixer=layer.mixer.but(style="t5-decoder"),
        cross=layer.mixer.but(style="t5-cross"),
    )
    buckets = config.integer("relative_attention_num_buckets")
    table = Bare(name="relative_attention_bias", shape=(buckets, layer.mixer.num_heads))
    untied = config.value("tie_word_embeddings") is False
    scaled = spec.family == "t5" and not untied
    return spec.but(
        task="seq2seq",
        front=("dropout",) if dropped else (),
        tied=True,
        runs=(*with_table(layer, table, layers), *with_table(second, table, decoder)),
        encoder=Encoder(layers=layers, final_norm=t5_norm("final_layer_norm", hidden), dropout=dropped),
        final_norm=t5_norm("final_layer_norm", hidden),
        scaled_head_input=scaled,
        scoring=pooled(hidden, "dense", "out_proj", first_dropout=rested, dropout=rested),
        notes=(*spec.notes, SEPARATE_HEAD) if untied else spec.notes,
    )


def with_table(layer: Layer, table: Bare, count: int) -> list[Run]:
    """A stack whose first layer holds the table of relative positions, from which it makes the bias of all."""
    assert isinstance(layer.mixer, Attention)
    first = layer.but(mixer=layer.mixer.but(tensors=(table,)))
    runs = [Run(count=1, layer=first)]
    return [*runs, Run(count=count - 1, layer=layer)] if count > 1 else runs


t5_row = partial(
    row,
    names=NAMES,
    mixer=attention,
    feed_forward=feed_forward,
    norm_kind="rms-t5",
    norm_bias=False,
    form="t5",
    finish=finish,
    activation_key="feed_forward_proj",
)

ROWS = (t5_row(model_type="t5"), t5_row(model_type="mt5"))


def symmetric(family: Family, raw: Config) -> ModelSpec:
    """As many decoder layers as num_layers says, which the class reads before it sees num_hidden_layers."""
    keys = dict(raw.keys)
    if keys.get("num_decoder_layers") is None:
        keys["num_decoder_layers"] = keys.get("num_layers", family.defaults["num_hidden_layers"])
    return build(family, Config(keys, raw.name, raw.source))


FAMILIES = {made.model_type: partial(symmetric, made) for made in ROWS}
