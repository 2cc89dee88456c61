"""DeepSeek-V4 as transformers 5.23 builds it: its parameters. The engine has no program of its attention yet."""

from functools import partial

from memplan.arch import attention
from memplan.arch.checkpoint import with_checkpoint_notes
from memplan.arch.config import Config
from memplan.arch.decoder import DROPOUT, Family, activation, build
from memplan.arch.latent_keys import DEEPSEEK_V4
from memplan.arch.routed import ROUTER_LOSS, expert_count, experts_per_token, make_experts, shared_experts
from memplan.spec.compressed import CompressedAttention
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, FeedForward, Linear, Norm, Part, Routing

WINDOW, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
BY_RATIO = {0: WINDOW, 4: SPARSE, 128: HEAVY}
MOE_WIDTH = "moe_intermediate_size"
"""The class's own name; ``intermediate_size``, an alias of its attribute_map, is set later and holds where both are."""
COMPRESS = {WINDOW: "none", SPARSE: "sparse", HEAVY: "heavy"}


def layer_kinds(config: Config) -> list[str]:
    """The kind of each layer: layer_types, the older compress_ratios, or two heavy ones and then both in turn."""
    layers = config.integer("num_hidden_layers")
    given, ratios = config.value("layer_types"), config.keys.get("compress_ratios")
    if given is None and ratios is not None:
        given = [BY_RATIO.get(ratio) for ratio in ratios] if isinstance(ratios, (list, tuple)) else ratios
    if given is None:
        return [SPARSE if i > 1 and i % 2 else HEAVY for i in range(layers)]
    kinds = list(given)[:layers] if isinstance(given, (list, tuple)) else []
    if len(kinds) < layers or any(kind not in COMPRESS for kind in kinds):
        raise config.wrong("layer_types", f"one of {', '.join(COMPRESS)} for each layer ({layers})", given)
    return [str(kind) for kind in kinds]


def mixers(family: Family, config: Config) -> list[AnyMixer]:
    """The attention of each layer."""
    kinds = layer_kinds(config)
    made = {kind: compressed_attention(config, kind) for kind in sorted(set(kinds))}
    return [made[kind] for kind in kinds]


def compressed_attention(config: Config, kind: str) -> CompressedAttention:
    """Queries out of a latent, one head of keys and values, an output projection in groups."""
    h, heads, width = config.integer("hidden_size"), config.integer("num_attention_heads"), config.integer("head_dim")
    low, groups, out = config.integer("q_lora_rank"), config.integer("o_groups"), config.integer("o_lora_rank")
    if heads * width % groups:
        raise config.wrong("o_groups", f"a divisor of num_attention_heads * head_dim ({heads * width})", groups)
    return CompressedAttention(
        num_heads=heads,
        head_dim=width,
        window=config.integer("sliding_window"),
        eager_only=True,
        compress=COMPRESS[kind],
        linears=(
            Linear(name="q_a_proj", inputs=h, outputs=low),
            Linear(name="q_b_proj", inputs=low, outputs=heads * width),
            Linear(name="kv_proj", inputs=h, outputs=width),
            Linear(name="o_a_proj", inputs=heads * width // groups, outputs=groups * out),
            Linear(name="o_b_proj", inputs=groups * out, outputs=h),
        ),
        tensors=(Bare(name="sinks", shape=(heads,)),),
        norms=(Norm(name="q_a_norm", width=low), Norm(name="kv_norm", width=width)),
    )


def compressor(config: Config, kind: str) -> tuple[Part, ...]:
    """What compresses keys and values; a sparse layer chooses among them with an indexer."""
    h, width = config.integer("hidden_size"), config.integer("head_dim")
    if kind == "none":
        return ()
    if kind == "heavy":
        return (compressing(h, width, width, rate(config, HEAVY, 128)),)
    small, heads = config.integer("index_head_dim"), config.integer("index_n_heads")
    every = rate(config, SPARSE, 4)
    choice = compressing(h, 2 * small, small, every)
    more = (
        Linear(name="q_b_proj", inputs=config.integer("q_lora_rank"), outputs=heads * small),
        Linear(name="weights_proj", inputs=h, outputs=heads),
    )
    indexer = choice.model_copy(update={"linears": (*choice.linears, *more)})
    return compressing(h, 2 * width, width, every), indexer


def compressing(h: int, outputs: int, width: int, every: int) -> Part:
    """Two projections, a bias for each position in a block, a norm."""
    return Part(
        category="attn",
        linears=(
            Linear(name="kv_proj", inputs=h, outputs=outputs),
            Linear(name="gate_proj", inputs=h, outputs=outputs),
        ),
        tensors=(Bare(name="position_bias", shape=(every, outputs)),),
        norms=(Norm(name="kv_norm", width=width),),
    )


def rate(config: Config, kind: str, default: int) -> int:
    """Tokens that are compressed into one."""
    rates, older = config.keys.get("compress_rates"), {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}[kind]
    found = config.keys.get(older)
    if found is None:
        found = rates.get(kind, default) if isinstance(rates, dict) else default
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= 10**6:
        raise config.wrong("compress_rates", "positive integers", found)
    return found


def layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts and a shared one of the same width in every layer; in the first by the token's id, not by its score."""
    count = expert_count(config, "n_routed_experts", "num_local_experts")
    alias = "intermediate_size" in config.keys
    active, f = experts_per_token(config, count), config.integer("intermediate_size" if alias else MOE_WIDTH)
    routing = Routing(program="square-root", product="fp32", scores="logits", corrected=True, scaled=True)
    layer = FeedForward(
        intermediate=f,
        activation=activation(family, config),
        experts=make_experts(config, count, active, f, routing),
        shared=shared_experts(config, f, bias=config.flag("mlp_bias")),
    )
    return [layer] * config.integer("num_hidden_layers")


def with_streams(spec: ModelSpec, config: Config) -> ModelSpec:
    """Compressors, and the connections that mix ``hc_mult`` residual streams around attention and experts."""
    streams, h = config.integer("hc_mult"), spec.hidden_size
    weights = (2 + streams) * streams
    connection = Part(
        tensors=(
            Bare(name="fn", shape=(weights, streams * h)),
            Bare(name="base", shape=(weights,)),
            Bare(name="scale", shape=(3,)),
        )
    )
    runs = []
    for run in spec.runs:
        mixer = run.layer.mixer
        assert isinstance(mixer, CompressedAttention)
        extra = (*compressor(config, mixer.compress), connection, connection)
        runs.append(run.model_copy(update={"layer": run.layer.model_copy(update={"extra": extra})}))
    head = Part(
        tensors=(
            Bare(name="hc_fn", shape=(streams, streams * h)),
            Bare(name="hc_base", shape=(streams,)),
            Bare(name="hc_scale", shape=(1,)),
        )
    )
    return with_checkpoint_notes(spec.model_copy(update={"runs": tuple(runs), "extra": (head,)}), config)


ROW = Family(
    model_type="deepseek_v4",
    defaults=DEEPSEEK_V4,
    feed_forward=layers,
    windows=attention.no_windows,
    mixers=mixers,
    not_counted=(("attention_dropout", DROPOUT), ("output_router_logits", ROUTER_LOSS)),
    classifies=False,
    finish=with_streams,
)

ROWS = (ROW,)
FAMILIES = {row.model_type: partial(build, row) for row in ROWS}
