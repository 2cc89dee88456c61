"""Softmax attention from a config: heads, projections, and the window of each layer."""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice

from memplan.arch.config import Config
from memplan.arch.reading import kinds_of_layers, width_of_head
from memplan.spec.parts import Linear

Windows = list[int | None]

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = {FULL: FULL, "attention": FULL, SLIDING: SLIDING}
"""``attention`` is the older name of ``full_attention`` (transformers 5.23, ``_LEGACY_LAYER_TYPE_REMAP``)."""


def head_dim(config: Config, nullable: bool = False) -> int:
    """Width of a head: its own key, or else hidden_size / num_attention_heads.

    Classes without the key still obey it when a config brings it; there, null means as much as absence. ``nullable``:
    the class has a default, but takes null for hidden_size / num_attention_heads."""
    default = config.defaults.get("head_dim")
    given = config.keys.get("head_dim", default)
    own = given is not None or (default is not None and not nullable)
    width = config.integer("head_dim") if own else width_of_head(config)
    if width % 2:
        raise config.wrong("head_dim", "even, since rotary embeddings turn pairs", width)
    return width


def num_kv_heads(config: Config, nullable: bool) -> int:
    """Key and value heads: null, where the class allows it, means one for each query head."""
    heads = config.integer("num_attention_heads")
    count = config.optional_integer("num_key_value_heads") if nullable else config.integer("num_key_value_heads")
    if count is None:
        return heads
    if heads % count:
        raise config.wrong("num_attention_heads", f"a multiple of num_key_value_heads ({count})", heads)
    return count


def projections(hidden: int, query: int, key_value: int, fused: bool, biases: tuple[bool, bool]) -> tuple[Linear, ...]:
    """The linear modules of attention; ``biases`` says whether q, k, v and whether o have one."""
    of_qkv, of_o = biases
    out = Linear(name="o_proj", inputs=query, outputs=hidden, bias=of_o)
    if fused:
        return Linear(name="qkv_proj", inputs=hidden, outputs=query + 2 * key_value, bias=of_qkv), out
    return (
        Linear(name="q_proj", inputs=hidden, outputs=query, bias=of_qkv),
        Linear(name="k_proj", inputs=hidden, outputs=key_value, bias=of_qkv),
        Linear(name="v_proj", inputs=hidden, outputs=key_value, bias=of_qkv),
        out,
    )


def gated_linears(inputs: int, inner: int, outputs: int, bias: bool = False) -> tuple[Linear, ...]:
    """gate_proj, up_proj, down_proj."""
    into = (Linear(name=name, inputs=inputs, outputs=inner, bias=bias) for name in ("gate_proj", "up_proj"))
    return (*into, Linear(name="down_proj", inputs=inner, outputs=outputs, bias=bias))


def no_windows(config: Config) -> Windows:
    """Every layer attends to all (Llama, Gemma)."""
    return same_window(config, None)


def one_window(config: Config) -> Windows:
    """Every layer has the window that sliding_window names, if any (Mistral, Mixtral, Phi-3)."""
    return same_window(config, config.optional_integer("sliding_window"))


def switched_window(config: Config) -> Windows:
    """As ``one_window``, while use_sliding_window is true (Qwen3-MoE, which knows no max_window_layers)."""
    return same_window(config, switched_size(config))


def late_windows(config: Config) -> Windows:
    """Layers from max_window_layers on have the window, while use_sliding_window is true (Qwen2, Qwen3)."""
    layers, size = config.integer("num_hidden_layers"), switched_size(config)
    full = layers if size is None else min(layers, config.integer("max_window_layers", smallest=0))
    return layered(config, [FULL] * full + [SLIDING] * (layers - full), size)


def alternating_windows(config: Config) -> Windows:
    """Every second layer attends to all, unless layer_types says otherwise (Gemma 2)."""
    return patterned(config, 2)


def patterned_windows(config: Config) -> Windows:
    """Every sixth layer attends to all, unless sliding_window_pattern or layer_types says otherwise (Gemma 3)."""
    return patterned(config, config.integer("sliding_window_pattern"))


def patterned(config: Config, period: int) -> Windows:
    """All but the last of each ``period`` layers slide."""
    layers = config.integer("num_hidden_layers")
    kinds = [SLIDING] * min(period - 1, layers) + [FULL]
    return layered(config, list(islice(cycle(kinds), layers)), config.optional_integer("sliding_window"))


def switched_size(config: Config) -> int | None:
    """sliding_window, which means nothing while use_sliding_window is false."""
    return config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None


def same_window(config: Config, size: int | None) -> Windows:
    """One window for all; a class that reads no layer_types has no way to mix them."""
    layers = config.integer("num_hidden_layers")
    built = FULL if size is None else SLIDING
    for kind in layer_types(config) or []:
        if kind != built:
            raise config.wrong("layer_types", f"{built} in every layer, as its class builds them", kind)
    return [size] * layers


def layered(config: Config, default: Sequence[str], size: int | None) -> Windows:
    """The window of each layer by its kind: from layer_types, or else ``default``."""
    kinds = layer_types(config) or default
    if size is None and SLIDING in kinds:
        raise config.wrong("sliding_window", "set (and switched on), since layer_types has sliding layers", None)
    return [size if kind == SLIDING else None for kind in kinds]


def layer_types(config: Config, names: Mapping[str, str] = LAYER_TYPES) -> list[str] | None:
    """The kind of each layer as the config lists them; None when it does not. ``names``: what each is called here,
    where they are others than full and sliding attention."""
    given = config.keys.get("layer_types")
    return None if given is None else kinds_of_layers(config, "layer_types", given, names)


def table_rows(config: Config) -> int | None:
    """Positions of the longest table of cos and sin that vLLM and SGLang make (vllm layers/rotary_embedding/): those of
    the config, times the factor of linear and dynamic scaling; YaRN's start from the original ones, and LongRoPE has a
    table of these beside. None without positions."""
    if "max_position_embeddings" not in config.defaults:
        return None
    found = [config.integer("max_position_embeddings")]
    for key in ("rope_parameters", "rope_scaling"):
        section = config.keys.get(key)
        kinds = [section, *section.values()] if isinstance(section, Mapping) else []
        found += [_scaled(kind, found[0]) for kind in kinds if isinstance(kind, Mapping)]
    return max(found[1:], default=found[0])


def _scaled(section: Mapping[str, object], positions: int) -> int:
    kind = section.get("rope_type", section.get("type"))
    factor, original = (section.get(key) for key in ("factor", "original_max_position_embeddings"))
    if kind in ("linear", "dynamic") and isinstance(factor, (int, float)):
        return int(positions * factor)
    if not isinstance(original, int):
        return positions
    if kind in ("yarn", "deepseek_yarn") and isinstance(factor, (int, float)):
        return int(original * factor)
    return positions + original if kind in ("longrope", "su") else positions
