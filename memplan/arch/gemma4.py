"""Gemma 4's language model as transformers 5.23 builds it (``models/gemma4/configuration_gemma4.py``).

Layers that attend to all have heads of another width; the last layers may share keys and values (E2B, E4B), experts
may stand beside the feed-forward (26B-A4B), and each layer may have an input of its own. The 12B
(transformers 5.24 ``models/gemma4_unified``) has no encoders: merged patches go through two linears."""

from collections.abc import Callable, Mapping
from functools import partial

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import ACTIVATIONS, SANDWICH_NORMS, Family, activation, build, gated
from memplan.arch.gemma_towers import AUDIO_NOTE, gemma4_tower, merged_patches
from memplan.arch.routed import make_experts
from memplan.arch.shared_kv import Heads, kinds_of, layer_input, shared_kv_mixers, sharing, with_own_inputs
from memplan.arch.vision import section
from memplan.errors import ModelError
from memplan.spec.layer import AnyMixer, Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Experts, FeedForward, Norm, Part
from memplan.spec.routing import Routing
from memplan.spec.vision import Tower

EXPERT_NORMS = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
OVERRIDES = ("head_dim", "num_key_value_heads")
MakeTower = Callable[[Config | None, Config | None, ModelSpec, bool], Tower | None]


def gemma4_kinds(config: Config) -> list[str]:
    """Every sixth layer attends to all, and the last one in any case."""
    return kinds_of(config, 6, last_is_full=True)


def gemma4_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Heads of head_dim in sliding layers and of global_head_dim in the others."""
    kinds, heads = gemma4_kinds(config), config.integer("num_attention_heads")
    tied = config.flag("attention_k_eq_v")
    sliding = Heads(config.integer("head_dim"), config.integer("num_key_value_heads"))
    given = config.optional_integer("num_global_key_value_heads") if tied else None
    full = Heads(config.integer("global_head_dim"), given or sliding.kv_heads, values=not tied)
    sizes = {attention.SLIDING: sliding, attention.FULL: overridden(config, kinds, sliding, full)}
    for each in sizes.values():
        if heads % each.kv_heads:
            raise config.wrong("num_attention_heads", f"a multiple of its key and value heads ({each.kv_heads})", heads)
        if each.head_dim % 2:
            raise config.wrong("head_dim", "even, since rotary embeddings turn pairs", each.head_dim)
    return list(shared_kv_mixers(family, config, kinds, sizes, config.integer("sliding_window"), unread=True))


def overridden(config: Config, kinds: list[str], sliding: Heads, full: Heads) -> Heads:
    """``per_layer_config`` of a saved config: what it says of each layer that attends to all must be the same. Its keys
    are numbers of layers, padded with zeros to one length."""
    given = config.value("per_layer_config")
    if given is None:
        return full
    numbers = {str(i) for i, kind in enumerate(kinds) if kind == attention.FULL}
    if not isinstance(given, Mapping) or not {str(key).lstrip("0") or "0" for key in given} <= numbers:
        raise config.wrong("per_layer_config", "an object of the layers that attend to all", given)
    if not given:
        return full._replace(head_dim=sliding.head_dim, kv_heads=sliding.kv_heads)
    found = list(given.values())
    one = found[0]
    if len(found) != len(numbers) or any(each != one for each in found) or not isinstance(one, Mapping):
        raise config.wrong("per_layer_config", "the same for every layer that attends to all", given)
    if set(one) - set(OVERRIDES):
        raise config.wrong("per_layer_config", "of head_dim and num_key_value_heads alone", sorted(map(str, one)))
    read = Config({key: one.get(key, config.value(key)) for key in OVERRIDES}, config.name, config.source)
    return full._replace(head_dim=read.integer("head_dim"), kv_heads=read.integer("num_key_value_heads"))


def gemma4_layers(family: Family, config: Config) -> list[FeedForward]:
    """A dense feed-forward, twice as wide where use_double_wide_mlp says so and the layer reads others' keys; with
    experts beside it where enable_moe_block says so."""
    width = config.integer("intermediate_size")
    routed = experts(config, activation(family, config)) if config.flag("enable_moe_block") else None
    plain = gated(family, config, width).but(experts=routed)
    wide = gated(family, config, 2 * width).but(experts=routed)
    doubled = config.flag("use_double_wide_mlp")
    return [wide if doubled and shares.reads else plain for shares in sharing(config, gemma4_kinds(config), True)]


def experts(config: Config, name: str) -> Experts:
    """Experts of moe_intermediate_size, chosen by a normed and scaled input, and weighed by one more scale each."""
    count, active = config.integer("num_experts"), config.integer("top_k_experts")
    if active > count:
        raise config.wrong("top_k_experts", f"at most num_experts ({count})", active)
    routing = Routing(program="normed", normalize="in-place")
    made = make_experts(config, count, active, config.integer("moe_intermediate_size"), routing, "proj")
    return made.but(activation=name)


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Norms and scales of the experts, each layer's own input, tables of cos and sin of both widths."""
    if config.value("use_bidirectional_attention") not in (None, "vision"):
        raise ModelError(
            f"use_bidirectional_attention of {config.model_type} is not null or vision",
            "memplan describes its attention as causal",
        )
    own = layer_input("rms-power", config, config.choice("hidden_activation", ACTIVATIONS))
    spec = with_own_inputs(spec, config, own, "rms-power")
    runs = tuple(run.but(layer=with_experts(run.layer, spec.hidden_size)) for run in spec.runs)
    widths = {mixer.window: mixer.rotary_width for mixer in spec.mixers}
    window = frozenset({None, config.integer("sliding_window")})
    return spec.but(runs=runs, rotary_elements=sum(widths.values()), more_masks=window, rotary_sets=len(widths))


def with_experts(layer: Layer, hidden: int) -> Layer:
    """The norms around the experts, and the scales of their router."""
    if layer.experts is None:
        return layer
    norms = tuple(Norm(name=name, width=hidden, kind="rms-power") for name in EXPERT_NORMS)
    scales = (
        Bare(name="router.scale", shape=(hidden,)),
        Bare(name="router.per_expert_scale", shape=(layer.experts.count,)),
    )
    return layer.but(norms=(*layer.norms, *norms), extra=(Part(tensors=scales, category="router"),))


GEMMA4 = Family(
    model_type="gemma4_text",
    feed_forward=gemma4_layers,
    mixers=gemma4_mixers,
    norms=SANDWICH_NORMS,
    form="layer-inputs",
    norm_kind="rms-power",
    activation_key="hidden_activation",
    scaled_embedding=True,
    logits_softcap=True,
    classifies=False,
    finish=finish,
)


UNIFIED = GEMMA4._replace(model_type="gemma4_unified_text")


def with_towers(family: Family, make_tower: MakeTower, raw: Config) -> ModelSpec:
    """Gemma 4 with its towers: the language model of text_config, which an outer tie_word_embeddings ties."""
    raw.model_type = family.model_type.removesuffix("_text")
    keys = Config(section(raw, "text_config") or {}, raw.name, raw.source)
    text = build(family, keys)
    vision, sounds = (section(raw, key) for key in ("vision_config", "audio_config"))
    outer = raw.with_defaults(raw.model_type)
    towers = [None if keys is None else Config(keys, raw.name, raw.source) for keys in (vision, sounds)]
    blocks = keys.with_defaults(family.model_type).value("use_bidirectional_attention") == "vision"
    tower = make_tower(towers[0], towers[1], text, blocks)
    dtype, quantization = outer.dtype(), outer.quantization()
    notes = [*outer.notes, *text.notes, *([AUDIO_NOTE] if sounds is not None else [])]
    return text.but(
        family=raw.model_type,
        tied=outer.flag("tie_word_embeddings"),
        tower=tower,
        dtype=dtype or text.dtype,
        quantization=quantization or text.quantization,
        notes=tuple(dict.fromkeys(notes)),
    )


FAMILIES: dict[str, Callable[[Config], ModelSpec]] = {
    GEMMA4.model_type: partial(build, GEMMA4),
    "gemma4": partial(with_towers, GEMMA4, gemma4_tower),
    UNIFIED.model_type: partial(build, UNIFIED),
    "gemma4_unified": partial(with_towers, UNIFIED, merged_patches),
}
