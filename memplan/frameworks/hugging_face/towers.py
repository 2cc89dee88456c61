"""A language model and a vision tower that a script puts together, as LLaVA does: a config of both; and
InternVL's chat models by their names.

Source: haotian-liu/LLaVA llava/model/llava_arch.py, multimodal_projector/builder.py, multimodal_encoder/clip_encoder.py
and LLaVA-VL/LLaVA-NeXT siglip_encoder.py (which takes the last layer away); the towers' configs on the Hub;
OpenGVLab/InternVL README.md (the table of models), internvl_chat/internvl/model/internvl_chat/
configuration_intern_vit.py, and the configs of the towers and of InternLM2 on the Hub."""

import re
from typing import Any

from memplan.presets import find_preset
from memplan.tables.texts import parts_of, rows_of, settings_by_name, settings_in, settings_over
from memplan.units import pairs_of

_PARTS = parts_of(__file__)
CONFIGS = settings_by_name(_PARTS["configs"])
TOWERS = {end: settings_over(text, CONFIGS) for end, text in rows_of(_PARTS["towers"]).items()}
"""Known towers by how their names end."""
SAME_SHAPE = rows_of(_PARTS["same-shape"])
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
    known = next((int(config["image_size"]) for end, config in TOWERS.items() if re.search(end, tower)), 0)
    said = re.search(r"[-_](\d{3})(px)?(\D|$)", tower)
    return known or (int(said[1]) if said else 0)


def together(language_model: str, tower: str, projector: str) -> dict[str, Any] | None:
    """A config of both behind LLaVA's projector; None where one of them is not known."""
    vision = next((config for end, config in TOWERS.items() if re.search(end, tower)), None)
    last = language_model.rstrip("/").rpartition("/")[2]
    alias = next((name for pattern, name in SAME_SHAPE.items() if re.match(pattern, last)), last)
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


LANGUAGE = pairs_of(_PARTS["language"])
"""Version and size: a preset, or a config."""
VOCABULARY: dict[str, int] = settings_in(_PARTS["vocabulary"])
"""Rows that their embedding has, with the words that InternVL adds: the counts of InternVL2.5's checkpoints are then
those that the Hub has of each (floschne/gimmick: get_model_sizes)."""
LARGE = ("26b", "38b", "40b", "78b", "76b")
"""Sizes with InternViT of 6 billion parameters; the others have that of 300 million."""
_NAME = re.compile(
    r"internvl(2|3)(?:[_.](5))?-((?:llama3-)?\d+b(?:-a\d+b)?)(?:[-_](?:mpo|instruct|pretrained|hf))*", re.I
)


def internvl_of(name: str) -> dict[str, Any] | None:
    """The config of the model of this name, in transformers' words; None for another's."""
    match = _NAME.fullmatch(name.rstrip("/").rpartition("/")[2])
    size = match[3].lower() if match else ""
    said = LANGUAGE.get(f"{match[1]}{'.5' if match[2] else ''}-{size}") if match else None
    preset = find_preset(said) if said is not None and said not in CONFIGS else None
    if said is None or (preset is None and said not in CONFIGS):
        return None
    words = {"vocab_size": VOCABULARY[said]} if said in VOCABULARY else {}
    text = dict(preset["config"]) if preset else CONFIGS[said]
    return {
        "_name_or_path": name.rstrip("/").rpartition("/")[2],
        "model_type": "internvl",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,  # of the small ones too: InternVL2-1B has 938 million parameters
        "downsample_ratio": 0.5,
        "text_config": text | words | {"tie_word_embeddings": False},
        "vision_config": CONFIGS["vit-6b" if size.rpartition("-")[2] in LARGE else "vit"],
    }
