"""Vision towers of tiles, each with a class token: Llama 4 and Llama 3.2 Vision (Mllama), as in transformers 5.23."""

from memplan.arch.config import Config
from memplan.arch.reading import numbers, pairs
from memplan.arch.towers import ACTIVATIONS, Encoder, attends, conv, geometry, layer_norm, plain_mlp, vision_config
from memplan.spec.parts import Bare, Linear, Part
from memplan.spec.vision import Block, BlockRun

ASPECT_RATIOS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1))
"""Arrangements of at most four tiles."""
TAPS = (3, 7, 15, 23, 30)


def llama4(raw: Config) -> tuple[Encoder, Config]:
    """Llama 4: patches through one linear module, the class token last, pixels shuffled into a two-layer adapter."""
    config = vision_config(raw, "llama4_vision_model")
    config.require_off("projector_dropout", "the masks that dropout keeps are not counted")
    h, inner = config.integers("hidden_size", "intermediate_size")
    side, patch, channels = geometry(config)
    grid = side // patch
    block = Block(
        attention=attends(config, h, "o_proj", rotary="complex", wide_softmax=False),
        feed_forward=plain_mlp(h, inner, "gelu"),
        norms=(layer_norm("input_layernorm", h), layer_norm("post_attention_layernorm", h)),
    )
    into, out = config.integer("projector_input_dim"), config.integer("projector_output_dim")
    adapter = (Linear(name="fc1", inputs=inner, outputs=into), Linear(name="fc2", inputs=out, outputs=out))
    made = Encoder(
        kind="llama4",
        width=h,
        embedding=Part(
            linears=(Linear(name="linear", inputs=channels * patch * patch, outputs=h),),
            tensors=(
                Bare(name="class_embedding", shape=(h,)),
                Bare(name="positional_embedding_vlm", shape=(grid * grid + 1, h)),
            ),
            norms=(layer_norm("layernorm_pre", h),),
        ),
        runs=(BlockRun(count=config.integer("num_hidden_layers"), block=block),),
        after=Part(norms=(layer_norm("layernorm_post", h),), linears=adapter),
        patch=patch,
        rows=grid,
        columns=grid,
        channels=channels,
        class_tokens=1,
    )
    return made, config


def mllama(raw: Config) -> tuple[Encoder, Config]:
    """Llama 3.2 Vision: tiles with positions of their own, local blocks, then global ones with gates."""
    config = vision_config(raw, "mllama_vision_model", {"num_attention_heads": "attention_heads"})
    h, tiles = config.integer("hidden_size"), config.integer("max_num_tiles")
    side, patch, channels = geometry(config)
    grid, ratios = side // patch, aspect_ratios(config, tiles)
    tokens, arrangements = grid * grid + 1, len(ratios) + 1

    def tile_positions(name: str) -> tuple[Bare, ...]:
        return Bare(name=f"{name}.gate", shape=(1,)), Bare(name=f"{name}.embedding", shape=(arrangements, tiles * h))

    positions = (
        Bare(name="gated_positional_embedding.gate", shape=(1,)),
        Bare(name="gated_positional_embedding.embedding", shape=(tokens, h)),
        Bare(name="gated_positional_embedding.tile_embedding", shape=(arrangements, tiles * tokens * h)),
    )
    made = Encoder(
        kind="mllama",
        width=h,
        embedding=Part(
            tensors=(
                Bare(name="class_embedding", shape=(h,)),
                conv("patch_embedding", h, channels, patch, patch),
                *positions,
                *tile_positions("pre_tile_positional_embedding"),
            ),
            norms=(layer_norm("layernorm_pre", h),),
        ),
        runs=(
            BlockRun(count=config.integer("num_hidden_layers"), block=mllama_block(config, h, False)),
            BlockRun(count=config.integer("num_global_layers"), block=mllama_block(config, h, True)),
        ),
        after=Part(tensors=tile_positions("post_tile_positional_embedding"), norms=(layer_norm("layernorm_post", h),)),
        patch=patch,
        rows=grid,
        columns=grid,
        channels=channels,
        class_tokens=1,
    )
    return made, config


def mllama_block(config: Config, h: int, gated: bool) -> Block:
    """A local block, or a global one with its gates."""
    return Block(
        attention=attends(config, h, "o_proj", False, False, tiled=True),
        feed_forward=plain_mlp(h, config.integer("intermediate_size"), config.choice("hidden_act", ACTIVATIONS)),
        norms=(layer_norm("input_layernorm", h), layer_norm("post_attention_layernorm", h)),
        gates=(Bare(name="gate_attn", shape=(1,)), Bare(name="gate_ffn", shape=(1,))) if gated else (),
    )


def aspect_ratios(config: Config, tiles: int) -> tuple[tuple[int, int], ...]:
    """How tiles may be arranged; the default is for four."""
    given = config.keys.get("supported_aspect_ratios")
    if given is None or given == [list(ratio) for ratio in ASPECT_RATIOS]:
        if tiles != 4:
            raise config.wrong("max_num_tiles", "4 for the default supported_aspect_ratios", tiles)
        return ASPECT_RATIOS
    return pairs(config, "supported_aspect_ratios", given, "[columns, rows]")


def mllama_taps(config: Config) -> tuple[int, ...]:
    """Local blocks whose outputs reach the projector beside the last one's; null is the default."""
    given = config.keys.get("intermediate_layers_indices")
    return TAPS if given is None else numbers(config, "intermediate_layers_indices", given)
