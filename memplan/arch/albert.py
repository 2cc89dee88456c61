"""ALBERT as transformers 5.23 builds it (``models/albert/configuration_albert.py``): an encoder whose layers are a few,
applied again and again."""

from itertools import groupby
from operator import itemgetter

from memplan.arch.config import Config
from memplan.arch.decoder import Family
from memplan.arch.encoders import bert_attention, dense_and_norm, embeddings, with_projected_input
from memplan.arch.layer_norm import plain_feed_forward, row, with_layers
from memplan.spec.encoders import Pooler
from memplan.spec.layer import Front, Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward, Linear, Part


def feed_forward(family: object, config: Config) -> list[FeedForward]:
    """ffn and ffn_output."""
    return plain_feed_forward(FAMILY, config, ("ffn", "ffn_output"), config.integer("intermediate_size"), True)


def albert_attention(family: Family, config: Config, window: int | None) -> Attention:
    """As BERT's, in one module with its norm."""
    return bert_attention(family, config, window).but(style="albert")


def applications(spec: ModelSpec, config: Config) -> tuple[Run, ...]:
    """What each layer applies: of as many groups as ``num_hidden_groups``, one after another, all inner layers."""
    groups, inner, count = config.integer("num_hidden_groups"), config.integer("inner_group_num"), spec.num_layers
    if groups > count:
        raise config.wrong("num_hidden_groups", f"at most num_hidden_layers ({count})", groups)
    order = [int(i / (count / groups)) * inner + each for i in range(count) for each in range(inner)]
    return sharing(spec.runs[0].layer, order)


def sharing(layer: Layer, order: list[int]) -> tuple[Run, ...]:
    """Equal layers whose weights are those of these blocks, in runs."""
    places = [(block in order[:i], block in order[i + 1 :]) for i, block in enumerate(order)]
    made = {(a, b): layer.but(repeats=a, recurs=b) for a, b in set(places)}
    runs = []
    for kind, group in groupby(zip(places, order, strict=True), key=itemgetter(0)):
        blocks = tuple(block for _, block in group)
        runs.append(Run(count=len(blocks), layer=made[kind], blocks=blocks))
    return tuple(runs)


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """A linear from the embedding's width into the layers, a transform back to it, a pooler in a classifier."""
    hidden, width = spec.hidden_size, config.integer("embedding_size")
    dropped = config.drops("hidden_dropout_prob")
    spec = with_layers(spec, dropout=("mixer",) if dropped else (), locals_held=("states",))
    steps: tuple[Front, ...] = ("token-types", "positions", "norm")
    mapping = Linear(name="embedding_hidden_mapping_in", inputs=width, outputs=hidden, bias=True)
    pooler = Linear(name="pooler", inputs=hidden, outputs=hidden, bias=True)
    return spec.but(
        task="masked",
        bidirectional=True,
        checkpoints=False,
        runs=with_projected_input(applications(spec, config)),
        front=(*steps, "dropout", "map") if dropped else (*steps, "map"),
        buffer_bytes=2 * 8 * config.integer("max_position_embeddings"),
        embedding_width=width,
        extra=(embeddings(config, width), Part(linears=(mapping,))),
        final_norm=None,
        transform=dense_and_norm("dense", "LayerNorm", hidden, width),
        head=Linear(name="decoder", inputs=width, outputs=spec.vocab_size, bias=True),
        scoring=Pooler(
            linears=(pooler,),
            score=Linear(name="classifier", inputs=hidden, outputs=1, bias=True),
            dropout=config.drops("classifier_dropout_prob"),
        ),
    )


FAMILY = row(
    model_type="albert",
    mixer=albert_attention,
    feed_forward=feed_forward,
    norms=("LayerNorm", "full_layer_layer_norm"),
    form="encoder",
    finish=finish,
)

ROWS = (FAMILY,)
