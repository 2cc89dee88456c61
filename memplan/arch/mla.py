"""Low-rank attention: DeepSeek-V2 to V3.2, Kimi-K2, GLM-4.7-Flash, GLM-5, MiniCPM3 (transformers 5.23)."""

from memplan.arch.attention import layer_types
from memplan.arch.checkpoint import with_checkpoint_notes
from memplan.arch.config import Config
from memplan.arch.decoder import Family, gated, sparse
from memplan.arch.reading import kinds_of_layers
from memplan.arch.routed import (
    ROUTER_LOSS,
    expert_count,
    experts_per_token,
    first_dense,
    in_groups,
    is_true,
    make_experts,
    shared_experts,
)
from memplan.arch.shared_moe import deepseek_layers
from memplan.spec.attention_kinds import Indexer, LatentAttention
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import FeedForward, Linear, Norm
from memplan.spec.routing import Routing

INDEXED = "indexed_attention", "deepseek_sparse_attention"
"""What layer_types calls such attention, and what it was called: published configs hold either."""
NOT_COUNTED = (("output_router_logits", ROUTER_LOSS),)


def latent_attention(family: Family, config: Config, window: int | None) -> LatentAttention:
    """The attention of every layer: q_lora_rank null means that one projection makes the queries."""
    h, heads, bias = config.integer("hidden_size"), config.integer("num_attention_heads"), config.flag("attention_bias")
    latent, low = config.integer("kv_lora_rank"), config.optional_integer("q_lora_rank")
    nope, rope, value = config.integer("qk_nope_head_dim"), rotary_width(family, config), value_width(config)
    if rope % 2:
        raise config.wrong("qk_rope_head_dim", "even, since rotary embeddings turn pairs", rope)
    kv_heads = config.value("num_key_value_heads")
    if kv_heads is not None and config.integer("num_key_value_heads") != heads:
        config.notes.append(
            f"num_key_value_heads ({kv_heads}) is not num_attention_heads ({heads}): transformers' low-rank attention "
            "then runs without masks alone"
        )
    query = heads * (nope + rope)
    into: tuple[Linear, ...] = (Linear(name="q_proj", inputs=h, outputs=query),)
    if low is not None:
        down = Linear(name="q_a_proj", inputs=h, outputs=low, bias=bias)
        into = (down, Linear(name="q_b_proj", inputs=low, outputs=query))
    norms = [Norm(name="q_a_layernorm", width=low)] if low is not None else []
    return LatentAttention(
        num_heads=heads,
        latent=latent,
        nope=nope,
        rope=rope,
        value=value,
        linears=(
            *into,
            Linear(name="kv_a_proj_with_mqa", inputs=h, outputs=latent + rope, bias=bias),
            Linear(name="kv_b_proj", inputs=latent, outputs=heads * (nope + value)),
            Linear(name="o_proj", inputs=heads * value, outputs=h, bias=bias),
        ),
        norms=(*norms, Norm(name="kv_a_layernorm", width=latent)),
        rotary=rotary(family, config),
    )


def rotary_width(family: Family, config: Config) -> int:
    """qk_rope_head_dim; GLM-4.7-Flash's class knows it as head_dim too, which holds where both are given."""
    if family.model_type == "glm4_moe_lite" and "head_dim" in config.keys:
        return config.integer("head_dim")
    return config.integer("qk_rope_head_dim")


def value_width(config: Config) -> int:
    """v_head_dim; MiniCPM3 takes null for hidden_size / num_attention_heads."""
    if config.defaults["v_head_dim"] is None and config.value("v_head_dim") is None:
        return config.integer("hidden_size") // config.integer("num_attention_heads")
    return config.integer("v_head_dim")


def rotary(family: Family, config: Config) -> str:
    """How the class turns: V2 as complex numbers, MiniCPM3 in halves, the others as rope_interleave says."""
    fixed = {"deepseek_v2": "complex", "minicpm3": "half"}.get(family.model_type)
    if fixed:
        return fixed
    return "interleaved" if "rope_interleave" not in config.defaults or is_true(config, "rope_interleave") else "half"


def indexed_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Low-rank attention to tokens that an indexer chooses: one in every layer, or in indexer_types' full ones."""
    if config.value("q_lora_rank") is None:
        raise config.wrong("q_lora_rank", "an integer: its indexer reads the latent of the queries", None)
    layer_types(config, {name: name for name in INDEXED})
    plain = latent_attention(family, config, None).but(
        indexed=True,
        rotary="interleaved",
        topk=config.integer("index_topk"),
        hands_on="indexer_types" in config.defaults,
    )
    full = plain.but(indexer=indexer(config))
    return [full if kind == "full" else plain for kind in indexer_types(config)]


def with_indexers(spec: ModelSpec, config: Config) -> ModelSpec:
    """The indexers as parts of their layers, and the notes."""
    runs = []
    for run in spec.runs:
        mixer = run.layer.mixer
        found = (mixer.indexer,) if isinstance(mixer, LatentAttention) and mixer.indexer else ()
        runs.append(run.but(layer=run.layer.but(extra=found)))
    always = {"runs": tuple(runs), "more_masks": frozenset({0})}  # a mask is made even where none is needed
    return with_checkpoint_notes(spec.model_copy(update=always), config)


def indexer(config: Config) -> Indexer:
    """The indexer of a layer, which runs without a graph: no gradient ever comes to its weights."""
    heads, width = config.integer("index_n_heads"), config.integer("index_head_dim")
    h, low = config.integer("hidden_size"), config.integer("q_lora_rank")
    if config.integer("qk_rope_head_dim") > width:
        raise config.wrong("index_head_dim", "at least qk_rope_head_dim", width)
    return Indexer(
        heads=heads,
        width=width,
        rope=config.integer("qk_rope_head_dim"),
        topk=config.integer("index_topk"),
        linears=(
            Linear(name="wq_b", inputs=low, outputs=heads * width, frozen=True),
            Linear(name="wk", inputs=h, outputs=width, frozen=True),
            Linear(name="weights_proj", inputs=h, outputs=heads, frozen=True),
        ),
        norms=(Norm(name="k_norm", width=width, kind="layer", bias=True, frozen=True),),
    )


def indexer_types(config: Config) -> list[str]:
    """full or shared for each layer: listed, by index_topk_pattern, or every index_topk_freq-th from an offset on."""
    layers = config.integer("num_hidden_layers")
    if "indexer_types" not in config.defaults:
        return ["full"] * layers
    given, pattern = config.value("indexer_types"), config.keys.get("index_topk_pattern")
    if given is None and pattern is not None:
        given = [{"F": "full", "S": "shared"}.get(c) for c in pattern] if isinstance(pattern, str) else pattern
    if given is None:
        every = max(config.integer("index_topk_freq", smallest=-(10**9)), 1)
        offset = config.integer("index_skip_topk_offset", smallest=-(10**9))
        return ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers)]
    kinds = kinds_of_layers(config, "indexer_types", given, {"full": "full", "shared": "shared"}, more=True)
    if kinds[0] != "full":
        raise config.wrong("indexer_types", "full in the first layer", kinds[0])
    return kinds


def deepseek_v2_layers(family: Family, config: Config) -> list[FeedForward]:
    """Dense layers, then experts chosen by a softmax in fp32, in groups or not, beside shared ones."""
    config.integer("num_hidden_layers")  # the first to be told when it cannot be
    count = expert_count(config, "n_routed_experts", "num_experts")
    active, f = experts_per_token(config, count), config.integer("moe_intermediate_size")
    grouped = config.choice("topk_method", {"greedy": "", "group_limited_greedy": "best"})
    routing = Routing(
        behind=True, product="fp32", scaled=True, **(in_groups(config, count, 1) if grouped else {}), group_score="best"
    )
    shared = shared_experts(config, f * config.integer("n_shared_experts"), bias=config.flag("mlp_bias"))
    made = sparse(family, config, make_experts(config, count, active, f, routing), shared=shared)
    return first_dense(config, gated(family, config, config.integer("intermediate_size")), made)


def deepseek_row(model_type: str, classifies: bool, indexed: bool = False) -> Family:
    """A row whose experts are chosen as DeepSeek-V3's are."""
    return Family(
        model_type=model_type,
        feed_forward=deepseek_layers,
        mixer=None if indexed else latent_attention,
        mixers=indexed_mixers if indexed else None,
        not_counted=NOT_COUNTED,
        classifies=classifies,
        finish=with_indexers if indexed else with_checkpoint_notes,
    )


ROWS = (
    Family(model_type="deepseek_v2", feed_forward=deepseek_v2_layers, mixer=latent_attention, heads_divide_hidden=True,
        not_counted=NOT_COUNTED),
    deepseek_row("deepseek_v3", classifies=True),
    deepseek_row("deepseek_v32", classifies=False, indexed=True),
    deepseek_row("glm_moe_dsa", classifies=False, indexed=True),
    deepseek_row("glm4_moe_lite", classifies=False),
    Family(model_type="minicpm3", mixer=latent_attention, form="pre-scaled", scaled_embedding=True,
        heads_divide_hidden=True, finish=lambda spec, config: spec.but(scaled_head_input=True)),
)  # fmt: skip
