"""Decoders whose feed-forward is routed experts alone: Mixtral, Qwen3-MoE, OLMoE, FlexOlmo, Granite MoE, Phi-3.5-MoE,
MiniMax-M2 and GPT-OSS as transformers 5.23 builds them; and the layers of Llama 4."""

from memplan.arch import attention
from memplan.arch.checkpoint import with_checkpoint_notes
from memplan.arch.config import Config
from memplan.arch.decoder import Family, gated, softmax_attention, sparse, turned
from memplan.arch.llama_like import both_masks, rope_layers
from memplan.arch.post_norm import POST_NORMS, olmo2_attention, whole_norms
from memplan.arch.routed import (
    JITTER,
    alternating_first,
    every_step,
    expert_count,
    experts_of,
    layer_numbers,
    make_experts,
    shared_experts,
    softmax_routing,
)
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, Experts, FeedForward
from memplan.spec.routing import Routing

JITTERED = (("router_jitter_noise", JITTER),)
LOCAL = ("num_local_experts", "num_experts")


def everywhere(family: Family, config: Config, routed: Experts) -> list[FeedForward]:
    """The same experts in every layer."""
    return [sparse(family, config, routed)] * config.integer("num_hidden_layers")


def mixtral_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts of intermediate_size; the weights of the chosen are divided by their sum, in fp32."""
    routing = Routing(widened=True, normalize="in-place")
    return everywhere(family, config, experts_of(config, LOCAL, "intermediate_size", routing))


def qwen3_moe_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name; a dense one elsewhere."""
    routed = experts_of(config, LOCAL[::-1], "moe_intermediate_size", softmax_routing(config).but(behind=True))
    dense = gated(family, config, config.integer("intermediate_size"))
    return every_step(config, dense, sparse(family, config, routed))


def olmoe_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts of intermediate_size, chosen as Qwen's are."""
    return everywhere(family, config, experts_of(config, LOCAL[::-1], "intermediate_size", softmax_routing(config)))


def granite_layers(family: Family, config: Config) -> list[FeedForward]:
    """The best of the logits in fp32, and a softmax over these alone."""
    routing = Routing(scores="logits", widened=True, narrowed=True)
    return everywhere(family, config, experts_of(config, LOCAL[:1], "intermediate_size", routing, "router"))


def phimoe_layers(family: Family, config: Config) -> list[FeedForward]:
    """Two experts, drawn one after the other with noise; input_jitter_noise multiplies their input too, twice."""
    count, active = expert_count(config, "num_local_experts"), config.integer("num_experts_per_tok")
    if active != 2:
        raise config.wrong("num_experts_per_tok", "2, which its router always draws", active)
    f = config.integer("intermediate_size")
    noisy = config.value("input_jitter_noise") not in (None, 0) and config.optional_positive("input_jitter_noise")
    routing = Routing(program="noisy-mixer" if noisy else "sparse-mixer")
    routed = make_experts(config, count, active, f, routing, "router")
    return everywhere(family, config, routed)


def minimax_layers(family: Family, config: Config) -> list[FeedForward]:
    """The best sigmoids in fp32 after a correction, over their sum."""
    routing = Routing(scores="sigmoid", widened=True, corrected=True, normalize="in-place")
    return everywhere(family, config, experts_of(config, LOCAL, "intermediate_size", routing))


def gpt_oss_layers(family: Family, config: Config) -> list[FeedForward]:
    """Biases everywhere; a softmax over the chosen logits in their own dtype; clamped gates."""
    routing = Routing(scores="logits", softmax_itemsize=0)
    routed = experts_of(config, LOCAL, "intermediate_size", routing, "router", biased=True)
    return everywhere(family, config, routed.but(clamped=True))


def sink_attention(family: Family, config: Config, window: int | None) -> Attention:
    """GPT-OSS: a learned logit beside the scores of each head, which only eager attention has; cat after the turn."""
    made = turned(rotary="concatenated", style="sinks", eager_only=True)(family, config, window)
    return made.but(tensors=(Bare(name="sinks", shape=(made.num_heads,)),))


def olmoe_attention(family: Family, config: Config, window: int | None) -> Attention:
    """q and k normalised over all heads together; projections may be clamped."""
    clip = config.optional_positive("clip_qkv")
    return whole_norms(family, turned(clipped=clip is not None)(family, config, window))


def minimax_attention(family: Family, config: Config, window: int | None) -> Attention:
    """q and k normalised over all heads together; rotary_dim elements of each head turn."""
    return whole_norms(family, turned(rotary="concatenated", rotary_dim=minimax_rotary)(family, config, window))


def minimax_rotary(config: Config) -> int | None:
    """rotary_dim elements, or partial_rotary_factor of them; None for all."""
    width = attention.head_dim(config)
    parameters = config.keys.get("rope_parameters") or config.keys.get("rope_scaling") or {}
    factor = parameters.get("partial_rotary_factor") if isinstance(parameters, dict) else None
    factor = config.keys.get("partial_rotary_factor") if factor is None else factor
    turns = config.keys.get("rotary_dim") if factor is None else None
    if isinstance(factor, (int, float)) and 0 < factor <= 1:
        turns = int(width * factor)
    if turns is None:
        return None
    if not isinstance(turns, int) or turns % 2 or not 0 < turns <= width:
        raise config.wrong("rotary_dim", f"even and at most head_dim ({width})", turns)
    return None if turns == width else turns


def head_bias(spec: ModelSpec, config: Config) -> ModelSpec:
    """The head has a bias when lm_head_bias says so."""
    return spec.but(head=spec.head.but(bias=config.flag("lm_head_bias")))


CHUNKED = "chunked_attention"
KINDS = {name: name for name in (attention.FULL, CHUNKED)}


def llama4_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts and a shared one in the layers that moe_layers names, or every interleave_moe_layer_step-th; dense ones
    of intermediate_size_mlp elsewhere."""
    routing = Routing(program="scatter", scores="logits", behind=True)
    routed = experts_of(config, LOCAL[:1], "intermediate_size", routing, "router")
    layers = config.integer("num_hidden_layers")
    made = sparse(family, config, routed, shared=shared_experts(config, routed.intermediate))
    step = config.integer("interleave_moe_layer_step")
    named = set(range(step - 1, layers, step))
    if config.value("moe_layers") is not None:
        named = set(layer_numbers(config, "moe_layers"))
    dense = gated(family, config, config.integer("intermediate_size_mlp"))
    return [made if i in named else dense for i in range(layers)]


def llama4_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Layers that turn q and k (and norm them, without weights) attend within chunks; others to all, queries scaled."""
    layers = config.integer("num_hidden_layers")
    turning, kinds = rope_layers(config, layers, empty=True), attention.layer_types(config, KINDS)
    kinds = kinds or [CHUNKED if turns else attention.FULL for turns in turning]
    chunk = config.optional_integer("attention_chunk_size")
    made: dict[tuple[bool, int | None], AnyMixer] = {}
    for turns, kind in zip(turning, kinds, strict=True):
        window = chunk if kind == CHUNKED else None
        if kind == CHUNKED and chunk is None:
            raise config.wrong("attention_chunk_size", "set, since some layers attend within chunks", None)
        if (turns, window) not in made:
            plain = softmax_attention(family, config, window)
            made[turns, window] = plain.model_copy(update=style(config, turns))
    return [made[turns, chunk if kind == CHUNKED else None] for turns, kind in zip(turning, kinds, strict=True)]


def style(config: Config, turns: bool) -> dict[str, object]:
    """What its attention does between projections and scores."""
    if turns:
        return {"style": "llama4", "rotary": "half", "unweighted_norms": config.flag("use_qk_norm")}
    return {"style": "llama4", "rotary": "none", "scaled_queries": config.flag("attn_temperature_tuning")}


def llama4_masks(spec: ModelSpec, config: Config) -> ModelSpec:
    """A mask of chunks and one without are made, whatever the layers take."""
    chunk = config.optional_integer("attention_chunk_size")
    return spec.but(more_masks=frozenset({None, chunk}))


ROWS = (
    Family(model_type="mixtral", feed_forward=mixtral_layers, windows=attention.one_window, not_counted=JITTERED,
        balances=True),
    Family(model_type="qwen3_moe", feed_forward=qwen3_moe_layers, windows=attention.switched_window, qk_norm=True,
        balances=True),
    Family(model_type="olmoe", feed_forward=olmoe_layers, mixer=olmoe_attention, balances=True, classifies=False),
    Family(model_type="flex_olmo", feed_forward=olmoe_layers, norms=POST_NORMS, form="post", norm_kind="rms-wide",
        mixer=olmo2_attention, balances=True, classifies=False),
    Family(model_type="granitemoe", feed_forward=granite_layers, form="pre-scaled", scaled_embedding=True,
        scaled_logits=True, balances=True, classifies=False),
    Family(model_type="phimoe", feed_forward=phimoe_layers, windows=attention.one_window, norm_kind="layer",
        norm_bias=True, balances=True, finish=head_bias),
    Family(model_type="minimax_m2", feed_forward=minimax_layers, mixer=minimax_attention, not_counted=JITTERED,
        balances=True, harmless=("use_qk_norm",), classifies=False, finish=with_checkpoint_notes),
    Family(model_type="gpt_oss", feed_forward=gpt_oss_layers, norm_kind="rms-wide", mixer=sink_attention, balances=True,
        windows=lambda config: alternating_first(config, config.optional_integer("sliding_window")),
        finish=lambda spec, config: with_checkpoint_notes(both_masks(spec, config), config)),
)  # fmt: skip
