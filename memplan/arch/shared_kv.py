"""Layers that read keys and values of earlier ones, and inputs of each layer's own: what Gemma 3n and 4 share.

As transformers 5.23 builds them (``models/gemma4/modeling_gemma4.py``, ``models/gemma3n/modeling_gemma3n.py``)."""

from collections.abc import Sequence
from typing import NamedTuple

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import Family
from memplan.spec.attention_kinds import LayerInput, SharedKV, SharedKVAttention
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Linear, Norm, NormKind, Part


class Heads(NamedTuple):
    """Sizes of the attention of one kind of layer."""

    head_dim: int
    kv_heads: int
    values: bool = True
    """Values have a projection of their own; else they are the keys before their norm."""


class Sharing(NamedTuple):
    """What a layer has to do with the keys and values of others."""

    reads: str = ""
    makes_kv: str = ""
    shared_kv: tuple[str, ...] = ()
    """Kinds of layer whose keys and values layers above it read, and which it or a layer below it makes."""


def sharing(config: Config, kinds: Sequence[str], unread: bool) -> list[Sharing]:
    """The last ``num_kv_shared_layers`` layers read the keys and values of the last layer of their kind before them,
    which hands them on where ``unread`` though there are none (transformers 5.24 configuration_gemma4.py:
    kv_sharing_modes; configuration_gemma3n.py has none then)."""
    count, shared = len(kinds), config.integer("num_kv_shared_layers", smallest=0)
    first = count - shared
    if shared > count or set(kinds[:first]) != set(kinds):
        raise config.wrong(
            "num_kv_shared_layers", "a number that leaves a layer of each kind before those that share", shared
        )
    makers = {kind: max(i for i in range(first) if kinds[i] == kind) for kind in kinds}
    made = []
    for i, kind in enumerate(kinds):
        above = dict.fromkeys(other for j, other in enumerate(kinds) if j > i and j >= first)
        waits = tuple(sorted(other for other in above if i >= makers[other]))
        makes_kv = kind if makers[kind] == i and (shared or unread) else ""
        made.append(Sharing(kind if i >= first else "", makes_kv, waits))
    return made


def shared_kv_mixers(
    family: Family, config: Config, kinds: Sequence[str], sizes: dict[str, Heads], window: int, unread: bool = False
) -> list[SharedKVAttention]:
    """The attention of each layer; equal ones are one object."""
    widths = {kind: heads.head_dim * heads.kv_heads for kind, heads in sizes.items()}
    made: dict[tuple[str, Sharing], SharedKVAttention] = {}
    shared = sharing(config, kinds, unread)
    for key in zip(kinds, shared, strict=True):
        if key not in made:
            made[key] = shared_kv(family, config, *key, sizes[key[0]], widths, window)
    return [made[key] for key in zip(kinds, shared, strict=True)]


def shared_kv(
    family: Family, config: Config, kind: str, shares: Sharing, sizes: Heads, widths: dict[str, int], window: int
) -> SharedKVAttention:
    """The attention of one layer."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    width, bias = sizes.head_dim, config.flag("attention_bias")
    q, k, v, o = attention.projections(hidden, heads * width, sizes.kv_heads * width, False, (bias, bias))
    norms = [Norm(name=name, width=width, kind=family.norm_kind) for name in ("q_norm", "k_norm")]
    linears = (q, o) if shares.reads else (q, k, v, o) if sizes.values else (q, k, o)
    return SharedKVAttention(
        num_heads=heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=width,
        linears=linears,
        norms=tuple(norms[:1] if shares.reads else norms),
        window=window if kind == attention.SLIDING else None,
        reads=shares.reads,
        makes_kv=shares.makes_kv,
        shared_kv=tuple(SharedKV(kind=other, width=widths[other]) for other in shares.shared_kv),
    )


def layer_input(kind: NormKind, config: Config, activation: str) -> LayerInput | None:
    """The input of each layer's own; none where hidden_size_per_layer_input is 0."""
    hidden, width = config.integer("hidden_size"), config.integer("hidden_size_per_layer_input", smallest=0)
    if not width:
        return None
    return LayerInput(
        width=width,
        layers=config.integer("num_hidden_layers"),
        activation=activation,
        linears=(
            Linear(name="per_layer_input_gate", inputs=hidden, outputs=width),
            Linear(name="per_layer_projection", inputs=width, outputs=hidden),
        ),
        norms=(Norm(name="post_per_layer_input_norm", width=hidden, kind=kind),),
    )


def table_of_layers(config: Config, own: LayerInput, kind: NormKind) -> tuple[Part, ...]:
    """The table of all layers' inputs, and what is made of the embedding for them."""
    all_layers, hidden = own.layers * own.width, config.integer("hidden_size")
    rows = config.integer("vocab_size_per_layer_input")
    return (
        Part(tensors=(Bare(name="embed_tokens_per_layer", shape=(rows, all_layers)),), category="embed"),
        Part(
            linears=(Linear(name="per_layer_model_projection", inputs=hidden, outputs=all_layers),),
            norms=(Norm(name="per_layer_projection_norm", width=own.width, kind=kind),),
        ),
    )


def kinds_of(config: Config, period: int, last_is_full: bool) -> list[str]:
    """The kind of each layer: every ``period``-th attends to all, unless layer_types says otherwise."""
    layers = config.integer("num_hidden_layers")
    default = [attention.SLIDING if (i + 1) % period else attention.FULL for i in range(layers)]
    kinds = attention.layer_types(config) or default
    return [*kinds[:-1], attention.FULL] if last_is_full else list(kinds)


def with_own_inputs(spec: ModelSpec, config: Config, own: LayerInput | None, kind: NormKind) -> ModelSpec:
    """Every layer with its own input, and the table of all."""
    if own is None:
        return spec
    runs = tuple(run.but(layer=run.layer.but(own_input=own)) for run in spec.runs)
    return spec.but(runs=runs, extra=(*spec.extra, *table_of_layers(config, own, kind)))
