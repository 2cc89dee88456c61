"""A reward model beside verl's policy: an engine of its own on the trainer's cards, or GPUs of its own.

Source: verl 0.7 and later trainer/config/reward_model/dp_reward_loop.yaml, experimental/reward_loop/
reward_model.py: it sleeps but while completions are scored. Older ones wrap it in FSDP, which is not counted.
"""

from __future__ import annotations

from typing import Any

from memplan.frameworks.base import FILE, Keys, Origin
from memplan.frameworks.verl_rollout import FIELDS, SHARE

PLACES = ("reward_model.", "reward.reward_model.")
USUAL: dict[str, Any] = {
    "gpu_memory_utilization": 0.5,
    "tensor_parallel": 2,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 1024,
    "enforce_eager": True,
    "dtype": "bf16",
}
"""Its rollout's defaults, which are not the policy's."""


def read_reward(keys: Keys) -> None:
    """The engine that the file describes; what is no engine is told."""
    for at in (each for each in PLACES if keys.flag(f"{each}enable")):
        name = (keys.text(f"{at}rollout.name") or "").lower()
        if keys.flag(f"{at}enable_resource_pool"):
            where = keys.settings.where(f"{at}enable_resource_pool")
            keys.draft.remarks.append(f"{where}: the reward model has GPUs of its own, beside those that train")
        elif name not in SHARE or keys.flag(f"{at}use_reward_loop") is False or not keys.text(f"{at}model.path"):
            keys.warn(f"{at}enable", "the model that scores or teaches is not counted", "model")
        elif "extra_models" not in keys.draft.given:
            said = {
                "role": "reward",
                "model": keys.text(f"{at}model.path"),
                "rollout": _engine(keys, f"{at}rollout.", name),
            }
            keys.draft.values["extra_models"] = [*keys.draft.values.get("extra_models", ()), said]
            origin = Origin(FILE, keys.settings.where(f"{at}enable"))
            keys.draft.origins.setdefault("extra_models", origin)


def _engine(keys: Keys, at: str, name: str) -> dict[str, Any]:
    """Keys of ``rollout``. Where no length is said, prompt and response together."""
    found: dict[str, Any] = {"engine": name} | USUAL
    found[SHARE[name]] = found.pop("gpu_memory_utilization")
    for key, inner in (FIELDS | {"gpu_memory_utilization": SHARE[name]}).items():
        value = keys.get(f"{at}{key}")
        if value is not None and value != "auto":
            found[inner] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(str(value), value)
    lengths = [keys.whole(f"{at}{part}_length") or 2048 for part in ("prompt", "response")]
    found.setdefault("max_model_len", sum(lengths))
    if keys.flag(f"{at}free_cache_engine") is False:
        found["sleep"] = "none"
    return found
