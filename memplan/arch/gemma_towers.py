"""Gemma 4's towers as transformers 5.23 builds them (``models/gemma4/modeling_gemma4.py``): the parameters of its
vision tower and of its audio tower. Sounds are not modelled."""

from memplan.arch.config import Config
from memplan.arch.projector_keys import assemble
from memplan.arch.towers import ACTIVATIONS, Encoder, layer_norm, vision_config
from memplan.errors import ModelError
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, FeedForward, Linear, Norm, Part
from memplan.spec.vision import Block, BlockRun, ImageRule, Tower, VisionAttention

CHANNELS = (128, 32)
MOST_TOKENS = 280
"""Of an image: processor_config.json of google/gemma-4-E2B-it, and the default of ``Gemma4ImageProcessor``."""
AUDIO_NOTE = "its audio tower is counted with its vision tower, and runs on nothing: sounds are not modelled"


def rms(name: str, width: int) -> Norm:
    """``Gemma4RMSNorm``."""
    return Norm(name=name, width=width, kind="rms-power")


def clippable(name: str, inputs: int, outputs: int) -> Linear:
    """``Gemma4ClippableLinear``, which holds a linear."""
    return Linear(name=f"{name}.linear", inputs=inputs, outputs=outputs)


def encoder(config: Config) -> Encoder:
    """Patches through one linear, positions of both axes, blocks of four norms."""
    h, inner, width = (config.integer(key) for key in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    patch, positions = config.integer("patch_size"), config.integer("position_embedding_size")
    block = Block(
        attention=VisionAttention(
            num_heads=heads,
            head_dim=width,
            linears=(
                clippable("q_proj", h, heads * width),
                clippable("k_proj", h, kv_heads * width),
                clippable("v_proj", h, kv_heads * width),
                clippable("o_proj", heads * width, h),
            ),
            rotary="narrow",
            norms=(rms("q_norm", width), rms("k_norm", width)),
        ),
        feed_forward=FeedForward(
            intermediate=inner,
            activation=config.choice("hidden_activation", ACTIVATIONS),
            linears=(
                clippable("gate_proj", h, inner),
                clippable("up_proj", h, inner),
                clippable("down_proj", inner, h),
            ),
            norms=(rms("pre_feedforward_layernorm", h), rms("post_feedforward_layernorm", h)),
        ),
        norms=(rms("input_layernorm", h), rms("post_attention_layernorm", h)),
        clipped=config.flag("use_clipped_linears"),
        form="positions",
    )
    return Encoder(
        kind="gemma4",
        width=h,
        embedding=Part(
            linears=(Linear(name="input_proj", inputs=3 * patch**2, outputs=h),),
            tensors=(Bare(name="position_embedding_table", shape=(2, positions, h)),),
        ),
        runs=(BlockRun(count=config.integer("num_hidden_layers"), block=block),),
        after=Part(),
        units=frozenset({"blocks", "embedding", "unused"}),
        patch=patch,
        rows=48,
        columns=48,
        channels=3,
    )


def audio(raw: Config, hidden: int) -> tuple[Part, Part]:
    """A conformer's layers, two feed-forwards, attention and a convolution in each; and what is before and behind them,
    up to its projection to the text."""
    config = raw.with_defaults("gemma4_audio")
    h, heads, out = (config.integer(key) for key in ("hidden_size", "num_attention_heads", "output_proj_dims"))
    width, kernel, layers = h // heads, config.integer("conv_kernel_size"), config.integer("num_hidden_layers")
    first, second = channels(config)
    halves = (clippable("ffw_layer_1", h, 4 * h), clippable("ffw_layer_2", 4 * h, h)) * 2
    linears = (
        *halves,
        *(clippable(name, h, heads * width) for name in ("q_proj", "k_proj", "v_proj")),
        clippable("post", h, h),
        Linear(name="relative_k_proj", inputs=h, outputs=heads * width),
        clippable("linear_start", h, 2 * h),
        clippable("linear_end", h, h),
    )
    bare = (Bare(name="per_dim_scale", shape=(width,)), Bare(name="depthwise_conv1d", shape=(h, 1, kernel)))
    names = ("pre_layer_norm", "post_layer_norm") * 2 + ("norm_pre_attn", "norm_post_attn", "norm_out")
    norms = tuple(rms(name, h) for name in (*names, "pre_layer_norm", "conv_norm"))
    ends = Part(
        linears=(
            Linear(name="input_proj_linear", inputs=first // 4 * second, outputs=h),
            Linear(name="output_proj", inputs=h, outputs=out, bias=True),
            Linear(name="embedding_projection", inputs=out, outputs=hidden),
        ),
        tensors=(
            Bare(name="layer0.conv", shape=(first, 1, 3, 3)),
            Bare(name="layer1.conv", shape=(second, first, 3, 3)),
        ),
        norms=(
            Norm(name="layer0.norm", width=first, kind="layer"),
            Norm(name="layer1.norm", width=second, kind="layer"),
        ),
        category="vision",
    )
    return Part(linears=linears * layers, tensors=bare * layers, norms=norms * layers, category="vision"), ends


def channels(config: Config) -> tuple[int, int]:
    """``subsampling_conv_channels``: two numbers."""
    given = config.keys.get("subsampling_conv_channels", CHANNELS)
    numbers = [n for n in given if isinstance(n, int) and n > 0] if isinstance(given, (list, tuple)) else []
    if len(numbers) != 2:
        raise config.wrong("subsampling_conv_channels", "two numbers of channels", given)
    return numbers[0], numbers[1]


def merged_patches(vision: Config | None, sounds: Config | None, text: ModelSpec, blocks: bool) -> Tower | None:
    """No encoder: one linear over patches that are merged beforehand, positions of both axes, and norms around them
    (transformers 5.24 ``models/gemma4_unified``: Gemma4UnifiedVisionEmbedder); frames of sound through one linear."""
    check_sounds(vision, sounds)
    if vision is None:
        return None
    config = vision_config(vision, "gemma4_unified_vision")
    h, patch = config.integer("mm_embed_dim"), config.integer("patch_size") * config.integer("pooling_kernel_size")
    linears = (Linear(name="patch_dense", inputs=3 * patch**2, outputs=h, bias=True),)
    positions = Bare(name="pos_embedding", shape=(config.integer("mm_posemb_size"), 2, h))
    norms = (layer_norm("patch_ln1", 3 * patch**2), layer_norm("patch_ln2", h), layer_norm("pos_norm", h))
    frames = sounds.with_defaults("gemma4_unified_audio").integer("audio_embed_dim") if sounds else 0
    unread = (Linear(name="embedding_projection", inputs=frames, outputs=text.hidden_size),) if frames else ()
    made = Encoder(
        kind="gemma4_unified",
        width=h,
        embedding=Part(linears=linears, tensors=(positions,), norms=norms),
        runs=(),
        after=Part(),
        patch=patch,
        rows=48,
        columns=48,
        channels=3,
        unused=Part(linears=unread, category="vision"),
        units=frozenset(),
    )
    projector = Part(linears=(Linear(name="embedding_projection", inputs=h, outputs=text.hidden_size),))
    rule = ImageRule(kind="budget", patch=patch, max_tiles=MOST_TOKENS)
    return assemble(made, projector, rule, projection="picked by position", masked=blocks)


def check_sounds(vision: Config | None, sounds: Config | None) -> None:
    """Refuse a model that hears and does not see."""
    if vision is None and sounds is not None:
        raise ModelError("audio_config without vision_config is not described", "name a model with both, or with none")


def gemma4_tower(vision: Config | None, sounds: Config | None, text: ModelSpec, blocks: bool) -> Tower | None:
    """The tower of images, with that of sounds as what no forward reads; None without either.

    ``blocks``: use_bidirectional_attention of the text is vision."""
    check_sounds(vision, sounds)
    if vision is None:
        return None
    config = vision_config(vision, "gemma4_vision")
    made = encoder(config)
    projector = Part(linears=(Linear(name="embedding_projection", inputs=made.width, outputs=text.hidden_size),))
    rule = ImageRule(
        kind="budget", patch=made.patch, merge=config.integer("pooling_kernel_size"), max_tiles=MOST_TOKENS
    )
    grouped = config.integer("num_key_value_heads") != config.integer("num_attention_heads")
    heard, ends = audio(sounds, text.hidden_size) if sounds else (Part(), Part())
    return assemble(
        made._replace(unused=heard, after=ends),
        projector,
        rule,
        after_is_read=False,
        projection="" if grouped else "averaged by position",
        standardized=config.flag("standardize"),
        masks_windows=blocks,
    )
