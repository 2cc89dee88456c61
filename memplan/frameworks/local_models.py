"""Models that a file names by a folder of another machine: known by the folder's name, said aloud, or asked for."""

import os
import re
from collections.abc import Mapping
from typing import Any

from memplan.frameworks.draft import ASSUMED, Draft, NotKnown, Origin
from memplan.presets import every_model, find_preset, hub_ids

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
    if "model" in options or not isinstance(name, str) or not is_folder(name):
        return
    if os.path.exists(os.path.expanduser(name)):
        return
    cached = _CACHED.search(name)
    parts = [part.replace("___", ".") for part in re.split(r"[/\\]", name.strip("/\\"))]  # ModelScope's dots
    last = cached.group(1) if cached else parts[-1]
    preset, origin = find_preset(last) or find_preset(TUNED.sub("", last)), draft.origins.get("model")
    said = origin.text if origin is not None else "the file"
    hub = preset["hub_id"] if preset is not None else _of_owner(parts)
    if not hub:
        raise NotKnown(
            f"{said}: {name[:80]} is not here, and memplan knows no model by its name",
            "add --model, such as --model Qwen/Qwen2.5-7B",
        )
    draft.values["model"] = hub
    draft.origins["model"] = Origin(ASSUMED, f"{said}: {name[:80]} is not here, and has its name")


def _of_owner(parts: list[str]) -> str:
    """The Hub's name of a folder that lies in one of its owner's: ``/models/deepseek-ai/deepseek-llm-7b-chat``."""
    owners = {hub_id.partition("/")[0] for each in every_model() for hub_id in hub_ids(each)}
    owner = next((each for each in owners if len(parts) > 1 and each.casefold() == parts[-2].casefold()), "")
    return f"{owner}/{parts[-1]}" if owner else ""
