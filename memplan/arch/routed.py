"""Mixtures of experts from a config: how many, how wide, how they are chosen, what stands beside them, in which layers.

Rows in ``moe.py``, ``shared_moe.py`` and ``latent.py`` put these together as their classes do."""

from memplan.arch.attention import FULL, SLIDING, Windows, gated_linears, layered
from memplan.arch.config import Config
from memplan.arch.reading import kinds_of_layers, numbers
from memplan.spec.parts import Bare, Experts, FeedForward, Linear
from memplan.spec.routing import Routing

ROUTER_LOSS = "its class has no load-balancing loss, and the logits that it would hand out are not counted"
JITTER = "the noise is one more tensor a layer"


def expert_count(config: Config, *names: str) -> int:
    """The number of experts, under any of the names that the class accepts; two names must agree."""
    given = {name: config.integer(name) for name in names if name in config.keys}
    for name, count in given.items():
        first = next(iter(given))
        if count != given[first]:
            raise config.wrong(name, f"equal to {first} ({given[first]})", count)
    return next(iter(given.values())) if given else config.integer(names[0])


def experts_per_token(config: Config, count: int, key: str = "num_experts_per_tok") -> int:
    """How many experts a token visits."""
    active = config.integer(key)
    if active > count:
        raise config.wrong(key, f"at most the number of experts ({count})", active)
    return active


def make_experts(
    config: Config, count: int, active: int, f: int, routing: Routing, router: str = "gate", biased: bool = False
) -> Experts:
    """``count`` experts of width f in two stacked parameters, gate_up_proj [E, 2 f, h] and down_proj [E, h, f]."""
    h = config.integer("hidden_size")
    into, out = (
        Bare(name="experts.gate_up_proj", shape=(count, 2 * f, h)),
        Bare(name="experts.down_proj", shape=(count, h, f)),
    )
    stacked: tuple[Bare, ...] = (into, out)
    if biased:
        into_bias = Bare(name="experts.gate_up_proj_bias", shape=(count, 2 * f))
        stacked = into, into_bias, out, Bare(name="experts.down_proj_bias", shape=(count, h))
    linear = Linear(name=router, inputs=h, outputs=count, bias=biased)
    return Experts(count=count, active=active, intermediate=f, stacked=stacked, router=linear, routing=routing)


def experts_of(
    config: Config, names: tuple[str, ...], width: str, routing: Routing, router: str = "gate", biased: bool = False
) -> Experts:
    """The experts of a config: their number under any of ``names``, their width under the key ``width``."""
    count = expert_count(config, *names)
    active, f = experts_per_token(config, count), config.integer(width)
    return make_experts(config, count, active, f, routing, router, biased)


def is_true(config: Config, key: str) -> bool:
    """A flag whose null means false."""
    return config.value(key) is not None and config.flag(key)


def in_groups(config: Config, count: int, in_each: int) -> dict[str, int]:
    """n_group groups of experts, of which topk_group are searched; each must hold ``in_each`` experts."""
    groups, kept = config.integer("n_group"), config.integer("topk_group")
    if count % groups or count // groups < in_each:
        raise config.wrong("n_group", f"a divisor of the number of experts ({count}) with {in_each} in each", groups)
    if kept > groups:
        raise config.wrong("topk_group", f"at most n_group ({groups})", kept)
    if kept * (count // groups) < config.integer("num_experts_per_tok"):
        raise config.wrong("topk_group", "enough groups for num_experts_per_tok", kept)
    return {"groups": groups, "kept_groups": kept}


def sigmoid_routing(config: Config, count: int) -> Routing:
    """DeepSeek-V3's: sigmoids of fp32 logits, a correction for the choice, groups, weights over their sum, a factor."""
    return Routing(
        behind=True,
        product="fp32",
        scores="sigmoid",
        corrected=True,
        **in_groups(config, count, 2),
        normalize="epsilon" if is_true(config, "norm_topk_prob") else "no",
        scaled=True,
    )


def softmax_routing(config: Config) -> Routing:
    """Qwen's: softmax in fp32, weights over their sum when norm_topk_prob says so, in the model's dtype."""
    return Routing(normalize="in-place" if is_true(config, "norm_topk_prob") else "no", narrowed=True)


def shared_experts(config: Config, f: int, gate: str = "", bias: bool = False) -> tuple[Linear, ...]:
    """gate_proj, up_proj and down_proj of the experts that every token visits, and their gate when it has a name."""
    h = config.integer("hidden_size")
    if not f:
        return ()
    linears = gated_linears(h, f, h, bias)
    return (*linears, Linear(name=gate, inputs=h, outputs=1)) if gate else linears


def first_dense(config: Config, dense: FeedForward, sparse: FeedForward) -> list[FeedForward]:
    """first_k_dense_replace dense layers (one, where it is not read), then experts; or mlp_layer_types' list."""
    layers = config.integer("num_hidden_layers")
    listed = config.value("mlp_layer_types") if "mlp_layer_types" in config.defaults else None
    if listed is not None:
        kinds = kinds_of_layers(config, "mlp_layer_types", listed, {"dense": "dense", "sparse": "sparse"})
        return [sparse if kind == "sparse" else dense for kind in kinds]
    read = "first_k_dense_replace" in config.defaults
    count = min(config.integer("first_k_dense_replace", smallest=0) if read else 1, layers)
    every = config.keys.get("moe_layer_freq")
    if every is not None and every != 1:
        raise config.wrong("moe_layer_freq", "1, since transformers has experts in every layer after the dense", every)
    return [dense] * count + [sparse] * (layers - count)


def every_step(config: Config, dense: FeedForward, sparse: FeedForward) -> list[FeedForward]:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name; a dense one elsewhere."""
    layers, step = config.integer("num_hidden_layers"), config.integer("decoder_sparse_step")
    named = layer_numbers(config, "mlp_only_layers")
    return [dense if i in named or (i + 1) % step else sparse for i in range(layers)]


def layer_numbers(config: Config, key: str) -> frozenset[int]:
    """A list of layer numbers; null is none."""
    given = config.value(key)
    return frozenset(() if given is None else numbers(config, key, given))


def alternating_first(config: Config, size: int | None) -> Windows:
    """Every first of two layers slides, every second attends to all, unless layer_types says otherwise."""
    layers = config.integer("num_hidden_layers")
    return layered(config, [FULL if i % 2 else SLIDING for i in range(layers)], size)
