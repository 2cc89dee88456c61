"""What projectors are read with: keys of the outer config, the layers that are read, and the tower put together; and
Idefics 2's perceiver, any patches to a few latents (transformers 5.23 ``modeling_idefics2.py``)."""

from collections.abc import Sequence
from typing import Any

from memplan.arch import towers
from memplan.arch.attention import gated_linears
from memplan.arch.config import Config
from memplan.arch.reading import pairs
from memplan.arch.towers import ACTIVATIONS, Encoder
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Linear, Norm, Part
from memplan.spec.vision import ImageRule, Resampler, Tower

Made = tuple[Tower, dict[str, Any]]
"""A tower, and what else changes in the model."""


def assemble(
    encoder: Encoder, projector: Part, rule: ImageRule, used: int | None = None, units: Sequence[str] = (), **more: Any
) -> Tower:
    """The tower whole."""
    layers = sum(run.count for run in encoder.runs)
    return Tower(
        kind=encoder.kind,
        width=encoder.width,
        embedding=encoder.embedding,
        runs=encoder.runs,
        after=encoder.after,
        unused=encoder.unused,
        projector=projector.but(category="projector"),
        rule=rule,
        used_blocks=layers if used is None else used,
        units=encoder.units | frozenset(units),
        **more,
    )


def integer(config: Config, key: str, default: int) -> int:
    """An integer of the outer config."""
    return Config({key: config.keys.get(key, default)}, config.name, config.source).integer(key)


def flag(config: Config, key: str, default: bool) -> bool:
    """A flag of the outer config."""
    return Config({key: config.keys.get(key, default)}, config.name, config.source).flag(key)


def feature_layers(config: Config, default: int) -> tuple[int, ...]:
    """``vision_feature_layer``: the hidden states that are read, counted from the embedding (0) or from the end."""
    value = config.keys.get("vision_feature_layer", default)
    layers = value if isinstance(value, (list, tuple)) else [value]
    for layer in layers:
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise config.wrong("vision_feature_layer", "a number of a layer, or a list of them", value)
    return tuple(layers)


def deepest(config: Config, layers: tuple[int, ...], blocks: int) -> int:
    """Blocks up to the deepest that is read."""
    states = [layer if layer >= 0 else blocks + 1 + layer for layer in layers]
    if not states or not all(0 <= state <= blocks for state in states):
        raise config.wrong(
            "vision_feature_layer", f"among the {blocks} layers of the tower", layers[0] if layers else None
        )
    return max(states)


def two_linears(config: Config, inputs: int, width: int, default_bias: bool = True) -> tuple[Linear, ...]:
    """linear_1 and linear_2 of the LLaVA kind."""
    bias = flag(config, "multimodal_projector_bias", default_bias)
    config_act = Config({"projector_hidden_act": config.keys.get("projector_hidden_act", "gelu")}, config.name)
    config_act.choice("projector_hidden_act", ACTIVATIONS)
    return (
        Linear(name="linear_1", inputs=inputs, outputs=width, bias=bias),
        Linear(name="linear_2", inputs=width, outputs=width, bias=bias),
    )


def square(encoder: Encoder, tokens: int, kind: str = "fixed", **more: Any) -> ImageRule:
    """The rule of a tower that sees squares of one size."""
    return ImageRule(
        kind=kind,
        patch=encoder.patch,
        side=encoder.side,
        tokens=tokens,
        extra_patches=encoder.class_tokens,
        channels=encoder.channels,
        **more,
    )


def pinpoints(config: Config, default: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """``image_grid_pinpoints``: resolutions (height, width)."""
    given = config.keys.get("image_grid_pinpoints")
    return default if given is None else pairs(config, "image_grid_pinpoints", given, "[height, width]")


NORMS = ("input_latents_norm", "input_context_norm", "post_attention_layernorm")


def idefics2(config: Config, vision: Config, text: ModelSpec) -> Made:
    """A gated projection, then a perceiver that reads any number of patches into 64 latents.

    Sides of an image: those of ``Idefics2ImageProcessor``; do_image_splitting as preprocessor_config.json of
    HuggingFaceM4/idefics2-8b has it."""
    encoder = towers.vit(vision, "idefics2_vision", "idefics")
    given = config.keys.get("perceiver_config")
    keys = Config(given if isinstance(given, dict) else {}, config.name, config.source)
    keys = keys.with_defaults("idefics2_perceiver")
    keys.require_off("attention_dropout", "the masks that dropout keeps are not counted")
    head, h, before = keys.integer("resampler_head_dim"), text.hidden_size, text.runs[0].layer.feed_forward
    resampler = Resampler(
        latents=keys.integer("resampler_n_latents"),
        depth=keys.integer("resampler_depth"),
        num_heads=keys.integer("resampler_n_heads"),
        num_kv_heads=keys.integer("num_key_value_heads"),
        head_dim=head,
        activation=keys.choice("hidden_act", ACTIVATIONS),
        activation_before=before.activation if before else "silu",
    )
    query, key_value = resampler.num_heads * head, resampler.num_kv_heads * head
    layer = (
        Linear(name="q_proj", inputs=h, outputs=query),
        Linear(name="k_proj", inputs=h, outputs=key_value),
        Linear(name="v_proj", inputs=h, outputs=key_value),
        Linear(name="o_proj", inputs=query, outputs=h),
        *gated_linears(h, 4 * h, h),
    )
    projector = Part(
        linears=(*gated_linears(encoder.width, text.intermediate_size, h), *layer * resampler.depth),
        tensors=(Bare(name="latents", shape=(resampler.latents, h)),),
        norms=(*(Norm(name=name, width=h) for name in NORMS * resampler.depth), Norm(name="norm", width=h)),
    )
    rule = ImageRule(
        kind="quarters",
        patch=encoder.patch,
        tokens=resampler.latents,
        channels=encoder.channels,
        shortest=378,
        longest=980,
    )
    return assemble(encoder, projector, rule, units=("projector",), projection="perceived", resampler=resampler), {}
