"""A language model and a vision tower that a script puts together, as LLaVA does: a config of both; and
InternVL's chat models by their names.

Source: haotian-liu/LLaVA llava/model/llava_arch.py, multimodal_projector/builder.py, multimodal_encoder/clip_encoder.py
and LLaVA-VL/LLaVA-NeXT siglip_encoder.py (which takes the last layer away); the towers' configs on the Hub;
OpenGVLab/InternVL README.md (the table of models), internvl_chat/internvl/model/internvl_chat/
configuration_intern_vit.py, and the configs of the towers and of InternLM2 on the Hub."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.presets import find_preset

_CLIP = {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16, "patch_size": 14}  # fmt: skip
_SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
           "num_attention_heads": 16, "patch_size": 14, "vision_use_head": False}  # fmt: skip
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
TOWERS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"clip-vit-large-patch14-336/?$", _CLIP | {"image_size": 336}),
    (r"clip-vit-large-patch14/?$", _CLIP | {"image_size": 224}),
    (r"LanguageBind_Image/?$", _CLIP | {"image_size": 224}),
    (r"clip-vit-base-patch16/?$", _CLIP | _BASE | {"patch_size": 16, "image_size": 224}),
    (r"clip-vit-base-patch32/?$", _CLIP | _BASE | {"patch_size": 32, "image_size": 224}),
    (r"siglip2?-so400m-patch14-384/?$", _SIGLIP | {"image_size": 384}),
    (r"siglip-so400m-patch14-448/?$", _SIGLIP | {"image_size": 448}),
    (r"siglip2?-base-patch16-224/?$", _SIGLIP | _BASE | {"num_hidden_layers": 11, "patch_size": 16, "image_size": 224}),
    (r"siglip2?-so400m-patch14-224/?$", _SIGLIP | {"image_size": 224}),
    (r"siglip2-so400m-patch16-384/?$", _SIGLIP | {"patch_size": 16, "image_size": 384}),
    (r"siglip2-so400m-patch16-512/?$", _SIGLIP | {"patch_size": 16, "image_size": 512}),
)
"""Known towers by how their names end."""
SAME_SHAPE = (
    (r"vicuna-?7b|llava-v1\.5-7b|llava-v1\.6-vicuna-7b|llama-7b", "llama-2-7b"),
    (r"vicuna-?13b|llava-v1\.5-13b|llava-v1\.6-vicuna-13b|llama-13b", "llama-2-13b"),
    (r"llava-v1\.6-mistral-7b", "mistral-7b-v0.2"),
    (r"\S*[-_]vicuna-13b-v1\.[35]$", "llama-2-13b"),
    (r"\S*[-_]vicuna-7b-v1\.[35]$", "llama-2-7b"),
    (r"vicuna-v1-[35]-7b", "llama-2-7b"),
    (r"vicuna-v1-[35]-13b", "llama-2-13b"),
)
"""Language models of another's shape."""
PROJECTORS = ("mlp2x_gelu", "linear", "")
PARTS = re.compile(r"^(mm_|use_s2|s2_|vision_|image_(?!folder|aspect))")
"""Keys of LLaVA's kin that change what the two make together, unless they are known."""


def reads_text_alone(model: object) -> bool:
    """Whether a model that an option names is known to have no tower."""
    preset = find_preset(model.rpartition("/")[2]) if isinstance(model, str) else None
    return preset is not None and "vision_config" not in preset["config"]


def side_of(tower: str) -> int:
    """Pixels of a side of the square that a tower sees, by its name; 0 where that does not say it."""
    known = next((int(config["image_size"]) for end, config in TOWERS if re.search(end, tower)), 0)
    said = re.search(r"[-_](\d{3})(px)?(\D|$)", tower)
    return known or (int(said[1]) if said else 0)


def together(language_model: str, tower: str, projector: str) -> dict[str, Any] | None:
    """A config of both behind LLaVA's projector; None where one of them is not known."""
    vision = next((config for end, config in TOWERS if re.search(end, tower)), None)
    last = language_model.rstrip("/").rpartition("/")[2]
    alias = next((name for pattern, name in SAME_SHAPE if re.match(pattern, last)), last)
    preset = find_preset(alias)
    if vision is None or preset is None or projector not in PROJECTORS or "vision_config" in preset["config"]:
        return None
    return {
        "_name_or_path": f"{last} with {tower.rstrip('/').rpartition('/')[2]}",
        "model_type": "llava",
        "tie_word_embeddings": False,
        "vision_feature_layer": -2 if vision["model_type"].startswith("clip") else -1,
        "vision_feature_select_strategy": "default" if vision["model_type"].startswith("clip") else "full",
        "vision_config": vision,
        "text_config": dict(preset["config"]),
    }


_INTERNLM2: dict[str, Any] = {"model_type": "internlm2", "vocab_size": 92553, "num_key_value_heads": 8,
                              "hidden_act": "silu", "max_position_embeddings": 32768}  # fmt: skip
_SMALL = _INTERNLM2 | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
                       "num_attention_heads": 16}  # fmt: skip
_TWENTY = _INTERNLM2 | {"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 48,
                        "num_attention_heads": 48}  # fmt: skip
LANGUAGE: Mapping[str, str | dict[str, Any]] = {
    "2-1b": "qwen2.5-0.5b", "2-2b": _SMALL, "2-4b": "phi-3-mini", "2-8b": "internlm2-7b", "2-26b": _TWENTY,
    "2-40b": "yi-34b", "2-llama3-76b": "llama-3-70b",
    "2.5-1b": "qwen2.5-0.5b", "2.5-2b": _SMALL, "2.5-4b": "qwen2.5-3b", "2.5-8b": "internlm2-7b", "2.5-26b": _TWENTY,
    "2.5-38b": "qwen2.5-32b", "2.5-78b": "qwen2.5-72b",
    "3-1b": "qwen2.5-0.5b", "3-2b": "qwen2.5-1.5b", "3-8b": "qwen2.5-7b", "3-9b": "internlm3-8b",
    "3-14b": "qwen2.5-14b", "3-38b": "qwen2.5-32b", "3-78b": "qwen2.5-72b",
    "3.5-1b": "qwen3-0.6b", "3.5-2b": "qwen3-1.7b", "3.5-4b": "qwen3-4b", "3.5-8b": "qwen3-8b",
    "3.5-14b": "qwen3-14b", "3.5-30b-a3b": "qwen3-30b-a3b", "3.5-38b": "qwen3-32b",
}  # fmt: skip
"""Version and size: a preset, or a config."""
VOCABULARY = {"internlm2-7b": 92553} | dict.fromkeys(
    (f"qwen2.5-{size}b" for size in ("0.5", "1.5", "3", "7", "14", "32", "72")), 151674
)
"""Rows that their embedding has, with the words that InternVL adds: the counts of InternVL2.5's checkpoints are then
those that the Hub has of each (floschne/gimmick: get_model_sizes)."""
LARGE = ("26b", "38b", "40b", "78b", "76b")
"""Sizes with InternViT of 6 billion parameters; the others have that of 300 million."""
_EITHER = {"model_type": "internvl_vision", "image_size": [448, 448], "patch_size": [14, 14]}
_VIT = _EITHER | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                  "attention_bias": True, "use_qk_norm": False, "norm_type": "layer_norm"}  # fmt: skip
_VIT_6B = _EITHER | {"hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 45,
                     "num_attention_heads": 25, "attention_bias": False, "use_qk_norm": True,
                     "norm_type": "rms_norm"}  # fmt: skip
_NAME = re.compile(
    r"internvl(2|3)(?:[_.](5))?-((?:llama3-)?\d+b(?:-a\d+b)?)(?:[-_](?:mpo|instruct|pretrained|hf))*", re.I
)


def internvl_of(name: str) -> dict[str, Any] | None:
    """The config of the model of this name, in transformers' words; None for another's."""
    match = _NAME.fullmatch(name.rstrip("/").rpartition("/")[2])
    size = match[3].lower() if match else ""
    said = LANGUAGE.get(f"{match[1]}{'.5' if match[2] else ''}-{size}") if match else None
    preset = find_preset(said) if isinstance(said, str) else None
    words = {"vocab_size": VOCABULARY[said]} if isinstance(said, str) and said in VOCABULARY else {}
    text = said if isinstance(said, dict) else dict(preset["config"]) if preset else None
    if text is None:
        return None
    return {
        "_name_or_path": name.rstrip("/").rpartition("/")[2],
        "model_type": "internvl",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,  # of the small ones too: InternVL2-1B has 938 million parameters
        "downsample_ratio": 0.5,
        "text_config": text | words | {"tie_word_embeddings": False},
        "vision_config": _VIT_6B if size.rpartition("-")[2] in LARGE else _VIT,
    }
