"""Images and videos of which no file says how large they are: as many as the sequence holds, said aloud."""

import math
from typing import Any

from memplan.frameworks.common.local_models import within
from memplan.frameworks.draft import ASSUMED, Draft, Origin
from memplan.frameworks.hugging_face.towers import reads_text_alone
from memplan.models import load_model
from memplan.presets import find_preset
from memplan.units import ceil_div

IMAGES = "images"
"""What is settled after all else (``Draft.finishers``)."""
PACKED = "token_budget"
ONLINE = ("grpo", "rloo", "ppo", "online-dpo")

TEXT = 8
"""Tokens of a sequence that no image takes, at least."""


BREAKS = 2
"""Of the text, around an image that has no more than its own tokens (``resolve.image_cuts.slots``)."""
SIDE = 14 * 2
"""Pixels of a side of a token: InternVL's and Qwen2-VL's towers cut patches of 14 and merge two by two."""


def room_of(draft: Draft) -> int:
    """Tokens of a sequence that images may take; as many as anybody likes where no length is known."""
    length = draft.now("sequence_length")
    return int(length) - TEXT if length else 10**6


def one_of_area(draft: Draft, pixels: int) -> dict[str, Any]:
    """One square image of so many pixels, as far as the sequence holds it."""
    edge = max(1, int(math.sqrt(min(pixels, max(1, room_of(draft)) * SIDE**2)) / SIDE)) * SIDE
    return {"per_example": 1, "width": edge, "height": edge}


def _room(draft: Draft) -> int:
    """Tokens of a sequence that an image may stand in: of an online method's those of the prompt."""
    said = draft.said
    length, completion = int(said.get("sequence_length") or 0), int(said.get("completion_length") or 0)
    return length - completion if said.get("method") in ONLINE and 0 < completion < length else length


def fill_packed(where: str, key: str, megatron: bool, draft: Draft) -> None:
    """``fill_with_images`` where nothing said it by now; of a packed row whole sequences are counted: no less."""
    model = draft.now("model")
    if reads_text_alone(model):
        return
    if megatron and draft.now("lora"):
        draft.warn(key, where, "if it is trained on images, these are not counted", "lengths")
        return
    if "images" not in draft.values:
        fill_with_images(draft, where, key)
    seen = "images" in draft.values or "images" in draft.given
    length = int(draft.now("sequence_length") or 0)
    if not seen or PACKED not in draft.values or PACKED in draft.given or not length:
        return
    own, budget = int(draft.values.get("batch_size") or 0), int(draft.values[PACKED])
    rows = max(ceil_div(budget, length), own)
    why = f"{draft.origins[PACKED].text}: rows of up to {budget} tokens"
    draft.forget(PACKED)
    draft.origins.pop("batch_size", None)
    draft.put("batch_size", rows, Origin(ASSUMED, f"{why} are counted as {rows} sequences of {length}"))
    why = f"packed rows with images are counted as {rows} whole sequences"
    draft.bound(PACKED, where, why, "batch", "" if own else "batch_size")


CANVAS = 10**4
"""Pixels of a side that every canvas of tiles is full of."""


def _filling(model: object, room: int) -> dict[str, Any]:
    """So many tokens of images: of one, but where the model's processor lets none have as many."""
    name = model.rpartition("/")[2] if isinstance(model, str) else ""
    preset = find_preset(name) or (within(name) if name else None)
    tower = load_model(str(preset["name"])).tower if preset and "vision_config" in preset["config"] else None
    if tower and tower.rule.kind == "canvas":
        return {"per_example": 1, "width": CANVAS, "height": CANVAS}
    most = tower.rule.max_tiles if tower and tower.rule.kind == "budget" else room
    return {"per_example": max(1, room // (most + BREAKS)), "tokens": min(most, room)}


def fill_with_images(draft: Draft, where: str, key: str) -> None:
    """Images that fill each sequence: what a tower sees of more images, or of a video, is no more.

    Their tokens stand in the sequence, one a patch, or square of them. Without a length they are asked for."""
    if "images" in draft.given:
        return
    length = _room(draft)
    unknown = (
        any(each.asks == "sequence_length" and not each.above for each in draft.unread)
        and "sequence_length" not in draft.given
    )
    if length <= TEXT or unknown:
        what = "how many images an example has, and how large"
        hint = "add --set images.per_example=1 --set images.width=448 --set images.height=448"
        draft.ask("images", where, what, hint)
        return
    why = "nothing says how many images an example has: as many as the sequence holds"
    draft.put("images", _filling(draft.now("model"), length - TEXT), Origin(ASSUMED, f"{where}: {why}"))
    why = f"images are counted as many as fill the sequence of {length} tokens"
    hint = "add --set images.per_example=1 --set images.width=448 --set images.height=448, or --set images=null"
    draft.bound(key, where, why, "lengths", "images", hint)
