"""Command A with experts (cohere2_moe) as transformers 5.23 builds it: parallel branches, dense layers first."""

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import Family, activation, gated, softmax_attention
from memplan.arch.routed import expert_count, experts_per_token, first_dense, make_experts, shared_experts
from memplan.spec.layer import AnyMixer
from memplan.spec.parts import FeedForward
from memplan.spec.routing import Routing


def cohere_layers(family: Family, config: Config) -> list[FeedForward]:
    """The best of the logits, their softmax or sigmoids; shared experts added or averaged in; dense layers first."""
    count = expert_count(config, "num_experts")
    active, f = experts_per_token(config, count), config.integer("intermediate_size")
    how = config.choice("expert_selection_fn", {"softmax": "softmax"})
    strategy = config.choice("shared_expert_combination_strategy", {"average": "average", "sum": "sum"})
    wide = f * config.integer("num_shared_experts", smallest=0)
    sparse = FeedForward(
        intermediate=f,
        activation=activation(family, config),
        experts=make_experts(config, count, active, f, Routing(scores="logits", narrowed=how == "softmax")),
        shared=shared_experts(config, wide) if wide else (),
        shared_average=strategy == "average",
    )
    prefix = config.optional_integer("prefix_dense_intermediate_size")
    return first_dense(config, gated(family, config, f if prefix is None else prefix), sparse)


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
    windows, sparse = cohere_windows(config), cohere_layers(family, config)
    dense_turns = config.integer("prefix_dense_sliding_window_pattern") == 1
    made: dict[tuple[int | None, bool], AnyMixer] = {}
    mixers = []
    for window, feed_forward in zip(windows, sparse, strict=True):
        turns = window is not None or (feed_forward.experts is None and dense_turns)
        if (window, turns) not in made:
            fields = {"rotary_wide": True} if turns else {"rotary": "none"}
            made[window, turns] = softmax_attention(family, config, window).model_copy(update=fields)
        mixers.append(made[window, turns])
    return mixers
