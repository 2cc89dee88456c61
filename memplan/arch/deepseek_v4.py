"""DeepSeek-V4 as transformers 5.23 builds it: streams of hyper-connections, compressed attention, hashed experts."""

from typing import Any

from memplan.arch.checkpoint import with_checkpoint_notes
from memplan.arch.config import Config
from memplan.arch.decoder import Family, activation
from memplan.arch.reading import kinds_of_layers, share
from memplan.arch.routed import expert_count, experts_per_token, make_experts, shared_experts
from memplan.spec.attention_kinds import CompressedAttention, Compressor
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, FeedForward, Linear, Norm, Part
from memplan.spec.routing import Routing

FP32 = 4
"""Bytes of what the class keeps in fp32 beside half-precision weights (``_keep_in_fp32_modules_strict``)."""
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
    return kinds_of_layers(config, "layer_types", given, {kind: kind for kind in COMPRESS}, more=True)


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
        tensors=(Bare(name="sinks", shape=(heads,), itemsize=FP32),),
        norms=(wide_norm("q_a_norm", low), wide_norm("kv_norm", width)),
        rope=turning(config, width, kind),
        groups=groups,
        **compressors(config, kind),
    )


def wide_norm(name: str, width: int, frozen: bool = False) -> Norm:
    """A norm kept in fp32, whose product with its weight is narrowed last."""
    return Norm(name=name, width=width, kind="rms-wide", itemsize=FP32, frozen=frozen)


def turning(config: Config, width: int, kind: str) -> int:
    """Elements of a head that turn."""
    ropes, older = config.keys.get("rope_parameters"), config.keys.get("qk_rope_head_dim")
    factor = config.keys.get("partial_rotary_factor")
    if isinstance(ropes, dict) and all(isinstance(ropes.get(name), dict) for name in ("main", "compress")):
        factor = ropes["main" if kind == WINDOW else "compress"].get("partial_rotary_factor", 1.0)
    elif factor is None:
        factor = older / width if isinstance(older, int) else 64 / 512
    return int(width * share(config, "partial_rotary_factor", factor))


def compressors(config: Config, kind: str) -> dict[str, Any]:
    """What compresses keys and values; a sparse layer chooses among them with an indexer."""
    h, width = config.integer("hidden_size"), config.integer("head_dim")
    if kind == WINDOW:
        return {}
    if kind == HEAVY:
        every = rate(config, HEAVY, 128)
        return {"rate": every, "compressor": compressing(h, width, width, every)}
    small, heads = config.integer("index_head_dim"), config.integer("index_n_heads")
    every = rate(config, SPARSE, 4)
    choice = compressing(h, 2 * small, small, every, frozen=True)
    more = (
        Linear(name="q_b_proj", inputs=config.integer("q_lora_rank"), outputs=heads * small, frozen=True),
        Linear(name="weights_proj", inputs=h, outputs=heads, frozen=True),
    )
    indexer = choice.but(linears=(*choice.linears, *more))
    made = {"rate": every, "compressor": compressing(h, 2 * width, width, every), "indexer": indexer}
    return {**made, "index_heads": heads, "topk": config.integer("index_topk")}


def compressing(h: int, outputs: int, width: int, every: int, frozen: bool = False) -> Compressor:
    """Two projections, a bias for each position in a block, a norm; an indexer's get no gradient."""
    return Compressor(
        linears=tuple(Linear(name=name, inputs=h, outputs=outputs, frozen=frozen) for name in ("kv_proj", "gate_proj")),
        tensors=(Bare(name="position_bias", shape=(every, outputs), frozen=frozen, itemsize=FP32),),
        norms=(wide_norm("kv_norm", width, frozen),),
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
    scoring, made = config.keys.get("scoring_func") or "sqrtsoftplus", {}
    if scoring != "sqrtsoftplus":
        raise config.wrong("scoring_func", "sqrtsoftplus", scoring)
    for hashed in (True, False):
        routing = Routing(
            scores="square-root", corrected=not hashed, hashed=hashed, normalize="epsilon-apart", scaled=True
        )
        experts = make_experts(config, count, active, f, routing).but(limited=True)
        made[hashed] = FeedForward(
            intermediate=f,
            activation=activation(family, config),
            experts=experts,
            shared=shared_experts(config, f, bias=config.flag("mlp_bias")),
            shared_limited=True,
        )
    return [made[hashed] for hashed in hashed_layers(config)]


def hashed_layers(config: Config) -> list[bool]:
    """Whether each layer's experts are chosen by the token's id: as mlp_layer_types says, or the first three."""
    layers, given = config.integer("num_hidden_layers"), config.value("mlp_layer_types")
    if given is None:
        first = config.keys.get("num_hash_layers")
        return [i < (first if isinstance(first, int) else 3) for i in range(layers)]
    kinds = kinds_of_layers(config, "mlp_layer_types", given, {"hash_moe": "hash_moe", "moe": "moe"}, more=True)
    return [kind == "hash_moe" for kind in kinds]


def with_streams(spec: ModelSpec, config: Config) -> ModelSpec:
    """Compressors, and the connections that mix ``hc_mult`` residual streams around attention and experts."""
    streams, h = config.integer("hc_mult"), spec.hidden_size
    weights = (2 + streams) * streams

    def mixing(prefix: str, rows: int, scales: int) -> Part:
        shapes = {"fn": (rows, streams * h), "base": (rows,), "scale": (scales,)}
        return Part(tensors=tuple(Bare(name=f"{prefix}{k}", shape=shape, itemsize=FP32) for k, shape in shapes.items()))

    connection = mixing("", weights, 3)
    runs = []
    for run in spec.runs:
        mixer = run.layer.mixer
        assert isinstance(mixer, CompressedAttention)
        made = tuple(part for part in (mixer.compressor, mixer.indexer) if part)
        norms = tuple(wide_norm(norm.name, norm.width) for norm in run.layer.norms)
        update = {"extra": (*made, connection, connection), "norms": norms, "streams": streams, "form": "hyper"}
        update["stream_rounds"] = config.integer("hc_sinkhorn_iters")
        runs.append(run.but(layer=run.layer.model_copy(update=update)))
    hashed = sum(run.count for run in spec.runs if run.layer.experts and run.layer.experts.routing.hashed)
    whole: dict[str, Any] = {"runs": tuple(runs), "front": ("streams",), "rotary_sets": 2}
    whole |= {"extra": (mixing("hc_", streams, 1),), "final_norm": wide_norm("norm", h)}
    whole["buffer_bytes"] = hashed * spec.vocab_size * config.integer("num_experts_per_tok") * 8
    return with_checkpoint_notes(spec.model_copy(update=whole), config)


ROW = Family(
    model_type="deepseek_v4", feed_forward=layers, mixers=mixers, balances=True, classifies=False, finish=with_streams
)

ROWS = (ROW,)
