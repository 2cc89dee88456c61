"""MiniMax-01 (linear attention in blocks, and softmax attention in turn) and RWKV 4, as in transformers 5.23."""

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import ACTIVATIONS, Family, softmax_attention, sparse
from memplan.arch.hybrid import LAYER_NAMES, LINEAR, of_each_layer
from memplan.arch.routed import JITTER, expert_count, experts_per_token, make_experts
from memplan.arch.state_space import with_kernel_note
from memplan.spec.layer import AnyMixer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, FeedForward, Linear, Norm
from memplan.spec.routing import Routing
from memplan.spec.state_space import Lightning, TimeMix


def minimax_kinds(config: Config) -> list[str]:
    """As layer_types lists them; else linear attention in every second layer."""
    layers = config.integer("num_hidden_layers")
    if config.value("layer_types") is None:
        return [LINEAR if i % 2 else attention.FULL for i in range(layers)]
    return of_each_layer(config, LAYER_NAMES)


def minimax_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Both kinds of layer."""
    window = config.optional_integer("sliding_window")
    made: dict[str, AnyMixer] = {LINEAR: lightning(config), attention.FULL: softmax_attention(family, config, window)}
    return [made[kind] for kind in minimax_kinds(config)]


def lightning(config: Config) -> Lightning:
    """q, k and v through the activation, a norm of the output, and a gate made of the input."""
    h, heads, width = config.integer("hidden_size"), config.integer("num_attention_heads"), attention.head_dim(config)
    config.choice("hidden_act", ACTIVATIONS)
    inner = heads * width
    return Lightning(
        heads=heads,
        head_dim=width,
        block=config.integer("block_size"),
        linears=(
            Linear(name="qkv_proj", inputs=h, outputs=3 * inner),
            Linear(name="out_proj", inputs=inner, outputs=h),
            Linear(name="output_gate", inputs=h, outputs=inner),
        ),
        norms=(Norm(name="self_attn.norm", width=inner),),
    )


def minimax_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts of intermediate_size; the weights of the chosen are divided by their sum, in fp32."""
    count, f = expert_count(config, "num_local_experts", "num_experts"), config.integer("intermediate_size")
    routing = Routing(widened=True, normalize="in-place")
    routed = make_experts(config, count, experts_per_token(config, count), f, routing)
    return [sparse(family, config, routed)] * config.integer("num_hidden_layers")


def with_mask(spec: ModelSpec, config: Config) -> ModelSpec:
    """The mask of softmax attention is made whether or not a layer takes it."""
    return spec.but(more_masks=frozenset({config.optional_integer("sliding_window")}))


def mixes(*names: str, width: int) -> tuple[Bare, ...]:
    """How much of each channel is this token's, and how much the last one's."""
    return tuple(Bare(name=f"time_mix_{name}", shape=(1, 1, width)) for name in names)


def rwkv_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """A weighted average over the past of attention_hidden_size channels."""
    h, given = config.integer("hidden_size"), config.value("attention_hidden_size")
    width = h if given is None else config.integer("attention_hidden_size")
    mixer = TimeMix(
        width=width,
        linears=(
            *(Linear(name=name, inputs=h, outputs=width) for name in ("key", "value", "receptance")),
            Linear(name="output", inputs=width, outputs=h),
        ),
        tensors=(
            Bare(name="time_decay", shape=(width,)),
            Bare(name="time_first", shape=(width,)),
            *mixes("key", "value", "receptance", width=h),
        ),
    )
    return [mixer] * config.integer("num_hidden_layers")


def rwkv_layers(family: Family, config: Config) -> list[FeedForward]:
    """Squared ReLU, times a gate of the input."""
    h, given = config.integer("hidden_size"), config.value("intermediate_size")
    f = 4 * h if given is None else config.integer("intermediate_size")
    layer = FeedForward(
        category="ssm",
        intermediate=f,
        activation="relu2",
        gated=False,
        linears=(
            Linear(name="key", inputs=h, outputs=f),
            Linear(name="receptance", inputs=h, outputs=h),
            Linear(name="value", inputs=f, outputs=h),
        ),
        tensors=mixes("key", "receptance", width=h),
    )
    return [layer] * config.integer("num_hidden_layers")


def finish_rwkv(spec: ModelSpec, config: Config) -> ModelSpec:
    """The first layer normalises the embedding's output, which autocast widens."""
    norm = Norm(name="pre_ln", width=spec.hidden_size, kind="layer", bias=True)
    run, *others = spec.runs
    first = run.layer.but(norms=(norm, *run.layer.norms), narrow_input=True)
    rest = (Run(count=run.count - 1, layer=run.layer),) if run.count > 1 else ()
    return with_kernel_note(spec.but(runs=(Run(count=1, layer=first), *rest, *others)), config)


ROWS = (
    Family(model_type="minimax", feed_forward=minimax_layers, form="normed-residual", mixers=minimax_mixers,
        not_counted=(("router_jitter_noise", JITTER),), balances=True, finish=with_mask),
    Family(model_type="rwkv", feed_forward=rwkv_layers, names={"max_position_embeddings": "context_length"},
        norms=("ln1", "ln2"), form="rwkv", norm_kind="layer", norm_bias=True, mixers=rwkv_mixers,
        classifies=False, finish=finish_rwkv),
)  # fmt: skip
