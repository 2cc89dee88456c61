"""ms-swift: images of a sample, as MAX_PIXELS and its kind bound them, or as many as a sequence holds.

Source: ms-swift 4.5 swift/template/templates/qwen.py, swift/arguments/base_args/template_args.py: max_pixels."""

import re
from collections.abc import Mapping

from memplan.frameworks.asking import SEES_TOKENS
from memplan.frameworks.base import Keys
from memplan.frameworks.common.image_bounds import fill_with_images, one_of_area, room_of
from memplan.frameworks.hugging_face.towers import reads_text_alone
from memplan.frameworks.own_words.names import may_see_images


def _limit(keys: Keys) -> int:
    """Images of a prompt that the engine takes: ``vllm_limit_mm_per_prompt '{"image": 7}'``."""
    said = str(keys.settings.values.get("vllm_limit_mm_per_prompt") or "")
    found = re.search(r"image['\"]?\s*[:=]\s*(\d{1,3})", said)
    return max(1, int(found[1])) if found else 1


OWN_TILES = re.compile(r"(?i)internvl|minicpm|llava|gemma|llama|phi|deepseek|idefics|pixtral|mistral")
"""Models whose templates do not read MAX_PIXELS: their processors make tiles by other variables."""


def read_images(keys: Keys, environment: Mapping[str, str], version: str) -> None:
    """One image of a sample, where something bounds it; more in a pack, and of what nothing bounds as many as the
    sequence holds. A tower that rests sees them too. Version 2 cut the text alone, before its images came into it
    (2.4 llm/utils/template.py: Qwen2VLTemplate._encode): they are asked for."""
    model = keys.draft.now("model")
    said = str(keys.get("max_pixels") or "")
    said = said or ("" if OWN_TILES.search(str(model)) else environment.get("MAX_PIXELS", ""))
    tokens = environment.get("IMAGE_MAX_TOKEN_NUM", "")
    keys.skip("max_pixels", "max_image_size")
    draft, name = keys.draft, next((key for key in ("model", "load", "ckpt_dir") if keys.has(key)), "")
    bounded = "max_pixels" if keys.has("max_pixels") else name
    if reads_text_alone(model) and "model" in draft.given and (said or tokens):
        keys.warn(bounded, "the model that is given sees no images", "model", SEES_TOKENS)
    if "images" in draft.given or "images" in draft.values or reads_text_alone(model):
        return
    if not (said or tokens or may_see_images(model)):
        return
    where = keys.settings.where(bounded)
    if version.startswith("2") and not said.isdigit():
        hint = "add --set images.per_example=1 --set images.width=448 --set images.height=448"
        draft.ask("images", where, "images stand in the sequence beyond max_length, and nothing bounds them", hint)
    elif keys.flag("packing") or not (said.isdigit() or tokens.isdigit()):
        fill_with_images(draft, where, "max_pixels" if keys.has("max_pixels") else name or "model")
    elif said.isdigit():
        room = min(room_of(draft), keys.whole("vllm_max_model_len") or room_of(draft))
        count = min(_limit(keys), max(1, room * 28 * 28 // max(1, int(said))))
        found, many = one_of_area(draft, int(said)), f"{count} images" if count > 1 else "one image"
        keys.assume("images", found | {"per_example": count}, f"{where}: {many} a sample, of {said} pixels")
    else:
        found = {"per_example": 1, "tokens": min(int(tokens), room_of(draft))}
        keys.assume("images", found, f"{where}: one image a sample, of {tokens} tokens")
