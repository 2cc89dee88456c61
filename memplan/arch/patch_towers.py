"""Vision towers that take any number of patches: Qwen2-VL to Qwen3.5, and Kimi's MoonViT (transformers 5.23).

Patches of all images stand in one sequence; two by two of them become one token in the merger."""

from memplan.arch.attention import gated_linears
from memplan.arch.config import Config
from memplan.arch.reading import numbers, quotient
from memplan.arch.towers import ACTIVATIONS, Encoder, attends, conv, layer_norm, one_side, plain_mlp, vision_config
from memplan.spec.parts import Bare, FeedForward, Linear, Norm, Part
from memplan.spec.vision import Block, BlockRun, VisionAttention

QWEN_NAMES = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"}
FULL_BLOCKS = (7, 15, 23, 31)
DEEPSTACK = (8, 16, 24)


def qwen_config(raw: Config, model_type: str) -> Config:
    """The keys of a Qwen tower, under either name."""
    config = raw.with_defaults(model_type, QWEN_NAMES)
    config.note_defaults(("hidden_size", "num_hidden_layers", "num_attention_heads"))
    return config


def qkv_attention(
    config: Config, width: int, window: int | None = None, biases: tuple[bool, bool] = (True, True)
) -> VisionAttention:
    """One fused qkv and proj, both with ``biases`` or without; rotary in fp32."""
    heads = config.integer("num_attention_heads")
    return VisionAttention(
        num_heads=heads,
        head_dim=quotient(config, "hidden_size", width, "num_attention_heads", heads),
        linears=(
            Linear(name="qkv", inputs=width, outputs=3 * width, bias=biases[0]),
            Linear(name="proj", inputs=width, outputs=width, bias=biases[1]),
        ),
        rotary="fp32",
        packed=True,
        window_patches=window,
    )


def patches(config: Config, width: int, bias: bool) -> tuple[Bare, ...]:
    """The kernel over frames, rows and columns."""
    patch, frames = one_side(config, "patch_size"), one_side(config, "temporal_patch_size")
    kernel = conv("patch_embed.proj", width, config.integer("in_channels"), frames, patch, patch)
    return (kernel, Bare(name="patch_embed.proj.bias", shape=(width,))) if bias else (kernel,)


def merger_linears(inputs: int, outputs: int, names: tuple[str, str]) -> tuple[Linear, ...]:
    """Two linear modules with biases: of the joined patches to themselves, and to the language model's width."""
    return (
        Linear(name=names[0], inputs=inputs, outputs=inputs, bias=True),
        Linear(name=names[1], inputs=inputs, outputs=outputs, bias=True),
    )


def encoder(config: Config, kind: str, width: int, embedding: Part, runs: tuple[BlockRun, ...]) -> Encoder:
    """A tower of any number of patches."""
    return Encoder(
        kind=kind,
        width=width,
        embedding=embedding,
        runs=runs,
        after=Part(),
        patch=one_side(config, "patch_size"),
        rows=0,
        columns=0,
        channels=config.integer("in_channels"),
    )


def qwen2_vl(raw: Config) -> tuple[Encoder, Part, Config]:
    """Qwen2-VL: LayerNorms, quick_gelu, merger of two linear modules. hidden_size is the width behind the merger."""
    config = qwen_config(raw, "qwen2_vl_vision")
    h = config.integer("embed_dim")
    inner = h * config.integer("mlp_ratio")
    block = Block(
        attention=qkv_attention(config, h),
        feed_forward=plain_mlp(h, inner, config.choice("hidden_act", ACTIVATIONS)),
        norms=(layer_norm("norm1", h), layer_norm("norm2", h)),
    )
    merged = h * config.integer("spatial_merge_size") ** 2
    linears = merger_linears(merged, config.integer("hidden_size"), ("mlp.0", "mlp.2"))
    merger = Part(norms=(layer_norm("ln_q", h),), linears=linears)
    runs = (BlockRun(count=config.integer("num_hidden_layers"), block=block),)
    return encoder(config, "qwen2_vl", h, Part(tensors=patches(config, h, False)), runs), merger, config


def qwen2_5_vl(raw: Config) -> tuple[Encoder, Part, Config]:
    """Qwen2.5-VL: RMS norms, gated feed-forwards, attention in windows but for a few blocks."""
    config = qwen_config(raw, "qwen2_5_vl_vision")
    h, inner, layers = config.integers("hidden_size", "intermediate_size", "num_hidden_layers")
    feed_forward = FeedForward(
        intermediate=inner,
        activation=config.choice("hidden_act", ACTIVATIONS),
        linears=gated_linears(h, inner, h, bias=True),
    )
    patch, listed = one_side(config, "patch_size"), config.keys.get("fullatt_block_indexes", FULL_BLOCKS)
    full = numbers(config, "fullatt_block_indexes", listed)
    window = (config.integer("window_size") // patch) ** 2
    runs: list[BlockRun] = []
    for i in range(layers):
        block = Block(
            attention=qkv_attention(config, h, None if i in full else window),
            feed_forward=feed_forward,
            norms=(Norm(name="norm1", width=h), Norm(name="norm2", width=h)),
        )
        if runs and runs[-1].block == block:
            runs[-1] = BlockRun(count=runs[-1].count + 1, block=block)
        else:
            runs.append(BlockRun(count=1, block=block))
    merged = h * config.integer("spatial_merge_size") ** 2
    linears = merger_linears(merged, config.integer("out_hidden_size"), ("mlp.0", "mlp.2"))
    merger = Part(norms=(Norm(name="ln_q", width=h),), linears=linears)
    return encoder(config, "qwen2_5_vl", h, Part(tensors=patches(config, h, False)), tuple(runs)), merger, config


def glm4v(raw: Config) -> tuple[Encoder, Part, Config]:
    """GLM-4.1V to 4.6V: RMS norms, positions sampled from a square of them, patches joined by a convolution, a gated
    merger (``models/glm4v/modeling_glm4v.py``: Glm4vVisionModel)."""
    config = qwen_config(raw, "glm4v_vision")
    config.require_off("attention_dropout", "the masks that dropout keeps are not counted")
    h, out, merge = config.integers("hidden_size", "out_hidden_size", "spatial_merge_size")
    activation = config.choice("hidden_act", ACTIVATIONS)
    block = Block(
        attention=qkv_attention(config, h, biases=(config.flag("attention_bias"), False)),
        feed_forward=FeedForward(intermediate=out, activation=activation, linears=gated_linears(h, out, h)),
        norms=(Norm(name="norm1", width=h), Norm(name="norm2", width=h)),
    )
    positions = Bare(
        name="position_embedding", shape=((one_side(config, "image_size") // one_side(config, "patch_size")) ** 2, h)
    )
    norms = (Norm(name="post_conv_layernorm", width=h),)
    embedding = Part(tensors=(*patches(config, h, True), positions), norms=norms)
    runs = (BlockRun(count=config.integer("num_hidden_layers"), block=block),)
    proj = Linear(name="proj", inputs=out, outputs=out)
    linears = (proj, *gated_linears(out, config.integer("intermediate_size"), out))
    merger = Part(norms=(layer_norm("post_projection_norm", out),), linears=linears)
    joins = (conv("downsample", out, h, merge, merge), Bare(name="downsample.bias", shape=(out,)))
    made = encoder(config, "glm4v", h, embedding, runs)
    return made._replace(after=Part(norms=(Norm(name="post_layernorm", width=h),), tensors=joins)), merger, config


def qwen3_vl(raw: Config, deepstack: bool) -> tuple[Encoder, Part, Config]:
    """Qwen3-VL and Qwen3.5: learned positions beside rotary ones; with ``deepstack``, a merger for each block whose
    output enters the language model."""
    config = qwen_config(raw, "qwen3_vl_vision")
    h = config.integer("hidden_size")
    block = Block(
        attention=qkv_attention(config, h),
        feed_forward=plain_mlp(
            h,
            config.integer("intermediate_size"),
            config.choice("hidden_act", ACTIVATIONS),
            ("linear_fc1", "linear_fc2"),
        ),
        norms=(layer_norm("norm1", h), layer_norm("norm2", h)),
    )
    merged, taps = h * config.integer("spatial_merge_size") ** 2, deepstack_blocks(config) if deepstack else ()
    linears = merger_linears(merged, config.integer("out_hidden_size"), ("linear_fc1", "linear_fc2"))
    norms = (layer_norm("norm", h), *(layer_norm("norm", merged) for _ in taps))
    merger = Part(norms=norms, linears=linears * (1 + len(taps)))
    positions = Bare(name="pos_embed", shape=(config.integer("num_position_embeddings"), h))
    embedding = Part(tensors=(*patches(config, h, True), positions))
    runs = (BlockRun(count=config.integer("num_hidden_layers"), block=block),)
    return encoder(config, "qwen3_vl", h, embedding, runs), merger, config


def deepstack_blocks(config: Config) -> tuple[int, ...]:
    """Blocks whose outputs enter the language model's first layers."""
    return numbers(config, "deepstack_visual_indexes", config.keys.get("deepstack_visual_indexes", DEEPSTACK))


def kimi(raw: Config) -> tuple[Encoder, Config]:
    """MoonViT as Kimi K2.5 has it: apart q, k, v with biases, positions of rows and columns, a final norm."""
    config = vision_config(raw, "kimi_k25_vision")
    h, patch = config.integer("hidden_size"), one_side(config, "patch_size")
    block = Block(
        attention=attends(config, h, "proj", rotary="fp32", packed=True),
        feed_forward=plain_mlp(h, config.integer("intermediate_size"), config.choice("hidden_act", ACTIVATIONS)),
        norms=(layer_norm("norm1", h), layer_norm("norm2", h)),
    )
    grid = (config.integer("pos_emb_height"), config.integer("pos_emb_width"))
    embedding = Part(
        tensors=(
            conv("patch_embed.proj", h, 3, patch, patch),
            Bare(name="patch_embed.proj.bias", shape=(h,)),
            Bare(name="position_embeddings", shape=(*grid, h)),
        )
    )
    made = Encoder(
        kind="kimi",
        width=h,
        embedding=embedding,
        runs=(BlockRun(count=config.integer("num_hidden_layers"), block=block),),
        after=Part(norms=(layer_norm("final_layernorm", h),)),
        patch=patch,
        rows=0,
        columns=0,
        channels=3,
    )
    return made, config
