"""Nemotron-H as transformers 5.23 builds it: each layer is one norm and one of four: Mamba 2, attention, a feed-forward
of squared ReLU, or experts of that kind, which may work in a narrower space (``moe_latent_size``)."""

from memplan.arch import attention, reading
from memplan.arch.config import Config, shown
from memplan.arch.decoder import Family, build, softmax_attention
from memplan.arch.hybrid import LINEAR
from memplan.arch.layer_norm import ACTIVATIONS
from memplan.arch.routed import ROUTER_LOSS, experts_per_token, sigmoid_routing
from memplan.arch.state_space import DualKeys, dual, served_itemsize, with_kernel_note
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Experts, FeedForward, Linear

OLD_NAMES = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
    "chunk_size": "mamba_chunk_size",
    "n_routed_experts": "num_local_experts",
}
"""Names that replace the class's own where a config has them."""
MLP, MOE = "mlp", "moe"
LETTERS = {"M": LINEAR, "E": MOE, "*": attention.FULL, "-": MLP}
NAMES = {name: name for name in LETTERS.values()} | {"mamba": LINEAR, "attention": attention.FULL}
DEFAULT = [LINEAR, MOE, attention.FULL, MLP]


def kinds(config: Config) -> list[str]:
    """The kind of each layer: layer_types, or layers_block_type, or the letters of hybrid_override_pattern."""
    for key in ("layer_types", "layers_block_type"):
        if (given := config.value(key)) is not None:
            return non_empty(config, key, reading.kinds(config, key, given, NAMES))
    pattern = config.value("hybrid_override_pattern")
    if pattern is None:
        return DEFAULT
    if not isinstance(pattern, (str, list, tuple)) or not all(letter in [*LETTERS] for letter in pattern):
        raise config.wrong("hybrid_override_pattern", "letters of " + " ".join(LETTERS), pattern)
    return non_empty(config, "hybrid_override_pattern", [LETTERS[letter] for letter in pattern])


def non_empty(config: Config, key: str, given: list[str]) -> list[str]:
    """At least one layer, and not too many."""
    if not 0 < len(given) <= 10_000:
        raise config.wrong(key, "from 1 to 10000 layers", f"{len(given)} layers")
    return given


def mixers(family: Family, config: Config) -> list[AnyMixer | None]:
    """Mamba 2 or attention without positions, in the layers that have either."""
    keys = DualKeys(num_heads="mamba_num_heads", head_dim="mamba_head_dim", state_size="ssm_state_size")
    mamba = dual(
        config,
        config.integer("mamba_num_heads"),
        config.integer("mamba_head_dim"),
        keys,
        state_itemsize=served_itemsize(config, "mamba_ssm_cache_dtype", 4),
    )
    attends = softmax_attention(family, config, None).but(rotary="none")
    made: dict[str, AnyMixer] = {LINEAR: mamba, attention.FULL: attends}
    return [made.get(kind) for kind in kinds(config)]


def feed_forwards(family: Family, config: Config) -> list[FeedForward | None]:
    """A feed-forward or experts, in the layers that have either."""
    given = kinds(config)
    made: dict[str, FeedForward] = {}
    if MLP in given:
        f = config.integer("intermediate_size")
        linears = squared(config, f, config.integer("hidden_size"))
        made[MLP] = FeedForward(intermediate=f, activation=squared_relu(config), gated=False, linears=linears)
    if MOE in given:
        made[MOE] = experts(config)
    return [made.get(kind) for kind in given]


def squared_relu(config: Config) -> str:
    """The activation of feed-forwards and experts."""
    return config.choice("mlp_hidden_act", ACTIVATIONS)


def squared(config: Config, f: int, h: int) -> tuple[Linear, ...]:
    """up_proj and down_proj."""
    bias = config.flag("mlp_bias")
    return (
        Linear(name="up_proj", inputs=h, outputs=f, bias=bias),
        Linear(name="down_proj", inputs=f, outputs=h, bias=bias),
    )


def experts(config: Config) -> FeedForward:
    """Experts without a gate, chosen as DeepSeek-V3's are, beside a shared one of the full width."""
    h, f, count = config.integers("hidden_size", "moe_intermediate_size", "n_routed_experts")
    latent, bias = config.optional_integer("moe_latent_size"), config.flag("mlp_bias")
    width = h if latent is None else latent
    routed = Experts(
        count=count,
        active=experts_per_token(config, count),
        intermediate=f,
        stacked=(
            Bare(name="experts.up_proj", shape=(count, f, width)),
            Bare(name="experts.down_proj", shape=(count, width, f)),
        ),
        router=Linear(name="gate", inputs=h, outputs=count),
        routing=sigmoid_routing(config, count),
        gated=False,
        activation=squared_relu(config),
    )
    linears = (
        ()
        if latent is None
        else (
            Linear(name="fc1_latent_proj", inputs=h, outputs=latent, bias=bias),
            Linear(name="fc2_latent_proj", inputs=latent, outputs=h, bias=bias),
        )
    )
    shared = squared(config, config.integer("moe_shared_expert_intermediate_size"), h)
    return FeedForward(
        intermediate=f, activation=squared_relu(config), gated=False, experts=routed, shared=shared, linears=linears
    )


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Its head is never tied, and a mask of attention is made, whatever the layers take."""
    return with_kernel_note(spec.but(tied=False, logits_fp32=True, more_masks=frozenset({None})), config)


def parse(raw: Config) -> ModelSpec:
    """The spec of a config, whose older names replace the class's own; its number of layers is that of the list."""
    keys = dict(raw.keys)
    for name, old in OLD_NAMES.items():
        if old in keys:
            keys[name] = keys.pop(old)
    if keys.get("num_nextn_predict_layers"):
        count = shown(keys.pop("num_nextn_predict_layers"))
        note = f"layers that predict further tokens ({count}) are left out, as transformers leaves them out"
        spec = build(ROW, Config(keys, raw.name, raw.source))
        return spec.but(notes=(*spec.notes, note))
    return build(ROW, Config(keys, raw.name, raw.source))


ROW = Family(
    model_type="nemotron_h",
    feed_forward=feed_forwards,
    norms=("norm",),
    norm_kind="rms-wide-weight",
    form="single",
    mixers=mixers,
    bias_keys=("", ""),
    harmless=("attention_bias",),
    not_counted=(("output_router_logits", ROUTER_LOSS),),
    classifies=False,
    finish=finish,
)
FAMILIES = {"nemotron_h": parse}
