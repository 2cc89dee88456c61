"""Decoders whose positions are slopes of distance, added to the attention scores: Bloom and MPT.

One row a family, as transformers 5.23 builds it (``models/<type>/configuration_<type>.py``, ``modeling_<type>.py``)."""

from collections.abc import Callable

from memplan.arch.config import Config
from memplan.arch.decoder import Family, build
from memplan.arch.layer_norm import attention_of, common_name, plain_feed_forward, row, with_layers
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward, Norm, Part


def bloom_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Slopes of distance (alibi) instead of positions, added by ``baddbmm``."""
    return attention_of(config, ("query_key_value", "dense"), rotary="none", style="bloom", eager_only=True)


def bloom_feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """4 h, with a GELU of its own that keeps its input."""
    width = 4 * config.integer("hidden_size")
    return plain_feed_forward(family, config, ("dense_h_to_4h", "dense_4h_to_h"), width, True, "bloom-gelu")


def bloom_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """A norm of the embeddings."""
    norm = Norm(name="word_embeddings_layernorm", width=spec.hidden_size, kind="layer", bias=True)
    spec = spec.but(extra=(Part(norms=(norm,)),), front=("norm",))
    return with_layers(spec, dropout=("mixer", "feed-forward") if config.drops("hidden_dropout") else ())


def mpt_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Slopes of distance added to the scores; no bias anywhere, whatever no_bias says."""
    dropout = mpt_dropout(config)
    clip = section(config).get("clip_qkv")
    made = attention_of(config, ("Wqkv", "out_proj"), (False, False), dropout="", rotary="none", split_qkv=True)
    update = {"dropout": dropout, "clipped": bool(clip), "style": "mpt", "mask_form": "boolean", "eager_only": True}
    return made.model_copy(update=update)


def section(config: Config) -> dict[str, object]:
    """attn_config, which holds what else stands beside."""
    given = config.value("attn_config")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise config.wrong("attn_config", "an object", given)
    if given.get("attn_type", "multihead_attention") not in ("multihead_attention", "multiquery_attention"):
        raise config.wrong("attn_config.attn_type", "multihead_attention or multiquery_attention", given["attn_type"])
    return given


def mpt_dropout(config: Config) -> bool:
    """attn_pdrop, which its class reads as an integer, and uses for every dropout."""
    value = section(config).get("attn_pdrop", 0)
    if value not in (0, 0.0) or isinstance(value, bool):
        raise config.wrong("attn_config.attn_pdrop", "0, since its class takes whole numbers", value)
    return False


def mpt_feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """4 h, whatever expansion_ratio says."""
    width = 4 * config.integer("hidden_size")
    return plain_feed_forward(family, config, ("up_proj", "down_proj"), width, False, "gelu")


def mpt_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Its slopes are made for max_seq_len positions."""
    spec = spec.but(max_positions=config.integer("max_seq_len"))
    return with_layers(spec, locals_held=("mixer",))


ROWS = (
    row(
        model_type="bloom",
        names={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        feed_forward=bloom_feed_forward,
        mixer=bloom_attention,
        finish=bloom_finish,
        not_counted=(
            ("apply_residual_connection_post_layernorm", "the residual is another tensor"),
            ("slow_but_exact", "linears are cut in slices"),
        ),
    ),
    row(
        model_type="mpt",
        names={"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        feed_forward=mpt_feed_forward,
        mixer=mpt_attention,
        norms=("norm_1", "norm_2"),
        norm_bias=False,
        finish=mpt_finish,
    ),
)
FAMILIES: dict[str, Callable[[Config], ModelSpec]] = {"bloom": lambda raw: build(ROWS[0], common_name(raw))}
