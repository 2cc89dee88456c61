"""Vision-language models: a language model of any described type with a vision tower and a projector in front.

The language model is described by its own family, from ``text_config`` (or, in older files, from the keys beside
``vision_config``); this file adds the tower. Defaults are those of transformers 5.23: a missing ``text_config`` or
``vision_config`` takes what the outer class gives it, a missing key within one takes the default of its own class."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple

from memplan.arch.config import CLASSES, Config, shown
from memplan.arch.llama_like import FROM_REMOTE
from memplan.arch.projectors import PROJECTORS
from memplan.errors import ModelError, UnknownArchitecture
from memplan.spec.model import ModelSpec

Texts = Mapping[str, Callable[[Config], ModelSpec]]
NOTHING: Mapping[str, object] = {}


class VisionFamily(NamedTuple):
    """What the class of one model_type puts together."""

    model_type: str
    text: str
    """model_type of the language model where text_config names none."""
    any_text: bool = True
    """text_config may name another type (``AutoModel``); false where the class builds one type only."""
    tied: bool = False
    """The default of the outer tie_word_embeddings, which decides."""
    ties: Literal["outer", "either", "text", "never"] = "outer"
    """Whose tie_word_embeddings ties the head: the outer config's, either one's, the language model's own (which keeps
    its head inside), or nobody's."""
    classifies: bool = False
    """transformers has a sequence-classification class of this type."""
    flat: bool = False
    """Older files hold the language model's keys beside vision_config."""
    text_sets: Mapping[str, object] = NOTHING
    """What the class itself puts into the language model's config, so that a config it saved says it too."""


ROWS = (
    VisionFamily("llava", "llama", ties="either"),
    VisionFamily("llava_next", "llama"),
    VisionFamily("llava_onevision", "qwen2", ties="either"),
    VisionFamily("gemma3", "gemma3_text", any_text=False, tied=True, classifies=True),
    VisionFamily("paligemma", "gemma", tied=True, text_sets={"use_bidirectional_attention": True}),
    VisionFamily("qwen2_vl", "qwen2_vl_text", any_text=False, ties="either", flat=True),
    VisionFamily("qwen2_5_vl", "qwen2_5_vl_text", any_text=False, ties="either", flat=True),
    VisionFamily("qwen3_vl", "qwen3_vl_text", any_text=False),
    VisionFamily("qwen3_vl_moe", "qwen3_vl_moe_text", any_text=False),
    VisionFamily("qwen3_5", "qwen3_5_text", any_text=False, classifies=True),
    VisionFamily("qwen3_5_moe", "qwen3_5_moe_text", any_text=False),
    VisionFamily("glm4v", "glm4v_text", any_text=False, ties="either"),
    VisionFamily("glm4v_moe", "glm4v_moe_text", any_text=False, ties="either"),
    VisionFamily("glm46v", "glm4v_text"),
    VisionFamily("llama4", "llama4_text", any_text=False, ties="text"),
    VisionFamily("mllama", "mllama_text_model", any_text=False, ties="never"),
    VisionFamily("idefics2", "mistral"),
    VisionFamily("idefics3", "llama"),
    VisionFamily("smolvlm", "llama"),
    VisionFamily("internvl", "qwen2", tied=True),
    VisionFamily("mistral3", "mistral", tied=True),
    VisionFamily("kimi_k25", "deepseek_v3", tied=True),
)
OUTER_KEYS = ("architectures", "vision_config", "text_config", "model_type", "auto_map", "quantization_config")


def families(texts: Texts) -> dict[str, Callable[[Config], ModelSpec]]:
    """A parser for each vision-language type, whose language models are looked up in ``texts``."""
    made: dict[str, Callable[[Config], ModelSpec]] = {row.model_type: partial(build, row, texts) for row in ROWS}
    return made | {"internvl_chat": partial(chat, texts)}


CHAT_NAMES = {"llm_config": "text_config", "select_layer": "vision_feature_layer"}
VIT_NAMES = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}


def chat(texts: Texts, raw: Config) -> ModelSpec:
    """InternVL as its repositories before ``-hf`` have it, with code of their own (OpenGVLab/InternVL
    internvl_chat/internvl/model/internvl_chat: configuration_internvl_chat.py, configuration_intern_vit.py): the same
    parts under other names, the head tied where llm_config says so."""
    raw.model_type = "internvl_chat"
    text, vision = section(raw, "llm_config"), section(raw, "vision_config")
    if text is None or vision is None:
        raise raw.wrong("llm_config" if text is None else "vision_config", "an object", None)
    keys: dict[str, object] = {CHAT_NAMES.get(key, key): raw.keys[key] for key in raw.keys if key != "auto_map"}
    keys["tie_word_embeddings"] = text.get("tie_word_embeddings", False)
    renamed = {VIT_NAMES.get(key, key): value for key, value in vision.items()}
    keys["vision_config"] = renamed | {"model_type": "internvl_vision"}
    found = build(next(row for row in ROWS if row.model_type == "internvl"), texts, Config(keys, raw.name, raw.source))
    return found.but(notes=(*found.notes, FROM_REMOTE.format("InternVL", "InternVL")))


def initial(family: VisionFamily, section: str) -> Mapping[str, object]:
    """The keys that the class takes where its config has no such section."""
    return CLASSES.get(f"{family.model_type} {section}", {})


def build(family: VisionFamily, texts: Texts, raw: Config) -> ModelSpec:
    """The spec of a config that names this type."""
    raw.model_type = family.model_type
    text_keys, vision_keys = section(raw, "text_config"), section(raw, "vision_config")
    text = language_model(family, texts, raw, text_keys)
    vision = Config(initial(family, "vision_config") if vision_keys is None else vision_keys, raw.name, raw.source)
    outer = raw.with_defaults(family.model_type)
    tower, patch = PROJECTORS[family.model_type](outer, vision, text)
    dtype, quantization = outer.dtype(), outer.quantization()
    notes = [*outer.notes, *text.notes, *vision.notes]
    return text.model_copy(
        update={
            "family": family.model_type,
            "tied": ties(family, raw, text),
            "classifies": family.classifies,
            "tower": tower,
            "dtype": dtype or text.dtype,
            "quantization": quantization or text.quantization,
            "notes": tuple(dict.fromkeys(notes)),
            **patch,
        }
    )


def section(raw: Config, key: str) -> Mapping[str, object] | None:
    """A nested config; None where it is missing or null."""
    value = raw.keys.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise raw.wrong(key, "an object", value)
    return value


def language_model(family: VisionFamily, texts: Texts, raw: Config, keys: Mapping[str, object] | None) -> ModelSpec:
    """The language model, as the family of its type describes it."""
    if keys is None:
        flat = {key: value for key, value in raw.keys.items() if key not in OUTER_KEYS}
        keys = flat if family.flat else initial(family, "text_config")
    keys = {key: value for key, value in keys.items() if family.text_sets.get(key, NOTHING) != value}
    model_type = keys.get("model_type", family.text) if family.any_text else family.text
    if family.model_type == "kimi_k25" and model_type == "kimi_k2":
        model_type = "deepseek_v3"
    if not isinstance(model_type, str) or model_type not in texts:
        raise UnknownArchitecture(
            f"the language model of {raw.name} is a {shown(model_type)}, which memplan does not describe",
            "use a preset of the same shape, or --total-params for a generic one",
        )
    spec = texts[model_type](Config(keys, raw.name, raw.source))
    if spec.tower is not None:
        raise ModelError(f"text_config of {raw.name} is itself a vision-language model", "name a language model")
    return spec


def ties(family: VisionFamily, raw: Config, text: ModelSpec) -> bool:
    """Whether the head is the embedding's tensor."""
    value = raw.keys.get("tie_word_embeddings", family.tied)
    if not isinstance(value, bool):
        raise raw.wrong("tie_word_embeddings", "true or false", value)
    return {"outer": value, "either": value or text.tied, "text": text.tied, "never": False}[family.ties]
