"""Models that a file names by a folder of another machine: known by the folder's name, said aloud, or asked for."""

import os
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from memplan.frameworks.documents import words
from memplan.frameworks.draft import ASSUMED, Draft, NotKnown, Origin
from memplan.frameworks.hf_internvl import internvl_of
from memplan.presets import every_model, find_preset, hub_ids, last_part

_LOCAL = re.compile(r"^(~|\.{0,2}/|[A-Za-z]:\\)|^[^/]+/[^/]+/.|^s3:|^gs:|^hdfs:")
"""Not as the Hub's ids are: owner/name."""
_CACHED = re.compile(r"models--[^-/]+(?:-[^-/]+)*--([\w.-]+)")
"""A folder of the Hub's own cache."""
TUNED = re.compile(r"-(instruct|chat|base|it|hf)(-hf)?$", re.IGNORECASE)
"""What a name says of how a model was tuned, which its shape does not depend on."""


def is_folder(name: str) -> bool:
    """Whether a model's name is a folder of a machine rather than one of the Hub's."""
    return _LOCAL.search(name) is not None


def settle_model(draft: Draft, options: Mapping[str, Any]) -> None:
    """Take a folder that is not here for the model of its name. Raises NotKnown where that is nobody's."""
    name = draft.values.get("model")
    if "model" in options or not isinstance(name, str):
        return
    pair = internvl_of(name) if find_preset(name.rpartition("/")[2]) is None else None
    if pair is not None:
        said = draft.origins["model"].text if "model" in draft.origins else "the file"
        draft.values["model"], why = pair, "by its name, of a tower and a language model that are known"
        draft.origins["model"] = Origin(ASSUMED, f"{said}: {name[:80]} is put together {why}")
        return
    if not is_folder(name):
        return
    if os.path.exists(os.path.expanduser(name)):
        return
    cached = _CACHED.search(name)
    parts = [part.replace("___", ".") for part in re.split(r"[/\\]", name.strip("/\\"))]  # ModelScope's dots
    last = cached.group(1) if cached else parts[-1]
    preset, origin = find_preset(last) or find_preset(TUNED.sub("", last)), draft.origins.get("model")
    said = origin.text if origin is not None else "the file"
    hub, how = preset["hub_id"] if preset is not None else _of_owner(parts), "has its name"
    if not hub and (known := within(name)) is not None:
        hub, how = known["hub_id"], "its name holds that of a model"
    if not hub:
        raise NotKnown(
            f"{said}: {name[:80]} is not here, and memplan knows no model by its name",
            "add --model, such as --model Qwen/Qwen2.5-7B",
        )
    draft.values["model"] = hub
    draft.origins["model"] = Origin(ASSUMED, f"{said}: {name[:80]} is not here, and {how}")


def _of_owner(parts: list[str]) -> str:
    """The Hub's name of a folder that lies in one of its owner's: ``/models/deepseek-ai/deepseek-llm-7b-chat``."""
    owners = {hub_id.partition("/")[0] for each in every_model() for hub_id in hub_ids(each)}
    owner = next((each for each in owners if len(parts) > 1 and each.casefold() == parts[-2].casefold()), "")
    return f"{owner}/{parts[-1]}" if owner else ""


TURNED = words(
    """awq gptq int4 int8 bnb fp8 nf4 gguf quantized quantised 4bit 8bit reward rm eagle medusa draft pruned prune
    distill distilled distillation moe upcycled merged expanded vocab vl vlm mllm mm omni audio speech vision visual
    video image llava clip siglip internvl minicpm"""
)
"""Words beside a model's name by which a checkpoint may be another's shape."""


def within(path: str) -> dict[str, Any] | None:
    """The one preset whose name stands in a path, nearest to its end: ``output/qwen2_5-7b-mine/checkpoint-400``.

    None where two names stand beside each other, or words of another size or shape.
    """
    for folder in reversed([part for part in path.split("/") if part][-4:]):
        parts = _words(folder)
        found = {name: place for name in _names() if (place := _place(name, parts)) is not None}
        longest = max(found, key=len, default=None)
        if longest is None:
            continue
        start, end = found[longest], found[longest] + len(longest)
        inside = all(start <= place and place + len(name) <= end for name, place in found.items())
        rest = [*parts[:start], "", *parts[end:]]
        sized = any(word.isdigit() and after == "b" for word, after in pairwise(rest))
        return None if sized or not inside or TURNED.intersection(rest) else find_preset(_names()[longest])
    return None


def _words(name: str) -> tuple[str, ...]:
    """Runs of letters and of digits; a version's v is left out."""
    found = re.findall(r"[a-z]+|\d+", name.casefold())
    pairs = zip(found, [*found, ""][1:], strict=True)
    return tuple(word for word, after in pairs if not (word == "v" and after.isdigit()))


def _place(name: tuple[str, ...], parts: tuple[str, ...]) -> int | None:
    """Where a name's words stand in others, one after the other."""
    width = len(name)
    return next((at for at in range(len(parts) - width + 1) if parts[at : at + width] == name), None)


@cache
def _names() -> dict[tuple[str, ...], str]:
    """Names of presets and of the Hub's repositories that tell a family and a size, by their words."""
    found = {}
    for preset in every_model():
        for name in (str(preset["name"]), *map(last_part, hub_ids(preset))):
            parts = _words(name)
            if len(parts) > 2 and "b" in parts:
                found[parts] = str(preset["name"])
    return found
