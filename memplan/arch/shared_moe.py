"""Decoders with experts that every token visits beside the routed ones: Qwen2-MoE, GLM-4.5, dots.llm1, ERNIE 4.5,
Hunyuan, EXAONE MoE, Command A (MoE) and Llama 4's text model, as transformers 5.23 builds them."""

from memplan.arch import attention
from memplan.arch.attention import patterned
from memplan.arch.checkpoint import with_checkpoint_notes
from memplan.arch.config import Config
from memplan.arch.decoder import Family, gated, rotary_dim, softmax_attention, sparse, turned
from memplan.arch.moe import llama4_layers, llama4_masks, llama4_mixers
from memplan.arch.post_norm import exaone4_attention as hybrid_attention
from memplan.arch.routed import (
    ROUTER_LOSS,
    every_step,
    expert_count,
    experts_of,
    experts_per_token,
    first_dense,
    make_experts,
    shared_experts,
    sigmoid_routing,
    softmax_routing,
)
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, FeedForward, Norm, Part
from memplan.spec.routing import Routing

EXPERT_NAMES = ("n_routed_experts", "num_local_experts", "num_experts")
NOT_COUNTED = (("output_router_logits", ROUTER_LOSS),)


def qwen2_moe_layers(family: Family, config: Config) -> list[FeedForward]:
    """Qwen's experts, and a shared one behind a gate, in every decoder_sparse_step-th layer."""
    made = behind_gate(family, config, softmax_routing(config))
    return every_step(config, gated(family, config, config.integer("intermediate_size")), made)


def behind_gate(family: Family, config: Config, routing: Routing) -> FeedForward:
    """Qwen's experts, and a shared one behind a gate."""
    routed = experts_of(config, ("num_experts",), "moe_intermediate_size", routing)
    shared = shared_experts(config, config.integer("shared_expert_intermediate_size"), "shared_expert_gate")
    return sparse(family, config, routed, shared=shared, shared_first=True)


def qwen2_moe_windows(config: Config) -> attention.Windows:
    """Every first of two layers below max_window_layers slides, while use_sliding_window is true."""
    layers, size = config.integer("num_hidden_layers"), attention.switched_size(config)
    below = config.integer("max_window_layers", smallest=0) if size is not None else 0
    kinds = [attention.SLIDING if not i % 2 and i < below else attention.FULL for i in range(layers)]
    return attention.layered(config, kinds, size)


def qwen2_moe_masks(spec: ModelSpec, config: Config) -> ModelSpec:
    """A mask with and one without a window are made, whatever the layers take; a window that is off is of no token."""
    size = attention.switched_size(config)
    return spec.but(more_masks=frozenset({None, 0 if size is None else size}))


def deepseek_layers(family: Family, config: Config) -> list[FeedForward]:
    """Dense layers, then experts chosen as DeepSeek-V3's are, beside shared ones (GLM-4.5, dots.llm1, EXAONE)."""
    config.integer("num_hidden_layers")  # the first to be told when it cannot be
    count = expert_count(config, *(name for name in EXPERT_NAMES if name in config.defaults))
    if config.keys.get("num_experts") is not None:  # replaces n_routed_experts in the classes that know both
        count = config.integer("num_experts")
    active, f = experts_per_token(config, count), config.integer("moe_intermediate_size")
    name = "n_shared_experts" if "n_shared_experts" in config.defaults else "num_shared_experts"
    shared = shared_experts(config, f * config.integer(name, smallest=0))
    made = sparse(family, config, make_experts(config, count, active, f, sigmoid_routing(config, count)), shared=shared)
    return first_dense(config, gated(family, config, config.integer("intermediate_size")), made)


def glm4_moe_attention(family: Family, config: Config, window: int | None) -> Attention:
    """Half of each head turns; q and k are normalised when use_qk_norm says so."""
    made = turned(rotary="concatenated", rotary_dim=rotary_dim)(family, config, window)
    if not config.flag("use_qk_norm"):
        return made
    norms = tuple(Norm(name=name, width=made.head_dim) for name in ("q_norm", "k_norm"))
    return made.but(norms=norms)


def dots_windows(config: Config) -> attention.Windows:
    """Layers from max_window_layers on have the window, unless it is null."""
    layers, size = config.integer("num_hidden_layers"), config.optional_integer("sliding_window")
    full = layers if size is None else min(layers, config.integer("max_window_layers", smallest=0))
    return attention.layered(config, [attention.FULL] * full + [attention.SLIDING] * (layers - full), size)


def ernie_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts in every moe_layer_interval-th layer from moe_layer_start_index to moe_layer_end_index."""
    count = expert_count(config, "moe_num_experts", "num_experts")
    key = "num_experts_per_tok" if "num_experts_per_tok" in config.keys else "moe_k"
    active, f = experts_per_token(config, count, key), config.integer("moe_intermediate_size")
    routing = Routing(product="fp32-always", stored_itemsize=4, corrected=True, normalize="clamped", narrowed=True)
    correction = Bare(name="moe_statics.e_score_correction_bias", shape=(1, count), category="router", frozen=True)
    wide = f * config.integer("moe_num_shared_experts", smallest=0)
    routed = make_experts(config, count, active, f, routing)
    shared = shared_experts(config, wide, bias=config.flag("use_bias")) if wide else ()
    made = sparse(family, config, routed, tensors=(correction,), shared=shared, shared_first=True)
    layers, step = config.integer("num_hidden_layers"), config.integer("moe_layer_interval")
    first = config.integer("moe_layer_start_index", smallest=0)
    last = config.integer("moe_layer_end_index", smallest=-1)
    last = layers - 1 if last == -1 else last
    dense = gated(family, config, config.integer("intermediate_size"))
    return [dense if (i + 1) % step or not first <= i <= last else made for i in range(layers)]


def hunyuan_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts and a shared one of intermediate_size in every layer; a router in fp32."""
    count = expert_count(config, "num_experts", "num_local_experts")
    given, f = config.value("moe_topk"), config.integer("intermediate_size")
    layers = config.integer("num_hidden_layers")
    each = list(given) if isinstance(given, (list, tuple)) else [given] * layers
    if len(each) < layers:
        raise config.wrong("moe_topk", f"a number, or one for each of num_hidden_layers ({layers})", given)
    made: dict[object, FeedForward] = {}
    for active in each[:layers]:
        if not isinstance(active, int) or isinstance(active, bool) or not 1 <= active <= count:
            raise config.wrong("moe_topk", f"from 1 to the number of experts ({count})", active)
        routing = Routing(product="fp32", stored_itemsize=4, normalize="in-place", narrowed="logits")
        routed = make_experts(config, count, active, f, routing, "wg")
        shared = shared_experts(config, f)
        made.setdefault(active, sparse(family, config, routed, shared=shared, shared_first=True))
    return [made[active] for active in each[:layers]]


def hunyuan_attention(family: Family, config: Config, window: int | None) -> Attention:
    """q and k are normalised after they turn."""
    if config.value("head_dim") is None:
        raise config.wrong("head_dim", "given: the class has no default that works", None)
    return turned(norms_last=True)(family, config, window)


def ernie_head(spec: ModelSpec, config: Config) -> ModelSpec:
    """The head has a bias when use_bias says so."""
    if not config.flag("use_bias"):
        return spec
    if spec.tied:
        bias = Part(tensors=(Bare(name="lm_head.bias", shape=(spec.vocab_size,)),), category="lm_head")
        return spec.but(extra=(bias,))
    return spec.but(head=spec.head.but(bias=True))


def exaone_windows(config: Config) -> attention.Windows:
    """All but every sliding_window_pattern-th layer slide."""
    size = config.integer("sliding_window")
    listed = attention.layer_types(config)
    if listed is not None:
        return attention.layered(config, listed, size)
    return patterned(config, config.integer("sliding_window_pattern"))


def cohere_layers(family: Family, config: Config) -> list[FeedForward]:
    """The best of the logits, their softmax or sigmoids; shared experts added or averaged in; dense layers first."""
    count = expert_count(config, "num_experts")
    active, f = experts_per_token(config, count), config.integer("intermediate_size")
    how = config.choice("expert_selection_fn", {"softmax": "softmax"})
    strategy = config.choice("shared_expert_combination_strategy", {"average": "average", "sum": "sum"})
    wide = f * config.integer("num_shared_experts", smallest=0)
    routed = make_experts(config, count, active, f, Routing(scores="logits", narrowed=how == "softmax"))
    shared = shared_experts(config, wide) if wide else ()
    made = sparse(family, config, routed, shared=shared, shared_average=strategy == "average")
    prefix = config.optional_integer("prefix_dense_intermediate_size")
    return first_dense(config, gated(family, config, f if prefix is None else prefix), made)


def cohere_windows(config: Config) -> attention.Windows:
    """All but every sliding_window_pattern-th layer slide, counted anew after the dense layers."""
    layers = config.integer("num_hidden_layers")
    first = min(config.integer("first_k_dense_replace", smallest=0), layers)
    periods = [config.integer("prefix_dense_sliding_window_pattern")] * first
    periods += [config.integer("sliding_window_pattern")] * (layers - first)
    places = [*range(first), *range(layers - first)]
    full = [not (place + 1) % period for place, period in zip(places, periods, strict=True)]
    kinds = [attention.FULL if every else attention.SLIDING for every in full]
    return attention.layered(config, kinds, config.optional_integer("sliding_window"))


def cohere_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Layers without a window have no positions, but the dense ones before the experts when their pattern is 1."""
    windows, layers = cohere_windows(config), cohere_layers(family, config)
    dense_turns = config.integer("prefix_dense_sliding_window_pattern") == 1
    made: dict[tuple[int | None, bool], AnyMixer] = {}
    mixers = []
    for window, feed_forward in zip(windows, layers, strict=True):
        turns = window is not None or (feed_forward.experts is None and dense_turns)
        if (window, turns) not in made:
            fields = {"rotary_wide": True} if turns else {"rotary": "none"}
            made[window, turns] = softmax_attention(family, config, window).model_copy(update=fields)
        mixers.append(made[window, turns])
    return mixers


ROWS = (
    Family(model_type="qwen2_moe", feed_forward=qwen2_moe_layers, windows=qwen2_moe_windows,
        bias_keys=("qkv_bias", ""), balances=True, finish=qwen2_moe_masks),
    Family(model_type="glm4_moe", feed_forward=deepseek_layers, bias_keys=("attention_bias", ""),
        mixer=glm4_moe_attention, not_counted=NOT_COUNTED, classifies=False, finish=with_checkpoint_notes),
    Family(model_type="dots1", feed_forward=deepseek_layers, windows=dots_windows, null_kv_heads=True, qk_norm=True,
        not_counted=NOT_COUNTED, classifies=False),
    Family(model_type="ernie4_5_moe", feed_forward=ernie_layers, bias_keys=("use_bias", "use_bias"),
        mlp_bias_key="use_bias", mixer=turned(rotary_tables="fp32-repeated", rotary_wide=True), balances=True,
        classifies=False, finish=ernie_head),
    Family(model_type="hunyuan_v1_moe", feed_forward=hunyuan_layers, qk_norm=True, mixer=hunyuan_attention,
        not_counted=NOT_COUNTED, harmless=("use_qk_norm", "moe_intermediate_size", "mlp_bias")),
    Family(model_type="exaone_moe", feed_forward=deepseek_layers, windows=exaone_windows, qk_norm=True,
        mixer=hybrid_attention, not_counted=NOT_COUNTED, classifies=False, finish=with_checkpoint_notes),
    Family(model_type="cohere2_moe", feed_forward=cohere_layers, windows=cohere_windows, norms=("input_layernorm",),
        form="parallel", norm_kind="layer-wide", mixers=cohere_mixers, scaled_logits=True,
        not_counted=(*NOT_COUNTED, ("rms_norm_eps", "the norms are then RMS norms")), classifies=False),
    Family(model_type="llama4_text", feed_forward=llama4_layers, mixers=llama4_mixers, not_counted=NOT_COUNTED,
        classifies=False, finish=llama4_masks),
)  # fmt: skip
