"""Vision towers of their own kinds, InternViT and Pixtral (transformers 5.23); the choice of a tower by model_type."""

from memplan.arch.attention import gated_linears
from memplan.arch.config import Config, shown
from memplan.arch.towers import (
    ACTIVATIONS,
    Encoder,
    attends,
    conv,
    geometry,
    layer_norm,
    pair,
    plain_mlp,
    vision_config,
    vit,
)
from memplan.errors import UnknownArchitecture
from memplan.spec.parts import Bare, FeedForward, Norm, Part
from memplan.spec.vision import Block, BlockRun


def internvit(raw: Config) -> Encoder:
    """InternViT: a class token, scaled branches, norms of q and k over the whole width when it has them."""
    config = vision_config(raw, "internvl_vision")
    h = config.integer("hidden_size")
    (height, width), (down, across) = pair(config, "image_size"), pair(config, "patch_size")
    if down != across:
        raise config.wrong("patch_size", "a square", config.value("patch_size"))
    rows, columns, channels = height // down, width // across, config.integer("num_channels")
    rms = config.choice("norm_type", {"layer_norm": "layer", "rms_norm": "rms"}) == "rms"
    qk = [Norm(name=name, width=h) for name in ("q_norm", "k_norm")] if config.flag("use_qk_norm") else []
    block = Block(
        attention=attends(config, h, "projection_layer", config.flag("attention_bias"), norms=tuple(qk)),
        feed_forward=plain_mlp(h, config.integer("intermediate_size"), config.choice("hidden_act", ACTIVATIONS)),
        norms=(
            Norm(name="layernorm_before", width=h) if rms else layer_norm("layernorm_before", h),
            Norm(name="layernorm_after", width=h) if rms else layer_norm("layernorm_after", h),
        ),
        scales=(Bare(name="lambda_1", shape=(h,)), Bare(name="lambda_2", shape=(h,))),
    )
    tokens = [Bare(name="cls_token", shape=(1, 1, h))]
    if config.flag("use_mask_token"):
        tokens.append(Bare(name="mask_token", shape=(1, 1, h)))
    if config.flag("use_absolute_position_embeddings"):
        tokens.append(Bare(name="position_embeddings", shape=(1, rows * columns + 1, h)))
    kernel = (conv("projection", h, channels, down, across), Bare(name="projection.bias", shape=(h,)))
    last = () if config.flag("use_mean_pooling") else (layer_norm("layernorm", h),)
    return Encoder(
        kind="internvit",
        width=h,
        embedding=Part(tensors=(*tokens, *kernel)),
        runs=(BlockRun(count=config.integer("num_hidden_layers"), block=block),),
        after=Part(norms=last),
        patch=down,
        rows=rows,
        columns=columns,
        channels=channels,
        class_tokens=1,
    )


def pixtral(raw: Config) -> Encoder:
    """Pixtral: RMS norms, gated feed-forwards, rotary positions of rows and columns, no bias anywhere."""
    config = vision_config(raw, "pixtral")
    h, inner = config.integers("hidden_size", "intermediate_size")
    side, patch, channels = geometry(config)
    block = Block(
        attention=attends(config, h, "o_proj", False, False, rotary="narrow", packed=True, blocked=True),
        feed_forward=FeedForward(
            intermediate=inner,
            activation=config.choice("hidden_act", ACTIVATIONS),
            linears=gated_linears(h, inner, h),
        ),
        norms=(Norm(name="attention_norm", width=h), Norm(name="ffn_norm", width=h)),
    )
    return Encoder(
        kind="pixtral",
        width=h,
        embedding=Part(tensors=(conv("patch_conv", h, channels, patch, patch),), norms=(Norm(name="ln_pre", width=h),)),
        runs=(BlockRun(count=config.integer("num_hidden_layers"), block=block),),
        after=Part(),
        patch=patch,
        rows=side // patch,
        columns=side // patch,
        channels=channels,
    )


def auto_tower(raw: Config, default: str) -> Encoder:
    """The tower that ``AutoModel`` builds from a vision_config, by its model_type."""
    model_type = raw.keys.get("model_type", default)
    if model_type == "clip_vision_model":
        return vit(raw, "clip_vision_model", "clip", clip=True)
    if model_type == "siglip_vision_model":
        return vit(raw, "siglip_vision_model", "siglip")
    if model_type == "pixtral":
        return pixtral(raw)
    raise UnknownArchitecture(
        f"the vision tower of {raw.name} is a {shown(model_type)}, which memplan does not describe",
        "known towers: clip_vision_model, siglip_vision_model, pixtral",
    )
