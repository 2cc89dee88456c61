"""verl's own settings by name: those that it has, and which of them bear on the update's memory.

Names alone, of verl 0.2 to 0.9: trainer/config/*.yaml with every engine. A setting that is in no list here is warned
about, so that a slip of the pen is noticed and what a new version adds is."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from memplan.tables.texts import words_by_part

_INNER = r"(?:fsdp_config|fsdp|engine|megatron|veomni|torchtitan|automodel|mindspeed)"
_ENGINE = re.compile(rf"(?:(?:actor|ref|critic)\.)?(?:model\.)?{_INNER}\.(.+)")
_OPTIM = re.compile(r"(?:(?:actor|critic)\.)?(?:fsdp_config\.)?optim\.(.+)")
_MODEL = re.compile(r"(?:critic\.)?model\.(.+)")
_QUIET = re.compile(
    r"""(?:reward|reward_model|custom_reward_function|distillation|transfer_queue|skip|ray_kwargs|ray_init
    |global_profiler|sandbox_fusion|hydra|rollout|env|reward_manager|async_training|model_engine)\b.*
    |(?:.*\.)?(?:profiler|profile|npu_profile|checkpoint|global_profiler|\w+_nsight_options|layer_name_map|turbo_config
    |backend_config|moe_config|\w+_kwargs)(?:\..*)?
    |actor_rollout_ref\.(?:hybrid_engine|nccl_timeout)|.*\._target_""",
    re.VERBOSE,
)
"""Groups that the update's memory does not feel: scores, logs, checkpoints, what generates, data loaders."""
_CHANGES = re.compile(r"(?:.*\.)?override_(?:\w+_)?config(?:\.(.+))?")
NAMES: dict[str, frozenset[str]] = words_by_part(__file__)
"""Group -> its names: the critic's model is a model, any engine's section an engine. Behind ``bearing`` those that bear
on what is trained, and are not understood unless a reader takes them; ``changes``: of ``override_config`` and its like,
what changes no shape."""


def place(key: str) -> tuple[str, str]:
    """Group and name of a dotted key: ('engine', 'fsdp_size') of actor_rollout_ref.actor.fsdp_config.fsdp_size."""
    short = key.removeprefix("actor_rollout_ref.")
    for group, pattern in (("engine", _ENGINE), ("optim", _OPTIM), ("model", _MODEL)):
        match = pattern.fullmatch(short)
        if match and not short.startswith("rollout."):
            return group, match.group(1)
    group, _, name = short.partition(".")
    return group, name


@lru_cache(maxsize=1 << 14)
def sense(key: str) -> str:
    """harmless, bearing or unknown. Of the critic, counted as the policy, nothing bears."""
    if _QUIET.fullmatch(key):
        return "harmless"
    of_others = key.startswith(("critic.", "actor_rollout_ref.ref."))
    change = _CHANGES.fullmatch(key)
    if change:
        name = (change.group(1) or "model_config").rpartition("model_config.")[2]
        return "harmless" if of_others or name in NAMES["changes"] else "bearing"
    group, name = place(key)
    if name not in NAMES.get(group, frozenset()):
        return "unknown"
    return "bearing" if name in NAMES.get(f"bearing {group}", frozenset()) and not of_others else "harmless"


def repeated(values: Mapping[str, Any]) -> set[str]:
    """Names of a file's own whose value a setting of verl's has taken over, however it was put in: ``model_path``
    beside ``actor_rollout_ref.model.path``. Not paths in groups of others, which may be another model's."""
    own = {key: value for key, value in values.items() if sense(key) == "unknown" and value not in (None, "")}
    theirs = [(key, value) for key, value in values.items() if key not in own]
    found = {name for name, value in own.items() if any(each == value and _alike(name, key) for key, each in theirs)}
    return {name for name in found if not re.search(r"\..*path$", name) or name.startswith("actor_rollout_ref.")}


def _alike(name: str, key: str) -> bool:
    same = name.rpartition(".")[2] == key.rpartition(".")[2]
    return same or key.replace(".", "_").endswith(f"_{name.replace('.', '_')}")
