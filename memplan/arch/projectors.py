"""From a tower to the language model: the projector of each vision-language type, and how its processor cuts images.

A function for each type takes the outer config, the tower's and the language model, and gives the Tower with what else
changes in the model. Processor settings stand in a file of their own beside config.json; here are those of the
published checkpoints, with their source."""

from collections.abc import Callable

from memplan.arch import patch_towers, tile_towers, towers
from memplan.arch.config import Config
from memplan.arch.projector_keys import (
    Made,
    assemble,
    deepest,
    feature_layers,
    idefics2,
    integer,
    pinpoints,
    square,
    two_linears,
)
from memplan.arch.reading import share
from memplan.arch.towers import Encoder
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Linear, Norm, Part
from memplan.spec.vision import ImageRule

BY_ROW = {"rotary_by_row": True}
LLAVA_NEXT_GRIDS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
ONEVISION_SIDES = (384, 768, 1152, 1536, 1920, 2304)


def llava_kind(
    config: Config, vision: Config, text: ModelSpec, default: int, newline: bool
) -> tuple[Encoder, Part, int]:
    """Encoder, projector and used blocks of LLaVA, LLaVA-NeXT and LLaVA-OneVision."""
    encoder = towers.auto_tower(vision, "clip_vision_model" if default == -2 else "siglip_vision_model")
    layers = feature_layers(config, default)
    used = deepest(config, layers, sum(run.count for run in encoder.runs))
    line = (Bare(name="image_newline", shape=(text.hidden_size,)),) if newline else ()
    linears = two_linears(config, encoder.width * len(layers), text.hidden_size)
    return encoder, Part(linears=linears, tensors=line), used


def square_tokens(config: Config, encoder: Encoder, default: str) -> int:
    """Tokens of one square: the strategy 'default' drops the first, which is CLIP's class token, 'full' none."""
    key = "vision_feature_select_strategy"
    chosen = Config({key: config.keys.get(key, default)}, config.name).choice(key, {"default": "1", "full": "0"})
    return encoder.rows * encoder.columns + encoder.class_tokens - int(chosen)


def llava(config: Config, vision: Config, text: ModelSpec) -> Made:
    """LLaVA 1.5, with any described tower: two linear modules."""
    encoder, projector, used = llava_kind(config, vision, text, -2, False)
    if encoder.kind == "pixtral":
        rule = longest_edge(encoder, 1, 1024)
    else:
        rule = square(encoder, square_tokens(config, encoder, "default"))
    return assemble(encoder, projector, rule, used, projection="llava", after_is_read=False), {}


def llava_next(config: Config, vision: Config, text: ModelSpec) -> Made:
    """LLaVA-NeXT: tiles chosen from a list of resolutions, and a parameter at the end of each row."""
    encoder, projector, used = llava_kind(config, vision, text, -2, True)
    grids = pinpoints(config, LLAVA_NEXT_GRIDS)
    rule = square(encoder, square_tokens(config, encoder, "default"), "anyres", grids=grids)
    return assemble(encoder, projector, rule, used, projection="anyres", after_is_read=False), {}


def llava_onevision(config: Config, vision: Config, text: ModelSpec) -> Made:
    """LLaVA-OneVision: as LLaVA-NeXT, at most nine tiles."""
    encoder, projector, used = llava_kind(config, vision, text, -1, True)
    grids = pinpoints(config, tuple((a, b) for a in ONEVISION_SIDES for b in ONEVISION_SIDES))
    rule = square(encoder, square_tokens(config, encoder, "full"), "anyres", grids=grids, max_tiles=9)
    return assemble(encoder, projector, rule, used, projection="anyres", after_is_read=False), {}


def gemma3(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Gemma 3: pooled to a fixed number of tokens, a norm, a product with a parameter."""
    encoder = towers.auto_tower(vision, "siglip_vision_model")
    tokens = integer(config, "mm_tokens_per_image", 256)
    projector = Part(
        tensors=(Bare(name="mm_input_projection_weight", shape=(encoder.width, text.hidden_size)),),
        norms=(Norm(name="mm_soft_emb_norm", width=encoder.width, kind="rms-plus-one"),),
    )
    return assemble(encoder, projector, square(encoder, tokens), projection="pooled", masked=True), {}


def paligemma(config: Config, vision: Config, text: ModelSpec) -> Made:
    """PaliGemma: one linear module."""
    encoder = towers.auto_tower(vision, "siglip_vision_model")
    width = integer(config, "projection_dim", 2048)
    linear = Linear(name="linear", inputs=encoder.width, outputs=width, bias=True)
    rule = square(encoder, encoder.rows * encoder.columns)
    return assemble(encoder, Part(linears=(linear,)), rule, units=("projector",), projection="linear", masked=True), {}


def smart_resize(encoder: Encoder, vision: Config, smallest: int, largest: int) -> ImageRule:
    """Sides rounded to whole tokens, area between two bounds (``smart_resize``)."""
    return ImageRule(
        kind="smart-resize",
        patch=encoder.patch,
        merge=vision.integer("spatial_merge_size"),
        channels=encoder.channels,
        frames=towers.one_side(vision, "temporal_patch_size"),
        min_pixels=smallest,
        max_pixels=largest,
    )


def qwen2_vl(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Bounds: preprocessor_config.json of Qwen/Qwen2-VL-7B-Instruct."""
    encoder, merger, keys = patch_towers.qwen2_vl(vision)
    vision.notes.extend(keys.notes)
    return assemble(encoder, merger, smart_resize(encoder, keys, 56 * 56, 28 * 28 * 16384), projection="merged"), BY_ROW


def qwen2_5_vl(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Bounds: preprocessor_config.json of Qwen/Qwen2.5-VL-7B-Instruct."""
    encoder, merger, keys = patch_towers.qwen2_5_vl(vision)
    vision.notes.extend(keys.notes)
    return assemble(encoder, merger, smart_resize(encoder, keys, 56 * 56, 28 * 28 * 16384), projection="merged"), BY_ROW


def qwen3_vl(config: Config, vision: Config, text: ModelSpec, deepstack: bool = True) -> Made:
    """Bounds: preprocessor_config.json of Qwen/Qwen3-VL-8B-Instruct."""
    encoder, merger, keys = patch_towers.qwen3_vl(vision, deepstack)
    vision.notes.extend(keys.notes)
    taps = patch_towers.deepstack_blocks(keys) if deepstack else ()
    return assemble(
        encoder, merger, smart_resize(encoder, keys, 65536, 16777216), taps=taps, projection="merged"
    ), BY_ROW


def qwen3_5(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Qwen3.5: Qwen3-VL's tower without the mergers in between."""
    return qwen3_vl(config, vision, text, deepstack=False)


def glm4v(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Bounds of two frames together: the defaults of ``Glm4vImageProcessor`` (image_processing_glm4v.py)."""
    encoder, merger, keys = patch_towers.glm4v(vision)
    vision.notes.extend(keys.notes)
    rule = smart_resize(encoder, keys, 112 * 112 // 2, 28 * 28 * 15000 // 2)
    return assemble(encoder, merger, rule, projection="convolved"), BY_ROW


def kimi_k25(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Kimi K2.5: a norm, then two linear modules over joined patches. At most 16384 patches, 512 a side:
    image_processing_kimi_k25.py."""
    encoder, keys = patch_towers.kimi(vision)
    vision.notes.extend(keys.notes)
    merged = encoder.width * merge_area(keys)
    norm = towers.layer_norm("pre_norm", integer(config, "projection_hidden_size", 1152))
    linears = (
        Linear(name="in_proj", inputs=merged, outputs=merged, bias=True),
        Linear(name="out_proj", inputs=merged, outputs=text.hidden_size, bias=True),
    )
    rule = ImageRule(kind="native", patch=encoder.patch, merge=2, longest=512, max_pixels=16384 * encoder.patch**2)
    projection = "averaged" if merged == 4 * encoder.width else ""
    return assemble(encoder, Part(norms=(norm,), linears=linears), rule, projection=projection), {}


def merge_area(config: Config) -> int:
    """Patches that become one token."""
    value = config.keys.get("merge_kernel_size", (2, 2))
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(side, int) for side in value):
        raise config.wrong("merge_kernel_size", "two sides", value)
    return int(value[0]) * int(value[1])


def llama4(config: Config, vision: Config, text: ModelSpec) -> Made:
    """At most 16 tiles and the whole image: preprocessor_config.json of meta-llama/Llama-4-Scout-17B-16E-Instruct."""
    encoder, keys = tile_towers.llama4(vision)
    vision.notes.extend(keys.notes)
    linear = Linear(name="linear_1", inputs=keys.integer("vision_output_dim"), outputs=text.hidden_size)
    rule = square(encoder, encoder.rows * encoder.columns // 4, "best-fit", max_tiles=16)
    turns = 8 * (encoder.rows * encoder.columns + 1) * (encoder.runs[0].block.attention.head_dim // 2)
    made = assemble(encoder, Part(linears=(linear,)), rule, projection="adapted")
    return made, {"buffer_bytes": text.buffer_bytes + turns}


def mllama(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Llama 3.2 Vision: one linear module over the last and a few earlier states."""
    encoder, keys = tile_towers.mllama(vision)
    vision.notes.extend(keys.notes)
    linear = Linear(
        name="multi_modal_projector", inputs=keys.integer("vision_output_dim"), outputs=text.hidden_size, bias=True
    )
    rule = square(encoder, 0, "canvas", max_tiles=keys.integer("max_num_tiles"))
    taps = tile_towers.mllama_taps(keys)
    read = encoder.width * (1 + len(taps))
    fails = "" if read == linear.inputs else f"vision_output_dim is {linear.inputs}, where its tower gives {read}"
    if max(taps, default=0) >= (count := encoder.runs[0].count):
        fails = f"intermediate_layers_indices names {max(taps)}, where its tower has {count} layers"
    return assemble(encoder, Part(linears=(linear,)), rule, taps=taps, projection="crossed", fails=fails), {}


def idefics3(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Four tiles a side at most, and the whole image: preprocessor_config.json of HuggingFaceM4/Idefics3-8B-Llama3."""
    encoder = towers.vit(vision, "idefics3_vision", "idefics")
    factor = integer(config, "scale_factor", 2)
    linear = Linear(name="proj", inputs=encoder.width * factor**2, outputs=text.hidden_size)
    tokens = encoder.rows * encoder.columns // factor**2
    rule = square(encoder, tokens, "split", longest=4 * encoder.side)
    projection = "connected, held" if config.model_type == "smolvlm" else "connected"
    return assemble(encoder, Part(linears=(linear,)), rule, projection=projection), {}


def internvl(config: Config, vision: Config, text: ModelSpec) -> Made:
    """At most 12 tiles and a thumbnail: preprocessor_config.json of OpenGVLab/InternVL3-8B-hf."""
    encoder = towers.internvit(vision)
    factor = int(1 / share(config, "downsample_ratio", config.keys.get("downsample_ratio", 0.5)))
    merged, h = encoder.width * factor**2, text.hidden_size
    linears = (
        Linear(name="linear_1", inputs=merged, outputs=h, bias=True),
        Linear(name="linear_2", inputs=h, outputs=h, bias=True),
    )
    used = deepest(config, feature_layers(config, -1), sum(run.count for run in encoder.runs))
    tokens = encoder.rows * encoder.columns // factor**2
    projector = Part(norms=(towers.layer_norm("layer_norm", merged),), linears=linears)
    return assemble(encoder, projector, square(encoder, tokens, "tiles", max_tiles=12), used, projection="shuffled"), {}


def longest_edge(encoder: Encoder, merge: int, longest: int) -> ImageRule:
    """Scaled down to the longest side, then up to whole tokens (Pixtral)."""
    return ImageRule(kind="longest-edge", patch=encoder.patch, merge=merge, channels=encoder.channels, longest=longest)


SEVERAL = (
    "vision_feature_layer names several layers, on which transformers 5.23 fails: the norm of its "
    "Mistral3MultiModalProjector is as wide as one"
)


def mistral3(config: Config, vision: Config, text: ModelSpec) -> Made:
    """Longest side: the tower's image_size, as processor_config.json of Mistral-Small-3.1 has it."""
    encoder = towers.auto_tower(vision, "pixtral")
    factor, layers = integer(config, "spatial_merge_size", 2), feature_layers(config, -1)
    merge = Linear(name="merging_layer", inputs=encoder.width * factor**2, outputs=encoder.width)
    linears = (merge, *two_linears(config, encoder.width * len(layers), text.hidden_size, default_bias=False))
    projector = Part(norms=(Norm(name="norm", width=encoder.width),), linears=linears)
    used = deepest(config, layers, sum(run.count for run in encoder.runs))
    rule = longest_edge(encoder, factor, encoder.side)
    return assemble(encoder, projector, rule, used, projection="patch-merger", fails=SEVERAL * (len(layers) > 1)), {}


PROJECTORS: dict[str, Callable[[Config, Config, ModelSpec], Made]] = {
    "llava": llava,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "gemma3": gemma3,
    "paligemma": paligemma,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5,
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), glm4v),
    "llama4": llama4,
    "mllama": mllama,
    "idefics2": idefics2,
    "idefics3": idefics3,
    "smolvlm": idefics3,
    "internvl": internvl,
    "mistral3": mistral3,
    "kimi_k25": kimi_k25,
}
"""The maker of each type's tower."""
