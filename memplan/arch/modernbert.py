"""ModernBERT: an encoder with rotary embeddings, local and global windows, gated feed-forwards and norms before them.

As transformers 5.23 builds it (``models/modernbert/configuration_modernbert.py``, ``modeling_modernbert.py``). A local
window of local_attention tokens is a half to either side, which is what its masks are made of."""

from memplan.arch.attention import FULL, SLIDING
from memplan.arch.config import Config, shown
from memplan.arch.decoder import Family
from memplan.arch.layer_norm import ACTIVATIONS, attention_of, row, with_layers
from memplan.arch.reading import kinds_of_layers
from memplan.arch.towers import layer_norm
from memplan.spec.encoders import Pooler
from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward, Linear, Part


def modernbert_windows(config: Config) -> list[int | None]:
    """None for global layers, half of local_attention for local ones: by layer_types, else one global in each n."""
    layers, half = config.integer("num_hidden_layers"), config.integer("local_attention", smallest=2) // 2
    given, every = config.value("layer_types"), config.integer("global_attn_every_n_layers")
    if given is None:
        return [half if i % every else None for i in range(layers)]
    kinds = kinds_of_layers(config, "layer_types", given, {FULL: FULL, SLIDING: SLIDING}, more=True)
    return [half if kind == SLIDING else None for kind in kinds]


def modernbert_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Wqkv, cut by ``unbind``; q and k turn in fp32."""
    bias = config.flag("attention_bias")
    made = attention_of(config, ("Wqkv", "Wo"), (bias, bias), window=window, split_qkv=True)
    if made.head_dim % 2:
        raise config.wrong("hidden_size", "an even multiple of num_attention_heads", config.value("hidden_size"))
    return made.but(style="modernbert")


def modernbert_feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """``Wo(act(input) * gate)`` of one Wi."""
    hidden, inner, bias = config.integer("hidden_size"), config.integer("intermediate_size"), config.flag("mlp_bias")
    into = Linear(name="Wi", inputs=hidden, outputs=2 * inner, bias=bias)
    out = Linear(name="Wo", inputs=inner, outputs=hidden, bias=bias)
    made = FeedForward(
        intermediate=inner,
        activation=config.choice("hidden_activation", ACTIVATIONS),
        linears=(into, out),
        dropout=config.drops("mlp_dropout"),
    )
    return [made] * config.integer("num_hidden_layers")


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """A norm of the embeddings, none before the first layer's attention, a head with a dense layer and a norm."""
    hidden, bias = spec.hidden_size, config.flag("norm_bias")
    pooling = config.value("classifier_pooling")
    if pooling not in ("cls", "mean"):
        raise config.wrong("classifier_pooling", "cls or mean", shown(pooling))
    spec = with_layers(
        spec,
        norms=(layer_norm("attn_norm", hidden, bias), layer_norm("mlp_norm", hidden, bias)),
        locals_held=("mixer",),
        dropout=("mixer",) if config.drops("attention_dropout") else (),
    )
    dense = Linear(name="dense", inputs=hidden, outputs=hidden, bias=config.flag("classifier_bias"))
    head = {"linears": (dense,), "norms": (layer_norm("norm", hidden, bias),)}
    width = max(mixer.window or 0 for mixer in spec.mixers) or config.integer("local_attention") // 2
    return spec.but(
        task="masked",
        bidirectional=True,
        runs=without_first_norm(spec.runs),
        front=("norm", "dropout", "return") if config.drops("embedding_dropout") else ("norm", "return"),
        extra=(Part(norms=(layer_norm("embeddings.norm", hidden, bias),)),),
        final_norm=layer_norm("final_norm", hidden, bias),
        transform=Part(**head),
        head=Linear(name="decoder", inputs=hidden, outputs=spec.vocab_size, bias=config.flag("decoder_bias")),
        scoring=Pooler(
            **head,
            activation=config.choice("classifier_activation", ACTIVATIONS),
            score=Linear(name="classifier", inputs=hidden, outputs=1, bias=True),
            dropout=config.drops("classifier_dropout"),
            mean=pooling == "mean",
        ),
        more_masks=frozenset({None, width}),
        rotary_sets=len({mixer.window for mixer in spec.mixers}),
    )


def without_first_norm(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The first layer takes the normalised embeddings as they are."""
    first, *rest = runs
    norms = (first.layer.norms[0].but(kind="identity", bias=False), *first.layer.norms[1:])
    alone = Run(count=1, layer=Layer(**dict(first.layer) | {"norms": norms}))
    if first.count > 1:
        rest = [first.but(count=first.count - 1), *rest]
    return (alone, *rest)


ROWS = (
    row(model_type="modernbert", windows=modernbert_windows, mixer=modernbert_attention,
        feed_forward=modernbert_feed_forward, finish=finish, activation_key="hidden_activation"),
)  # fmt: skip
