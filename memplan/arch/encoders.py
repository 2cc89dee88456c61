"""Encoders that learn masked tokens: BERT, RoBERTa, XLM-RoBERTa, ELECTRA, DistilBERT.

Described is the masked language model (``BertForMaskedLM``), whose sequence-classification form is a reward model:
dense layer and norm before the vocabulary give way to a dense layer over the first position. One row a family, as
transformers 5.23 builds it (``models/<type>/configuration_<type>.py``, ``modeling_<type>.py``)."""

from functools import partial
from typing import Any

from memplan.arch.config import Config
from memplan.arch.decoder import Family
from memplan.arch.layer_norm import attention_of, plain, row, with_layers
from memplan.arch.towers import layer_norm
from memplan.errors import ModelError
from memplan.spec.encoders import Pooler
from memplan.spec.layer import Front, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, Linear, Part

DECODES = (
    ("is_decoder", "the class then is a decoder"),
    ("add_cross_attention", "attention to an encoder"),
    ("chunk_size_feed_forward", "feed-forwards run in pieces"),
)


def both_stacks(config: Config) -> None:
    """Raise ModelError for one of the two stacks alone."""
    if not config.flag("is_encoder_decoder") or config.flag("is_decoder"):
        raise ModelError(
            f"is_encoder_decoder of {config.model_type} must be true and is_decoder false",
            "memplan describes its encoder and decoder together",
        )


def pooled(hidden: int, dense: str, score: str, **fields: Any) -> Pooler:
    """A dense layer of hidden × hidden and the score behind it, both with biases."""
    into = Linear(name=dense, inputs=hidden, outputs=hidden, bias=True)
    return Pooler(linears=(into,), score=Linear(name=score, inputs=hidden, outputs=1, bias=True), **fields)


def table(name: str, rows: int, width: int) -> Bare:
    """An ``nn.Embedding`` beside that of the vocabulary."""
    return Bare(name=name, shape=(rows, width))


def bert_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Three linears and an output with biases; the softmax stays in the model's dtype."""
    names = ("query", "key", "value", "dense")
    return attention_of(config, names, dropout="attention_probs_dropout_prob", rotary="none", style="encoder")


bert_feed_forward = plain("dense", "dense")
"""``intermediate.dense`` and ``output.dense``."""


def embeddings(config: Config, width: int, types: bool = True) -> Part:
    """Tables of positions and of token types, and the norm of their sum."""
    tables = [table("position_embeddings", config.integer("max_position_embeddings"), width)]
    if types:
        tables.append(table("token_type_embeddings", config.integer("type_vocab_size"), width))
    return Part(tensors=tuple(tables), norms=(layer_norm("LayerNorm", width),), category="pos_or_other_embed")


def dense_and_norm(name: str, norm: str, inputs: int, outputs: int) -> Part:
    """The transform before the vocabulary."""
    return Part(
        linears=(Linear(name=name, inputs=inputs, outputs=outputs, bias=True),), norms=(layer_norm(norm, outputs),)
    )


def dropout_of_classifier(config: Config) -> bool:
    """classifier_dropout; null is hidden_dropout_prob."""
    own = config.value("classifier_dropout") is not None
    return config.drops("classifier_dropout" if own else "hidden_dropout_prob")


def common(spec: ModelSpec, config: Config, front: tuple[Front, ...], dropout: str) -> ModelSpec:
    """A masked language model whose embeddings go through these steps."""
    dropped = config.drops(dropout)
    spec = with_layers(spec, dropout=("mixer", "feed-forward") if dropped else ())
    steps = (*front, "dropout", "return") if dropped else (*front, "return")
    return spec.but(task="masked", bidirectional=True, final_norm=None, front=steps)


def usable_positions(config: Config) -> int:
    """RoBERTa counts its positions from behind pad_token_id on."""
    first = config.integer("pad_token_id", smallest=0) + 1
    return max(config.integer("max_position_embeddings") - first, 1)


def bert_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """A pooler over the first token, which a classifier alone has."""
    hidden = spec.hidden_size
    positions: Front = "positions" if spec.family == "bert" else "row-positions"
    spec = common(spec, config, ("token-types", positions, "norm"), "hidden_dropout_prob")
    roberta = spec.family != "bert"
    spec = with_layers(spec, locals_held=("inner",))
    first = dropout_of_classifier(config)
    score = "out_proj" if roberta else "classifier"
    pooler = pooled(hidden, "dense", score, first_dropout=first and roberta, dropout=first)
    extra = [embeddings(config, hidden)]
    if not spec.tied:
        extra.append(Part(tensors=(Bare(name="bias", shape=(spec.vocab_size,)),), category="lm_head"))
    if roberta:
        spec = spec.but(max_positions=usable_positions(config))
    return spec.but(
        extra=tuple(extra),
        transform=dense_and_norm("dense", "layer_norm" if roberta else "LayerNorm", hidden, hidden),
        head=Linear(name="decoder", inputs=hidden, outputs=spec.vocab_size, bias=True),
        scoring=pooler,
        buffer_bytes=2 * 8 * config.integer("max_position_embeddings"),
    )


def with_projected_input(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The first layer takes what a linear made."""
    first, *left = runs[0].halves
    layer = first.layer.but(projected_input=True)
    return (first.but(layer=layer), *left, *runs[1:])


def electra_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """An embedding of its own width, which the generator's head has too."""
    hidden, width = spec.hidden_size, config.integer("embedding_size")
    projected = width != hidden
    front: tuple[Front, ...] = ("token-types", "positions", "norm")
    spec = with_layers(common(spec, config, front, "hidden_dropout_prob"), locals_held=("inner",))
    extra = [embeddings(config, width)]
    if projected:
        into = Linear(name="embeddings_project", inputs=width, outputs=hidden, bias=True)
        extra.append(Part(linears=(into,)))
        spec = spec.but(front=(*spec.front[:-1], "project", "return"), embedding_width=width)
        spec = spec.but(runs=with_projected_input(spec.runs))
    drop = dropout_of_classifier(config)
    return spec.but(
        extra=tuple(extra),
        transform=dense_and_norm("dense", "LayerNorm", hidden, width),
        head=Linear(name="generator_lm_head", inputs=width, outputs=spec.vocab_size, bias=True),
        scoring=pooled(hidden, "dense", "out_proj", activation="gelu", first_dropout=drop, dropout=drop),
        buffer_bytes=2 * 8 * config.integer("max_position_embeddings"),
    )


def distilbert_attention(family: Family, config: Config, window: int | None) -> Attention:
    """As BERT's, by other names."""
    names = ("q_lin", "k_lin", "v_lin", "out_lin")
    return attention_of(config, names, rotary="none", style="encoder")


def distilbert_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """No token types, no dropout of the attention's output, ReLU in the classifier."""
    hidden = spec.hidden_size
    spec = common(spec, config, ("positions", "norm"), "dropout")
    spec = with_layers(spec, dropout=("feed-forward",) if config.drops("dropout") else ())
    return spec.but(
        extra=(embeddings(config, hidden, types=False),),
        transform=dense_and_norm("vocab_transform", "vocab_layer_norm", hidden, hidden),
        head=Linear(name="vocab_projector", inputs=hidden, outputs=spec.vocab_size, bias=True),
        scoring=pooled(
            hidden, "pre_classifier", "classifier", activation="relu", dropout=config.drops("seq_classif_dropout")
        ),
        buffer_bytes=8 * config.integer("max_position_embeddings"),
    )


bert_row = partial(
    row,
    mixer=bert_attention,
    feed_forward=bert_feed_forward,
    norms=("LayerNorm", "LayerNorm"),
    form="encoder",
    finish=bert_finish,
    not_counted=DECODES,
)

ROWS = (
    bert_row(model_type="bert"),
    bert_row(model_type="roberta"),
    bert_row(model_type="xlm-roberta"),
    bert_row(model_type="electra", finish=electra_finish),
    row(model_type="distilbert",
        names={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        mixer=distilbert_attention, feed_forward=plain("lin1", "lin2", width="hidden_dim"),
        activation_key="activation", norms=("sa_layer_norm", "output_layer_norm"), form="encoder",
        finish=distilbert_finish, not_counted=DECODES[2:]),
)  # fmt: skip
