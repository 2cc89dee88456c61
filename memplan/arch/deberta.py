"""DeBERTa-v2 and v3: an encoder whose scores are of contents and of relative positions.

As transformers 5.23 builds it (``models/deberta_v2/configuration_deberta_v2.py``, ``modeling_deberta_v2.py``). Several
keys are no fields of its config class, which takes a default where it reads them."""

from memplan.arch.config import Config
from memplan.arch.decoder import Family
from memplan.arch.encoders import bert_feed_forward, dense_and_norm, pooled, table
from memplan.arch.layer_norm import ACTIVATIONS, row, with_layers
from memplan.arch.reading import width_of_head
from memplan.arch.towers import layer_norm
from memplan.spec.encoders import DisentangledAttention, Pooler
from memplan.spec.layer import Front
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Linear, Part


def whole(config: Config, key: str) -> int:
    """An integer of any sign: below one means none."""
    value = config.value(key)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 10**6:
        raise config.wrong(key, "an integer", value)
    return value


def relations(config: Config) -> tuple[bool, bool]:
    """Whether pos_att_type names content to position, and position to content; a text or a list."""
    given = config.value("pos_att_type")
    if isinstance(given, str):
        given = [part.strip() for part in given.lower().split("|")]
    if given is not None and not isinstance(given, (list, tuple)):
        raise config.wrong("pos_att_type", "c2p, p2c or both, such as p2c|c2p", given)
    return "c2p" in (given or ()), "p2c" in (given or ())


def spans(config: Config) -> tuple[int, int]:
    """Half of the rows that scores read, and rows of the table, with relative attention."""
    furthest = whole(config, "max_relative_positions")
    furthest = config.integer("max_position_embeddings") if furthest < 1 else furthest
    buckets = whole(config, "position_buckets")
    return (buckets, 2 * buckets) if buckets > 0 else (furthest, 2 * furthest)


def normed_table(config: Config) -> bool:
    """Whether norm_rel_ebd names a norm of the table of relative positions."""
    return "layer_norm" in [part.strip() for part in str(config.value("norm_rel_ebd")).lower().split("|")]


def mixer(family: Family, config: Config, window: int | None) -> DisentangledAttention:
    """Three linears of contents, up to two of positions, and the output's."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = width_of_head(config)
    if (config.optional_integer("attention_head_size") or width) != width:
        given = config.value("attention_head_size")
        raise config.wrong(
            "attention_head_size", f"hidden_size / num_attention_heads ({width}), as its output is", given
        )
    relative, shared = config.flag("relative_attention"), config.flag("share_att_key")
    to_position, from_position = relations(config)
    names = ["query_proj", "key_proj", "value_proj"]
    if relative and not shared:
        names += [name for name, on in (("pos_key_proj", to_position), ("pos_query_proj", from_position)) if on]
    linears = [Linear(name=name, inputs=hidden, outputs=heads * width, bias=True) for name in names]
    span, rows = spans(config) if relative else (0, 0)
    return DisentangledAttention(
        num_heads=heads,
        head_dim=width,
        linears=(*linears, Linear(name="dense", inputs=heads * width, outputs=hidden, bias=True)),
        dropout=config.drops("attention_probs_dropout_prob"),
        span=span,
        rows=rows,
        to_position=to_position,
        from_position=from_position,
        shared=shared,
        normed=normed_table(config),
        position_dropout=config.drops("hidden_dropout_prob"),
    )


def convolution(config: Config, hidden: int) -> list[Part]:
    """A convolution beside the first layer (DeBERTa-v2-xlarge)."""
    size = whole(config, "conv_kernel_size")
    if size < 1:
        return []
    groups = config.integer("conv_groups")
    weight = Bare(name="conv.weight", shape=(hidden, hidden // groups, size))
    bias = Bare(name="conv.bias", shape=(hidden,))
    config.notes.append("the convolution beside its first layer is counted in the parameters, not in the activations")
    return [Part(tensors=(weight, bias), norms=(layer_norm("conv.LayerNorm", hidden),))]


def pooler(config: Config, hidden: int) -> Pooler:
    """The first token's state through a linear of its own, and the score."""
    width = config.optional_integer("pooler_hidden_size") or hidden
    if width != hidden:
        raise config.wrong("pooler_hidden_size", f"hidden_size ({hidden}), or the pooler cannot take its states", width)
    last = "cls_dropout" if config.value("cls_dropout") is not None else "hidden_dropout_prob"
    activation, first = config.choice("pooler_hidden_act", ACTIVATIONS), config.drops("pooler_dropout")
    return pooled(hidden, "dense", "classifier", activation=activation, first_dropout=first, dropout=config.drops(last))


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Embeddings with or without positions and types, the table of relative positions, the head."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    width = config.optional_integer("embedding_size") or hidden
    tables, front, extra = [], [], []
    if config.flag("position_biased_input"):
        tables.append(table("position_embeddings", config.integer("max_position_embeddings"), width))
        front.append("positions")
    types = config.integer("type_vocab_size", smallest=0)
    if types:
        tables.append(table("token_type_embeddings", types, width))
        front.append("token-types")
    steps: list[Front] = [*front, *(["project"] if width != hidden else []), "norm", "mask"]  # type: ignore[list-item]
    if config.drops("hidden_dropout_prob"):
        steps.append("dropout")
    extra.append(Part(tensors=tuple(tables), norms=(layer_norm("LayerNorm", hidden),), category="pos_or_other_embed"))
    if width != hidden:
        extra.append(Part(linears=(Linear(name="embed_proj", inputs=width, outputs=hidden),)))
    relative: tuple[Bare, ...] = ()
    if config.flag("relative_attention"):
        relative = (table("rel_embeddings", spans(config)[1], hidden),)
    norms = (layer_norm("encoder.LayerNorm", hidden),) if normed_table(config) else ()
    extra.append(Part(tensors=relative, norms=norms, category="pos_or_other_embed"))
    extra += convolution(config, hidden)
    legacy = config.flag("legacy")
    head = Linear(name="decoder", inputs=width, outputs=vocab, bias=True)
    if not legacy:
        width = hidden
        head = Linear(name="lm_head", inputs=hidden, outputs=vocab, bias=True)
    elif not spec.tied:
        extra.append(Part(tensors=(Bare(name="bias", shape=(vocab,)),), category="lm_head"))
    dropped = ("mixer", "feed-forward") if config.drops("hidden_dropout_prob") else ()
    spec = with_layers(spec, dropout=dropped, locals_held=("inner",))
    return spec.but(
        task="masked",
        bidirectional=True,
        tied=spec.tied or not legacy,
        final_norm=None,
        front=(*steps, "return"),
        embedding_width=width if width != hidden else None,
        extra=tuple(part for part in extra if part.tensors or part.linears or part.norms),
        transform=dense_and_norm("dense", "LayerNorm", hidden, width),
        head=head,
        scoring=pooler(config, hidden),
        buffer_bytes=8 * config.integer("max_position_embeddings"),
        notes=tuple(config.notes),
    )


ROWS = (
    row(model_type="deberta-v2", mixer=mixer, feed_forward=bert_feed_forward, norms=("LayerNorm", "LayerNorm"),
        form="encoder", finish=finish),
)  # fmt: skip
