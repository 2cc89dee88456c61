"""A reward model beside verl's policy: an engine of its own on the trainer's cards, or GPUs of its own.

Source: verl 0.7 and later trainer/config/reward_model/dp_reward_loop.yaml, experimental/reward_loop/
reward_model.py: it sleeps but while completions are scored. Older ones wrap it in FSDP, in bf16 and on the host
whatever the settings say (workers/fsdp_workers.py: RewardModelWorker, ``CPUOffload(offload_params=True)``), up to 0.2
where ``model.fsdp_config.param_offload`` says so."""

from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks.base import FILE, Keys, Origin
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.keys import ACTOR
from memplan.frameworks.verl.rollout import FIELDS, SHARE
from memplan.models import load_model
from memplan.tables.texts import settings_in
from memplan.tables.trainer import version_key

PLACES = ("reward_model.", "reward.reward_model.")
USUAL: dict[str, Any] = settings_in(
    """gpu_memory_utilization=0.5 tensor_parallel=2 max_num_batched_tokens=8192 max_num_seqs=1024 enforce_eager=true
    dtype=bf16"""
)
"""Its rollout's defaults, which are not the policy's."""


def read_reward(keys: Keys, tokens: int) -> None:
    """The engine that the file describes; what is no engine is told. ``tokens``: of the update's micro-batch."""
    for at in (each for each in PLACES if keys.flag(f"{each}enable")):
        name = (keys.text(f"{at}rollout.name") or "").lower()
        if keys.flag(f"{at}enable_resource_pool"):
            where = keys.settings.where(f"{at}enable_resource_pool")
            keys.draft.remarks.append(f"{where}: the reward model has GPUs of its own, beside those that train")
        elif name not in SHARE or keys.flag(f"{at}use_reward_loop") is False or not keys.text(f"{at}model.path"):
            _wrapped(keys, at, tokens)
        elif "extra_models" not in keys.draft.given:
            said = {
                "role": "reward",
                "model": keys.text(f"{at}model.path"),
                "rollout": _engine(keys, f"{at}rollout.", name),
            }
            keys.draft.values["extra_models"] = [*keys.draft.values.get("extra_models", ()), said]
            origin = Origin(FILE, keys.settings.where(f"{at}enable"))
            keys.draft.origins.setdefault("extra_models", origin)


def _wrapped(keys: Keys, at: str, tokens: int) -> None:
    """FSDP's: of no more parameters than the policy it scores as that does, whose logits are of a whole vocabulary."""
    length = max(keys.draft.values["sequence_length"], known(keys, f"{at}max_length", usual=0))
    dynamic = keys.flag(f"{at}use_dynamic_bsz") and keys.has(f"{at}forward_max_token_len_per_gpu")
    name = "forward_max_token_len_per_gpu" if dynamic else "micro_batch_size_per_gpu"
    size = known(keys, f"{at}{name}", usual=0) * (1 if dynamic else length)
    if not size or not _on_the_host(keys, at):
        hint = f"add --without {at}enable, if its model waits on the host and is no larger than the policy"
        keys.warn(f"{at}enable", "the model that scores or teaches is not counted", "model", hint)
        return
    keys.bound(f"{at}enable", "it scores from the host, unit by unit, and is counted as the policy's scores", "model")
    if size > max(tokens, int(keys.draft.values.get("logprob_token_budget") or 0)):
        keys.put("logprob_token_budget", size, f"{at}{name}")


def _on_the_host(keys: Keys, at: str) -> bool:
    """Whether it is FSDP's and no larger than the policy."""
    old = version_key(keys.draft.facts["verl"]) < version_key("0.7")
    megatron = "megatron" in (keys.get(f"{at}strategy"), keys.get(f"{ACTOR}strategy"))
    stays = keys.draft.facts["verl"] in ("0.1", "0.2") and not keys.flag(f"{at}model.fsdp_config.param_offload")
    if at != PLACES[0] or not old or megatron or stays:
        return False
    try:
        own, policy = (load_model(name) for name in (keys.text(f"{at}model.path") or "", keys.draft.said["model"]))
    except MemplanError:
        return False
    return own.params.total <= policy.params.total


def _engine(keys: Keys, at: str, name: str) -> dict[str, Any]:
    """Keys of ``rollout``. Where no length is said, prompt and response together."""
    found: dict[str, Any] = {"engine": name} | USUAL
    found[SHARE[name]] = found.pop("gpu_memory_utilization")
    for key, inner in (FIELDS | {"gpu_memory_utilization": SHARE[name]}).items():
        value = keys.get(f"{at}{key}")
        if value is not None and value != "auto":
            found[inner] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(str(value), value)
    lengths = [keys.whole(f"{at}{part}_length", 2048) for part in ("prompt", "response")]
    found.setdefault("max_model_len", sum(lengths))
    if keys.flag(f"{at}free_cache_engine") is False:
        found["sleep"] = "none"
    return found
