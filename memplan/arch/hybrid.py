"""Attention and state spaces, in turn (Jamba, Bamba, Granite 4) or side by side (Falcon-H1) (transformers 5.23)."""

from collections.abc import Sequence

from memplan.arch import attention
from memplan.arch.config import Config, shown
from memplan.arch.decoder import Family, activation, gated, softmax_attention, sparse, turned
from memplan.arch.reading import kinds_of_layers
from memplan.arch.routed import expert_count, experts_per_token, layer_numbers, make_experts
from memplan.arch.state_space import MAMBA_PREFIX, PSCAN, prefixed_dual, selective, with_kernel_note
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import FeedForward, Linear, Norm
from memplan.spec.routing import Routing
from memplan.spec.state_space import BothMixers

JAMBA_KEYS = {
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
    "time_step_rank": "mamba_dt_rank",
}
LINEAR = "linear_attention"
LAYER_NAMES = {"mamba": LINEAR, LINEAR: LINEAR, "attention": attention.FULL, attention.FULL: attention.FULL}
PAIR_NORMS = ("input_layernorm", "pre_ff_layernorm")


def in_period(config: Config, kind: str) -> list[bool]:
    """Whether each layer is the ``{kind}_layer_offset``-th of its period."""
    period = config.integer(f"{kind}_layer_period")
    offset = config.integer(f"{kind}_layer_offset", smallest=0)
    if offset >= period:
        raise config.wrong(f"{kind}_layer_offset", f"below {kind}_layer_period ({period})", offset)
    return [i % period == offset for i in range(config.integer("num_hidden_layers"))]


def jamba_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Attention without positions in one layer of each period, Mamba with norms of step, B and C in the others."""
    attends = softmax_attention(family, config, None).but(rotary="none")
    mamba = selective(config, config.integer("mamba_expand") * config.integer("hidden_size"), JAMBA_KEYS)
    widths = (("dt_layernorm", mamba.rank), ("b_layernorm", mamba.state), ("c_layernorm", mamba.state))
    norms = tuple(Norm(name=name, width=width) for name, width in widths)
    mamba = mamba.but(normalised=True, norms=norms)
    return [attends if attention_layer else mamba for attention_layer in in_period(config, "attn")]


def jamba_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts in one layer of each period, when there are several."""
    given = config.keys.get("num_local_experts")
    count = config.integer("num_experts") if given is None else config.integer("num_local_experts")
    dense, f = gated(family, config, config.integer("intermediate_size")), config.integer("intermediate_size")
    chosen = in_period(config, "expert")
    if count == 1:
        return [dense] * len(chosen)
    routed = make_experts(config, count, experts_per_token(config, count), f, Routing(narrowed=True), "router")
    made = sparse(family, config, routed)
    return [made if experts else dense for experts in chosen]


def bamba_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Attention, whose heads turn by half, in the layers that attn_layer_indices names; Mamba 2 in the others."""
    attends = half_turned(family, config)
    inner = config.integer("mamba_expand") * config.integer("hidden_size")
    mamba, named = prefixed_dual(config, inner), layer_numbers(config, "attn_layer_indices")
    return [attends if i in named else mamba for i in range(config.integer("num_hidden_layers"))]


def half_turned(family: Family, config: Config) -> AnyMixer:
    """Half of each head turns, whatever the config says."""
    width = attention.head_dim(config) // 2
    if width % 2:
        raise config.wrong("head_dim", "a multiple of four, since half of each head turns in pairs", 2 * width)
    return turned(rotary="concatenated", rotary_dim=width)(family, config, None)


def of_each_layer(config: Config, names: dict[str, str]) -> list[str]:
    """The kind of each of num_hidden_layers, of which layer_types may list more."""
    return kinds_of_layers(config, "layer_types", config.value("layer_types"), names, more=True)


def granite_kinds(config: Config) -> list[str]:
    """layer_types, or layers_block_type as older files call it; all of them Mamba 2 where neither is there."""
    for key in ("layers_block_type", "layer_types"):
        if (given := config.value(key)) is not None:
            return kinds_of_layers(config, key, given, LAYER_NAMES)
    return [LINEAR] * config.integer("num_hidden_layers")


def granite_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """As layer_types lists them; attention has positions only where position_embedding_type is rope."""
    rotary = "half" if config.value("position_embedding_type") == "rope" else "none"
    attends = softmax_attention(family, config, None).but(rotary=rotary)
    mamba = prefixed_dual(config, config.integer("mamba_expand") * config.integer("hidden_size"))
    return [attends if kind == attention.FULL else mamba for kind in granite_kinds(config)]


def granite_layers(family: Family, config: Config) -> Sequence[FeedForward]:
    """A feed-forward that every token visits, beside experts when there are any."""
    h, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size")
    count = 0 if config.value("num_local_experts") == 0 else expert_count(config, "num_local_experts")
    linears = (
        Linear(name="input_linear", inputs=h, outputs=2 * shared),
        Linear(name="output_linear", inputs=shared, outputs=h),
    )
    act = activation(family, config)
    if not count:
        layer = FeedForward(intermediate=shared, activation=act, category="shared_experts", linears=linears)
        return [layer] * config.integer("num_hidden_layers")
    f, routing = config.integer("intermediate_size"), Routing(scores="logits", widened=True, narrowed=True)
    routed = make_experts(config, count, experts_per_token(config, count), f, routing, "router")
    layer = FeedForward(intermediate=f, activation=act, experts=routed, shared=linears)
    return [layer] * config.integer("num_hidden_layers")


def finish_granite(spec: ModelSpec, config: Config) -> ModelSpec:
    """The embedding's output is scaled in the model's forward."""
    kind = config.value("position_embedding_type")
    if kind not in (None, "rope", "nope"):
        raise config.wrong("position_embedding_type", "rope, nope or null", shown(kind))
    return with_kernel_note(spec.but(scaled_outside=True, more_masks=frozenset({None})), config)


def with_mask(spec: ModelSpec, config: Config) -> ModelSpec:
    """A mask of attention is made, whatever the layers take."""
    return with_kernel_note(spec.but(more_masks=frozenset({None})), config)


def falcon_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Mamba 2 and attention side by side."""
    given, inner = config.value("mamba_d_ssm"), config.integer("mamba_expand") * config.integer("hidden_size")
    if given is not None:
        inner = config.integer("mamba_d_ssm")
    gate_first = not config.flag("mamba_norm_before_gate")
    fields: dict[str, object] = {"scaled": True, "gate_first": gate_first}
    if not config.flag("mamba_rms_norm"):
        fields["norms"] = ()
    mamba = prefixed_dual(config, inner, out_bias=config.flag("projectors_bias"), **fields)
    attends = softmax_attention(family, config, None).but(scaled_keys=True)
    return [BothMixers.of(mamba, attends)] * config.integer("num_hidden_layers")


def falcon_layers(family: Family, config: Config) -> list[FeedForward]:
    """A gated feed-forward whose gate and output are multiplied by numbers."""
    layer = gated(family, config, config.integer("intermediate_size")).but(scaled=True)
    return [layer] * config.integer("num_hidden_layers")


def finish_falcon(spec: ModelSpec, config: Config) -> ModelSpec:
    """The embedding's output is scaled in forward; each layer keeps a vector of numbers for its projections."""
    both = spec.runs[0].layer.mixer
    assert isinstance(both, BothMixers)
    made = both.state_space.linears[0].outputs * spec.num_layers * 2
    return with_mask(spec.but(scaled_outside=True, buffer_bytes=made), config)


ROWS = (
    Family(model_type="jamba", feed_forward=jamba_layers, mixers=jamba_mixers, norms=PAIR_NORMS,
        not_counted=(("use_mambapy", PSCAN),), balances=True, finish=with_mask),
    Family(model_type="bamba", null_kv_heads=True, mixers=bamba_mixers, norms=PAIR_NORMS, classifies=False,
        finish=with_mask),
    Family(model_type="granitemoehybrid", feed_forward=granite_layers, mixers=granite_mixers, form="pre-scaled",
        scaled_embedding=True, scaled_logits=True, balances=True, classifies=False, finish=finish_granite),
    Family(model_type="falcon_h1", feed_forward=falcon_layers, null_kv_heads=True, mixers=falcon_mixers,
        norms=PAIR_NORMS, scaled_embedding=True, scaled_logits=True, classifies=False, finish=finish_falcon),
)  # fmt: skip
__all__ = ["LINEAR", "MAMBA_PREFIX"]
