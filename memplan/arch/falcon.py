"""Falcon: serial, parallel, or parallel with a norm for each branch; one key/value head, some, or all; rotary or alibi.

As transformers 5.23 builds it (``models/falcon/configuration_falcon.py``, ``modeling_falcon.py``)."""

from collections.abc import Callable

from memplan.arch import layer_norm as parts
from memplan.arch.config import Config
from memplan.arch.decoder import PRE_NORMS, Family, build
from memplan.arch.reading import width_of_head
from memplan.arch.routed import is_true
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward, Linear, Norm


def falcon_attention(family: Family, config: Config, window: int | None) -> Attention:
    """One fused linear: q with as many k and v, with one, or (new_decoder_architecture) with one for each group."""
    heads, new, alibi = (
        config.integer("num_attention_heads"),
        is_true(config, "new_decoder_architecture"),
        is_true(config, "alibi"),
    )
    kv_heads = config.optional_integer("num_kv_heads") or heads
    if not new:
        kv_heads = 1 if is_true(config, "multi_query") else heads
    if alibi and (new or kv_heads != heads):
        raise config.wrong("alibi", "false where heads share keys and values, as in every checkpoint", True)
    if heads % kv_heads:
        raise config.wrong("num_kv_heads", f"a divisor of num_attention_heads ({heads})", kv_heads)
    bias = is_true(config, "bias")
    if not alibi and width_of_head(config) % 2:
        raise config.wrong(
            "hidden_size", "an even number of elements for each head, which rotary turns", config.integer("hidden_size")
        )
    made = parts.attention_of(
        config,
        ("query_key_value", "dense"),
        biases=(bias, bias),
        kv_heads=kv_heads,
        dropout="",
        rotary="none" if alibi else "half",
        mask_form="heads" if alibi else "always",
        style="falcon-alibi" if alibi else "falcon-groups" if new else "falcon",
    )
    drop = alibi and config.drops("attention_dropout", nullable=True)
    return made.but(dropout=drop, linears=_adding(made.linears))


def _adding(linears: tuple[Linear, ...]) -> tuple[Linear, ...]:
    """``FalconLinear``: a product with a view of the weight, to which a bias is added."""
    return tuple(linear.but(adds_bias=linear.bias, multiplies_view=True) for linear in linears)


def falcon_feed_forward(family: Family, config: Config) -> list[FeedForward]:
    """dense_h_to_4h and dense_4h_to_h of ffn_hidden_size, or else 4 h."""
    width, bias = parts.inner(config, "ffn_hidden_size"), is_true(config, "bias")
    made = parts.plain_feed_forward(family, config, ("dense_h_to_4h", "dense_4h_to_h"), width, bias)
    one = made[0].but(linears=_adding(made[0].linears))
    return [one] * len(made)  # all alike: one object, so that equal layers are one run


def falcon_finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Serial with two norms; parallel with one; parallel with one for each branch (new_decoder_architecture)."""
    new, parallel = is_true(config, "new_decoder_architecture"), is_true(config, "parallel_attn")
    count = config.optional_integer("num_ln_in_parallel_attn") or (2 if new else 1)
    if new and not parallel:
        raise config.wrong(
            "parallel_attn",
            "true with new_decoder_architecture: its class runs no other",
            config.value("parallel_attn"),
        )
    if parallel and (count > 2 or (count == 2 and not new)):
        raise config.wrong("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture", count)
    names = PRE_NORMS if not parallel else ("ln_attn", "ln_mlp") if count == 2 else PRE_NORMS[:1]
    norms = tuple(Norm(name=name, width=spec.hidden_size, kind="layer", bias=True) for name in names)
    drop = config.drops("hidden_dropout", nullable=True)
    branches: tuple[str, ...] = ("branches",) if drop else ()
    if not parallel:
        branches = (
            *(("mixer",) if config.drops("attention_dropout", nullable=True) else ()),
            *(("feed-forward",) if drop else ()),
        )
    return parts.with_layers(
        spec,
        norms=norms,
        form="parallel-branches" if parallel else "pre",
        locals_held=("mixer", "norm"),
        dropout=branches,
    )


ROWS = (
    parts.row(
        model_type="falcon",
        feed_forward=falcon_feed_forward,
        mixer=falcon_attention,
        activation_key="activation",
        finish=falcon_finish,
    ),
)
FAMILIES: dict[str, Callable[[Config], ModelSpec]] = {"falcon": lambda raw: build(ROWS[0], parts.common_name(raw))}
