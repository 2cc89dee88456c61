"""Decoders whose feed-forward is a mixture of routed experts: Mixtral and Qwen3-MoE as transformers 5.23 builds them.

Experts are two stacked parameters a layer, gate_up_proj [E, 2 f, h] and down_proj [E, h, f]; the router is one matrix
[E, h]. No bias anywhere.
"""

from functools import partial
from typing import Literal

from memplan.arch import attention
from memplan.arch.config import Config, Scalar
from memplan.arch.decoder import DROPOUT, Family, activation, build, gated
from memplan.spec.parts import Bare, Experts, FeedForward, Linear, Routing

ROUTER_LOSS = "the tensors of the load-balancing loss are not counted"


def num_experts(config: Config, key: str, alias: str) -> int:
    """The number of experts, which both classes accept under two names."""
    if alias not in config.keys:
        return config.integer(key)
    count = config.integer(alias)
    if key in config.keys and config.integer(key) != count:
        raise config.wrong(alias, f"equal to {key} ({config.integer(key)})", count)
    return count


def experts(config: Config, count: int, f: int) -> Experts:
    """``count`` experts of width f, of which a token visits num_experts_per_tok."""
    h, active = config.integer("hidden_size"), config.integer("num_experts_per_tok")
    if active > count:
        raise config.wrong("num_experts_per_tok", f"at most the number of experts ({count})", active)
    router = Linear(name="gate", inputs=h, outputs=count)
    stacked = (
        Bare(name="experts.gate_up_proj", shape=(count, 2 * f, h)),
        Bare(name="experts.down_proj", shape=(count, h, f)),
    )
    routing = Routing(widened=True, normalize="in-place")
    return Experts(count=count, active=active, intermediate=f, stacked=stacked, router=router, routing=routing)


def mixtral_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts of intermediate_size in every layer; Mixtral always divides by the sum of the chosen weights."""
    count = num_experts(config, "num_local_experts", "num_experts")
    routed = experts(config, count, config.integer("intermediate_size"))
    layer = FeedForward(intermediate=routed.intermediate, activation=activation(family, config), experts=routed)
    return [layer] * config.integer("num_hidden_layers")


def qwen3_moe_layers(family: Family, config: Config) -> list[FeedForward]:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name; a dense one elsewhere."""
    layers, step = config.integer("num_hidden_layers"), config.integer("decoder_sparse_step")
    dense_layers = layer_numbers(config, "mlp_only_layers")
    count = num_experts(config, "num_experts", "num_local_experts")
    routed = experts(config, count, config.integer("moe_intermediate_size"))
    normalize: Literal["no", "in-place"] = "in-place" if config.flag("norm_topk_prob") else "no"
    routed = routed.model_copy(update={"routing": Routing(normalize=normalize, narrowed=True)})
    sparse = FeedForward(intermediate=routed.intermediate, activation=activation(family, config), experts=routed)
    dense = gated(family, config, config.integer("intermediate_size"))
    return [dense if i in dense_layers or (i + 1) % step else sparse for i in range(layers)]


def layer_numbers(config: Config, key: str) -> frozenset[int]:
    """A list of layer numbers; null is none."""
    numbers = config.value(key)
    if numbers is None:
        return frozenset()
    if not isinstance(numbers, (list, tuple)):
        raise config.wrong(key, "a list of layer numbers", numbers)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise config.wrong(key, "a list of layer numbers", number)
    return frozenset(numbers)


MIXTRAL: dict[str, Scalar] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts": None,
    "num_experts_per_tok": 2,
    "attention_dropout": 0.0,
    "router_jitter_noise": 0.0,
    "output_router_logits": False,
}

QWEN3_MOE: dict[str, Scalar] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_local_experts": None,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "attention_dropout": 0.0,
    "output_router_logits": False,
}

ROWS = (
    Family(
        model_type="mixtral",
        defaults=MIXTRAL,
        feed_forward=mixtral_layers,
        windows=attention.one_window,
        not_counted=(
            ("attention_dropout", DROPOUT),
            ("router_jitter_noise", "the noise is one more tensor a layer"),
            ("output_router_logits", ROUTER_LOSS),
        ),
    ),
    Family(
        model_type="qwen3_moe",
        defaults=QWEN3_MOE,
        feed_forward=qwen3_moe_layers,
        windows=attention.switched_window,
        qkv_bias="by attention_bias",
        qk_norm=True,
        not_counted=(("attention_dropout", DROPOUT), ("output_router_logits", ROUTER_LOSS)),
    ),
)

FAMILIES = {row.model_type: partial(build, row) for row in ROWS}
