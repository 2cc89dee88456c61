"""Vision towers of one encoder, CLIP, SigLIP, the Idefics', InternViT, Pixtral (transformers 5.23); the choice of one
by its model_type, and what all are read with.

Each function takes the keys of a ``vision_config`` and gives the tower without its projector, which ``vision.py`` adds
with the rule of the processor."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from memplan.arch.attention import gated_linears
from memplan.arch.config import Config, shown
from memplan.arch.reading import quotient
from memplan.errors import UnknownArchitecture
from memplan.spec.parts import Bare, FeedForward, Linear, Norm, Part
from memplan.spec.vision import Block, BlockRun, VisionAttention

ACTIVATIONS = {name: name for name in ("gelu", "gelu_pytorch_tanh", "quick_gelu", "silu", "relu")} | {
    "swish": "silu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
}

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")


class Encoder(NamedTuple):
    """A tower without what follows it: how it is embedded, its blocks, and the grid of patches it was made for."""

    kind: str
    width: int
    embedding: Part
    runs: tuple[BlockRun, ...]
    after: Part
    patch: int
    rows: int
    columns: int
    channels: int
    class_tokens: int = 0
    unused: Part = Part()
    units: frozenset[str] = frozenset({"blocks"})
    """As ``Tower.units``."""

    @property
    def side(self) -> int:
        """Pixels a side of a square image."""
        return self.rows * self.patch


def pair(config: Config, key: str) -> tuple[int, int]:
    """A side in pixels, or (height, width)."""
    value = config.value(key)
    if isinstance(value, (list, tuple)):
        sides = [Config({key: side}, config.name, config.source) for side in value]
        if len(sides) != 2:
            raise config.wrong(key, "one side or two", value)
        for side in sides:
            side.model_type = config.model_type
        return sides[0].integer(key), sides[1].integer(key)
    return config.integer(key), config.integer(key)


def one_side(config: Config, key: str) -> int:
    """A side in pixels; a list must be of a square."""
    height, width = pair(config, key)
    if height != width:
        raise config.wrong(key, "a square", config.value(key))
    return height


def conv(name: str, width: int, *kernel: int) -> Bare:
    """The kernel of the patch embedding, [width, channels, …]."""
    return Bare(name=name, shape=(width, *kernel))


def attention_linears(width: int, out: str, bias: bool, out_bias: bool) -> tuple[Linear, ...]:
    """q_proj, k_proj, v_proj and the output projection of width × width."""
    inner = tuple(Linear(name=name, inputs=width, outputs=width, bias=bias) for name in ("q_proj", "k_proj", "v_proj"))
    return (*inner, Linear(name=out, inputs=width, outputs=width, bias=out_bias))


def attends(
    config: Config, width: int, out: str, bias: bool = True, out_bias: bool = True, **fields: Any
) -> VisionAttention:
    """Attention of four linears, the output projection of this name, over the config's heads."""
    heads = config.integer("num_attention_heads")
    head_dim = quotient(config, "hidden_size", width, "num_attention_heads", heads)
    linears = attention_linears(width, out, bias, out_bias)
    return VisionAttention(num_heads=heads, head_dim=head_dim, linears=linears, **fields)


def geometry(config: Config) -> tuple[int, int, int]:
    """Sides of an image and of a patch, and the channels of a pixel."""
    return one_side(config, "image_size"), one_side(config, "patch_size"), config.integer("num_channels")


def plain_mlp(width: int, inner: int, activation: str, names: tuple[str, str] = ("fc1", "fc2")) -> FeedForward:
    """fc2(activation(fc1(x))), with biases."""
    first = Linear(name=names[0], inputs=width, outputs=inner, bias=True)
    second = Linear(name=names[1], inputs=inner, outputs=width, bias=True)
    return FeedForward(intermediate=inner, activation=activation, gated=False, linears=(first, second))


def layer_norm(name: str, width: int, bias: bool = True) -> Norm:
    """An ``nn.LayerNorm``."""
    return Norm(name=name, width=width, kind="layer", bias=bias)


def vision_config(raw: Config, model_type: str, names: Mapping[str, str] | None = None) -> Config:
    """The keys of the tower, with the defaults of its class."""
    config = raw.with_defaults(model_type, names)
    config.note_defaults(tuple(key for key in SIZES if key in config.defaults))
    for key in ("attention_dropout", "hidden_dropout_prob", "projection_dropout"):
        if key in config.defaults:
            config.require_off(key, "the masks that dropout keeps are not counted")
    return config


def vit(raw: Config, model_type: str, kind: str, clip: bool = False) -> Encoder:
    """CLIP (a class token, a norm before the blocks) and the SigLIP kind."""
    config = vision_config(raw, model_type)
    h, (side, patch, channels) = config.integer("hidden_size"), geometry(config)
    grid = side // patch
    if not grid:
        raise config.wrong("patch_size", f"at most image_size ({side})", patch)
    kernel = conv("patch_embedding", h, channels, patch, patch)
    positions = Bare(name="position_embedding", shape=(grid * grid + clip, h))
    extras = (Bare(name="class_embedding", shape=(h,)),) if clip else (Bare(name="patch_embedding.bias", shape=(h,)),)
    block = Block(
        attention=attends(config, h, "out_proj"),
        feed_forward=plain_mlp(h, config.integer("intermediate_size"), config.choice("hidden_act", ACTIVATIONS)),
        norms=(layer_norm("layer_norm1", h), layer_norm("layer_norm2", h)),
    )
    pooled = "vision_use_head" in config.defaults and config.flag("vision_use_head")
    return Encoder(
        kind=kind,
        width=h,
        embedding=Part(tensors=(*extras, kernel, positions), norms=(layer_norm("pre_layrnorm", h),) if clip else ()),
        runs=(BlockRun(count=config.integer("num_hidden_layers"), block=block),),
        after=Part(norms=(layer_norm("post_layernorm", h),)),
        patch=patch,
        rows=grid,
        columns=grid,
        channels=channels,
        class_tokens=int(clip),
        unused=pooling_head(h, block.feed_forward) if pooled else Part(),
        units=frozenset({"attention"} if "idefics" in model_type else {"blocks", "embedding", "unused"}),
    )


def pooling_head(h: int, mlp: FeedForward) -> Part:
    """SigLIP's attention pooling, whose result no language model reads: MultiheadAttention, norm, feed-forward."""
    out = Linear(name="out_proj", inputs=h, outputs=h, bias=True)
    inward = (Bare(name="in_proj_weight", shape=(3 * h, h)), Bare(name="in_proj_bias", shape=(3 * h,)))
    return Part(
        linears=(out, *mlp.linears),
        tensors=(Bare(name="probe", shape=(1, 1, h)), *inward),
        norms=(layer_norm("layernorm", h),),
    )


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
            intermediate=inner, activation=config.choice("hidden_act", ACTIVATIONS), linears=gated_linears(h, inner, h)
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
