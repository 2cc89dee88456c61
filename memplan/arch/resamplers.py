"""Projectors that read any number of patches into a few latents: Idefics 2's perceiver, as transformers 5.23 builds it
(``modeling_idefics2.py``: Idefics2Connector)."""

from memplan.arch import towers
from memplan.arch.config import Config
from memplan.arch.projector_keys import Made, assemble
from memplan.arch.towers import ACTIVATIONS
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Linear, Norm, Part
from memplan.spec.vision import ImageRule, Resampler

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


def gated_linears(inputs: int, inner: int, outputs: int) -> tuple[Linear, ...]:
    """gate_proj, up_proj, down_proj."""
    return (
        Linear(name="gate_proj", inputs=inputs, outputs=inner),
        Linear(name="up_proj", inputs=inputs, outputs=inner),
        Linear(name="down_proj", inputs=inner, outputs=outputs),
    )
