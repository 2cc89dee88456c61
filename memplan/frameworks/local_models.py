"""Models that a file names by a folder of another machine: known by the folder's name, said aloud, or asked for."""

import os
import re
from collections.abc import Mapping
from typing import Any

from memplan.frameworks.draft import ASSUMED, Draft, NotKnown, Origin
from memplan.presets import find_preset

_LOCAL = re.compile(r"^(~|\.{0,2}/|[A-Za-z]:\\)|^[^/]+/[^/]+/.|^s3:|^gs:|^hdfs:")
"""Not as the Hub's ids are: owner/name."""
_CACHED = re.compile(r"models--[^-/]+(?:-[^-/]+)*--([\w.-]+)")
"""A folder of the Hub's own cache."""
TUNED = re.compile(r"-(instruct|chat|base|it|hf)(-hf)?$", re.IGNORECASE)
"""What a name says of how a model was tuned, which its shape does not depend on."""


def settle_model(draft: Draft, options: Mapping[str, Any]) -> None:
    """Take a folder that is not here for the model of its name. Raises NotKnown where that is nobody's."""
    name = draft.values.get("model")
    if "model" in options or not isinstance(name, str) or not _LOCAL.search(name):
        return
    if os.path.exists(os.path.expanduser(name)):
        return
    cached = _CACHED.search(name)
    last = (cached.group(1) if cached else re.split(r"[/\\]", name.rstrip("/\\"))[-1]).replace("___", ".")  # ModelScope's
    preset, origin = find_preset(last) or find_preset(TUNED.sub("", last)), draft.origins.get("model")
    said = origin.text if origin is not None else "the file"
    if preset is None:
        raise NotKnown(
            f"{said}: {name[:80]} is not here, and memplan knows no model by its name",
            "add --model, such as --model Qwen/Qwen2.5-7B",
        )
    draft.values["model"] = preset["hub_id"]
    draft.origins["model"] = Origin(ASSUMED, f"{said}: {name[:80]} is not here, and has its name")
