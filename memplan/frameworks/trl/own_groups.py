"""GRPO over images in trainers of their own, made of TRL 0.14's: R1-V, VLM-R1, Video-R1, Visual-RFT and their copies.

Source: StarsfieldAI/R1-V, om-ai-lab/VLM-R1, tulerfeng/Video-R1 src/open_r1/trainer/grpo_trainer.py: ``compute_loss``
makes all answers to one prompt, scores them in one forward, and takes the log-softmax of every token's logits."""

import re

from memplan.frameworks.base import ASSUMED, Keys, Origin
from memplan.frameworks.draft import Draft
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.hugging_face.dialect_vision import SEES

PIXELS = ("max_pixels", "min_pixels", "max_anyres_num")
OF_ROWS = ("image_max_pixels", "image_min_pixels", "image_resized_width")
"""2U1/Qwen-VL-Series-Finetune src/trainer/grpo_trainer.py, which pins TRL 0.17: rows are answers, as TRL's are."""
OF_VLM_R1 = ("image_root", "image_folders", "data_file_paths", "is_reward_customized_from_vlm_module")
"""Arguments of om-ai-lab/VLM-R1's program, whose setup.py (2025) pins TRL 0.17."""
PROGRAM = re.compile(r"(^|/)open_r1/\w*grpo\w*\.py$")
"""huggingface/open-r1's own, which the copies keep the name of, trains models of text alone."""


def of_images(settings: Settings, draft: Draft, program: str) -> str:
    """The argument that no program of TRL's has, or that names a model with images; the version it is counted in is put
    into the draft. Empty for any other."""
    if "program" in draft.facts or program == "trl":
        return ""
    said = [key for key in (*OF_VLM_R1, *PIXELS, *OF_ROWS) if key in settings.values]
    model = str(settings.values.get("model_name_or_path") or "")
    sign = said[0] if said else "model_name_or_path" if PROGRAM.search(program) and SEES.search(model) else ""
    if sign and not draft.options.get("trainer_version"):
        version = "0.15" if sign in (*PIXELS, "model_name_or_path") else "0.17"
        draft.options = {"trainer_version": version, **draft.options}
        draft.put("trainer_version", version, Origin(ASSUMED, f"{settings.where(sign)}: GRPO over images of its own"))
    return sign


def count_group(keys: Keys, sign: str) -> None:
    """All answers to each prompt at once, and logits of the prompt too. More rows than one are answers where VLM-R1's
    sampler repeats prompts; they are prompts in R1-V and its copies."""
    keys.skip(*OF_VLM_R1, *PIXELS, "task_type", "reward_method", "val_split_ratio")
    draft, group, path = keys.draft, keys.whole("num_generations", 8), keys.settings.path
    if sign not in OF_ROWS and (draft.said.get("batch_size", 1) == 1 or sign not in OF_VLM_R1):
        every_answer(path, group, draft)
    every_token(path, draft)
    rows = draft.said.get("batch_size", 1)
    why = f"GRPO over images of the program's own: {rows} answers at once and every token's logits are counted"
    draft.bound(sign, keys.settings.where(sign), why, "batch")


def every_answer(where: str, size: int, draft: Draft) -> None:
    """A row of the batch is a prompt, whose answers are trained at once."""
    rows = draft.said.get("batch_size") or 1
    if isinstance(rows, int) and "batch_size" not in draft.given:
        draft.values["batch_size"] = rows * size
        draft.origins["batch_size"] = Origin(ASSUMED, f"{where}: a prompt's {size} answers at once")


def every_token(where: str, draft: Draft) -> None:
    """Logits of the prompt too."""
    length = draft.said.get("sequence_length")
    if length and "completion_length" not in draft.given:
        draft.values["completion_length"] = int(length)
        draft.origins["completion_length"] = Origin(ASSUMED, f"{where}: every token's logits are made")
