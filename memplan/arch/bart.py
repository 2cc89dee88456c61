"""BART: an encoder and a decoder that attends to it, with learned positions and a norm after each sum.

As transformers 5.23 builds it (``models/bart/configuration_bart.py``, ``modeling_bart.py``). One embedding serves both
stacks and the head; each stack has positions and a norm of its embeddings of its own."""

from memplan.arch.config import Config
from memplan.arch.decoder import Family, make_norm
from memplan.arch.encoders import both_stacks, pooled
from memplan.arch.layer_norm import attention_of, plain_feed_forward, row
from memplan.arch.reading import quotient
from memplan.errors import ModelError
from memplan.spec.encoders import Encoder
from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, FeedForward, Norm, Part

NAMES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}
OFFSET = 2
"""Rows of the table of positions beyond max_position_embeddings."""
LAYER_DROP = "layers that are left out of a step at random are not described"


def feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """fc1 and fc2 of each encoder layer."""
    made = plain_feed_forward(family, config, ("fc1", "fc2"), config.integer("encoder_ffn_dim"), True)
    return [layer.but(dropout=config.drops("activation_dropout")) for layer in made[:1]] * len(made)


def attention(family: Family, config: Config, window: int | None) -> Attention:
    """Queries, keys, values and output, each with a bias."""
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    return attention_of(config, names, rotary="none", style="bart", eager_only=False)


def of_stack(name: str, spec: ModelSpec, positions: int, norm: Norm) -> Part:
    """Positions and a norm of the embeddings of one stack."""
    table = Bare(
        name=f"{name}.embed_positions", shape=(positions + OFFSET, spec.hidden_size), category="pos_or_other_embed"
    )
    return Part(tensors=(table,), norms=(norm.but(name=f"{name}.layernorm_embedding"),))


def decoder_layer(family: Family, config: Config, first: Layer) -> Layer:
    """A layer of the second stack, with heads and a width of its own."""
    heads, hidden = config.integer("decoder_attention_heads"), config.integer("hidden_size")
    each = quotient(config, "d_model", hidden, "decoder_attention_heads", heads)
    assert isinstance(first.mixer, Attention)
    assert first.feed_forward is not None
    width = config.integer("decoder_ffn_dim")
    up, down = first.feed_forward.linears
    linears = (up.but(outputs=width), down.but(inputs=width))
    own = {"num_heads": heads, "num_kv_heads": heads, "head_dim": each}
    names = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
    return first.but(
        mixer=first.mixer.model_copy(update={**own, "style": "bart-decoder"}),
        cross=first.mixer.model_copy(update={**own, "style": "bart-cross"}),
        feed_forward=first.feed_forward.but(intermediate=width, linears=linears),
        norms=tuple(make_norm(family, name, hidden) for name in names),
    )


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Both stacks, their positions and norms, and what a classifier puts in place of the head."""
    both_stacks(config)
    if not spec.tied:
        raise ModelError(
            f"tie_word_embeddings of {config.model_type} is false, which gives each stack a table of its own",
            "memplan describes one embedding for both stacks and the head",
        )
    dropped, hidden = config.drops("dropout"), spec.hidden_size
    layer = spec.runs[0].layer.but(dropout=("mixer", "feed-forward") if dropped else ())
    second = decoder_layer(FAMILY, config, layer)
    encoder, decoder = spec.num_layers, config.integer("decoder_layers")
    positions, norm = config.integer("max_position_embeddings"), layer.norms[0]
    ends = ("dropout",) if dropped else ()
    rested = config.drops("classifier_dropout")
    return spec.but(
        task="seq2seq",
        runs=(Run(count=encoder, layer=layer), Run(count=decoder, layer=second)),
        encoder=Encoder(layers=encoder, decoder_front=("positions", "norm", *ends)),
        front=("row-positions", "norm", *ends),
        extra=tuple(of_stack(name, spec, positions, norm) for name in ("encoder", "decoder")),
        final_norm=None,
        embedding_multiplier=config.flag("scale_embedding"),
        logits_shifted=True,
        buffer_bytes=0,
        scoring=pooled(hidden, "dense", "out_proj", first_dropout=rested, dropout=rested),
    )


FAMILY = row(
    model_type="bart",
    names=NAMES,
    mixer=attention,
    feed_forward=feed_forward,
    norms=("self_attn_layer_norm", "final_layer_norm"),
    form="after-sum",
    activation_key="activation_function",
    not_counted=(("encoder_layerdrop", LAYER_DROP), ("decoder_layerdrop", LAYER_DROP)),
    finish=finish,
)

ROWS = (FAMILY,)
