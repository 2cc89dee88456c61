"""Language models that stand only inside a vision-language model: those of Qwen2-VL to Qwen3-VL, and Mllama's, whose
layers partly attend to the image."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from memplan.arch import attention, decoder, dense, moe, post_norm, routed, shared_moe
from memplan.arch.config import Config
from memplan.arch.decoder import Family, build, softmax_attention
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Norm, Part
from memplan.spec.vision import ImageCross

CROSS_LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)
EXTRA_ROWS = 8
"""Rows of Mllama's embedding beyond the vocabulary."""


def without(names: tuple[str, ...], parse: Callable[[Config], ModelSpec], raw: Config) -> ModelSpec:
    """The spec of a config whose class never reads these keys."""
    keys = {key: value for key, value in raw.keys.items() if key not in names}
    return parse(Config(keys, raw.name, raw.source))


def row_like(rows: tuple[Family, ...], like: str, model_type: str) -> Family:
    """The row of a decoder whose class differs in its defaults alone."""
    row = next(row for row in rows if row.model_type == like)
    return row._replace(model_type=model_type, classifies=False)


def mllama_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Self-attention, but in the layers that cross_attention_layers names."""
    own, cross = softmax_attention(family, config, None), cross_attention(config)
    cross_at = cross_layers(config)
    return [cross if i in cross_at else own for i in range(config.integer("num_hidden_layers"))]


def cross_layers(config: Config) -> frozenset[int]:
    """``cross_attention_layers``; null is the default."""
    if config.keys.get("cross_attention_layers") is None:
        return frozenset(CROSS_LAYERS)
    return routed.layer_numbers(config, "cross_attention_layers")


def cross_attention(config: Config) -> ImageCross:
    """Queries from the text, keys and values from the projected image."""
    h, heads, width = config.integer("hidden_size"), config.integer("num_attention_heads"), attention.head_dim(config)
    kv_heads = attention.num_kv_heads(config, nullable=False)
    return ImageCross(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        linears=attention.projections(h, heads * width, kv_heads * width, False, (False, False)),
        norms=(Norm(name="q_norm", width=width), Norm(name="k_norm", width=width)),
    )


def finish_mllama(spec: ModelSpec, config: Config) -> ModelSpec:
    """Gates of the cross-attention layers, and the embedding's extra rows."""
    gates = Part(tensors=tuple(Bare(name=f"cross_attn_{name}_gate", shape=(1,)) for name in ("attn", "mlp")))
    rows = Bare(name="embed_tokens, extra rows", shape=(EXTRA_ROWS, spec.hidden_size))
    gated: dict[str, Any] = {"form": "gated", "extra": (gates,)}
    crossed = [run.layer.but(**(gated if isinstance(run.layer.mixer, ImageCross) else {})) for run in spec.runs]
    runs = tuple(run.but(layer=layer) for run, layer in zip(spec.runs, crossed, strict=True))
    return spec.but(runs=runs, extra=(Part(tensors=(rows,), category="embed"),))


glm_attention = decoder.turned(rotary="concatenated", rotary_dim=decoder.rotary_dim)
"""Tables whose entries are doubled once, for all layers, where GLM-4's are in each."""
ROWS = (
    row_like(post_norm.ROWS, "glm4", "glm4v_text")._replace(bias_keys=None, qkv_bias="always", null_kv_heads=True,
        mixer=glm_attention),
    row_like(shared_moe.ROWS, "glm4_moe", "glm4v_moe_text")._replace(mixer=glm_attention),
    row_like(dense.ROWS, "qwen2", "qwen2_vl_text"),
    row_like(dense.ROWS, "qwen2", "qwen2_5_vl_text"),
    row_like(moe.ROWS, "qwen3_moe", "qwen3_vl_moe_text"),
    Family(model_type="qwen3_vl_text", null_kv_heads=True, qk_norm=True, classifies=False),
    Family(model_type="mllama_text_model", mixers=mllama_mixers, probabilities_key="dropout",
        harmless=("cross_attention_layers",), finish=finish_mllama, classifies=False),
)  # fmt: skip
UNREAD: Mapping[str, tuple[str, ...]] = {
    "glm4v_text": ("head_dim",),
    "qwen2_vl_text": ("head_dim",),
    "qwen2_5_vl_text": ("head_dim",),
    "qwen3_vl_text": ("layer_types",),
    "qwen3_vl_moe_text": ("norm_topk_prob", "sliding_window", "use_sliding_window", "layer_types"),
    "mllama_text_model": ("head_dim", "layer_types"),
}
"""Keys that a class of the same kind reads, and this one does not."""


TEXTS = {row.model_type: partial(without, UNREAD.get(row.model_type, ()), partial(build, row)) for row in ROWS}
"""Language models by their model_type; no config.json names them at its top."""
