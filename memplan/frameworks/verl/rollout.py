"""What generates in verl's reinforcement learning: the engine, its place, weights' way to it, what waits on the host.

Source: verl 0.4 to 0.9 trainer/config/rollout/rollout.yaml, workers/config/rollout.py, workers/engine_workers.py
(param_offload moves gradients too), utils/megatron_utils.py; recipes one_step_off_policy, fully_async_policy."""

import re

from memplan.frameworks.base import Keys
from memplan.frameworks.common import generating
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.generating import put, read_fields
from memplan.frameworks.project.pinned import pinned
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.keys import ROLLOUT
from memplan.tables.trainer import version_key
from memplan.units import pairs_of

NAMES = {"vllm": "vllm", "vllm_spmd": "vllm", "vllm_async": "vllm", "vllm_omni": "vllm", "sglang": "sglang",
         "sglang_async": "sglang", "hf": "hf", "naive": "hf"}  # fmt: skip
FIELDS = pairs_of(
    """data_parallel_size=data_parallel max_model_len max_num_seqs max_num_batched_tokens dtype quantization
    enforce_eager logprobs_mode tensor_model_parallel_size=tensor_parallel
    pipeline_model_parallel_size=pipeline_parallel expert_parallel_size=expert_parallel"""
)
"""Of ``rollout``, whichever the engine."""
SHARE = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
"""What ``gpu_memory_utilization`` is to each."""
OFFLOADS = {
    "param_offload": ("parameters", "gradients"),
    "offload_params": ("parameters", "gradients"),
    "grad_offload": ("gradients",),
    "optimizer_offload": ("optimizer",),
}
BUCKETS = ("update_weights_bucket_megabytes", "checkpoint_engine.update_weights_bucket_megabytes")
BEARING = ("disaggregation.enabled", "qat", "quantization_config_file")


def read_rollout(keys: Keys, found_config: str, at: str) -> None:
    """``found_config``: name of the config that the settings stand on; ``at``: where the actor's engine is."""
    word = (keys.text(f"{ROLLOUT}name") or "vllm").lower()
    said = [key for key in (f"{ROLLOUT}name", *keys.settings.values) if keys.has(key) and key.startswith(ROLLOUT)]
    key = said[0] if said else f"{ROLLOUT}name"
    name = NAMES.get(word) or next((engine for engine in SHARE if engine in word), None)  # a fork's own class of it
    if name and word not in NAMES:
        keys.remark(f"{word[:40]} is counted as {name}", key)
    apart = _apart(keys, found_config)
    name = name or (keys.draft.options.get("rollout") or {}).get("engine")
    if name is None:
        if not apart:
            why = f"the generation engine ({word[:20]}) beside the trainer is not counted"
            generating.warn_engine(keys, key, why, "add --set rollout.engine=vllm, or sglang, where it is that")
        return
    if name == "hf" and keys.framework.title == "verl" and version_key(keys.draft.facts["verl"]) >= version_key("0.6"):
        keys.remark("verl generates with no hf from 0.6 on: it starts with code of the program's own alone", key)
    generating.put_engine(keys, name, key, separate=apart or None)
    if keys.framework.title == "EasyR1":  # its engine is in the workers' processes: vllm_rollout_spmd.py
        put(keys, "process", "same", key)
        put(keys, "sleep", "1", key)
    read_fields(keys, _passed_on(keys), ROLLOUT)
    if name in SHARE:
        read_fields(keys, {"gpu_memory_utilization": SHARE[name]}, ROLLOUT)
        _own(keys, name)
    if keys.flag(f"{ROLLOUT}free_cache_engine") is False:
        _awake(keys, name)
    for each in BUCKETS:
        generating.put_bucket(keys, f"{ROLLOUT}{each}", 2**20)
    if keys.flag(f"{ROLLOUT}layered_summon"):
        put_inner(keys, "sync", "gather", "unit", f"{ROLLOUT}layered_summon")
    elif "dummy" not in (keys.text(f"{ROLLOUT}load_format") or "dummy") and keys.draft.values.get("lora"):
        put_inner(keys, "sync", "gather", "model", f"{ROLLOUT}load_format")
    for each in BEARING:
        if keys.get(f"{ROLLOUT}{each}"):
            keys.warn(f"{ROLLOUT}{each}", "is not modelled", "engine")
    _offload(keys, at)


def _passed_on(keys: Keys) -> dict[str, str]:
    """What the engine is given: sequences at once from 0.6 on (verl 0.5 vllm_rollout/vllm_rollout_spmd.py: LLM)."""
    key = f"{ROLLOUT}max_num_seqs"
    if keys.framework.title != "EasyR1" and version_key(keys.draft.facts["verl"]) >= version_key("0.6"):
        return FIELDS
    if keys.has(key):
        title = "EasyR1" if keys.framework.title == "EasyR1" else "verl before 0.6"
        why = f"{title} gives its engine no max_num_seqs: its own default counts"
        keys.remark(why, key)
    return {each: field for each, field in FIELDS.items() if each != "max_num_seqs"}


def _awake(keys: Keys, name: str) -> None:
    """``free_cache_engine: false``, which keeps the engine awake from 0.5 on. In 0.2 to 0.4 vLLM from 0.7 on sleeps
    whatever it says (workers/sharding_manager/fsdp_vllm.py: __exit__), and older ones keep their cache."""
    key, beside = f"{ROLLOUT}free_cache_engine", keys.draft.facts.get("verl beside", "")
    sleeps = name == "vllm" and keys.framework.title == "verl" and keys.draft.facts["verl"] in ("0.2", "0.3", "0.4")
    version, at = pinned(keys.settings.path, "vllm") if sleeps else ("", "")
    if sleeps and (beside == "0.4" or (version and version_key(version) >= version_key("0.7"))):
        by = f"vLLM {version} ({at})" if version and beside != "0.4" else "vLLM"
        keys.remark(f"verl before 0.5 lets {by} sleep whatever {key} says", key)
        return
    put(keys, "sleep", "none", key)
    if sleeps and not version and "sleep" not in (keys.draft.options.get("rollout") or {}):
        why = "the engine is counted as awake: before 0.5 verl lets vLLM from 0.7 on sleep, whatever this says"
        hint = "add --set rollout.sleep=1"
        keys.draft.bound(key, keys.settings.where(key), why, "engine", "rollout.sleep", hint)


def _offload(keys: Keys, at: str) -> None:
    """What waits on the host while the engine generates; where a critic trains too, what both move."""
    generating.put_offload(keys, {f"{at}{each}": parts for each, parts in OFFLOADS.items()})
    actor = keys.draft.values.get("trainer_offload")
    if keys.draft.values["method"] != "ppo" or not actor:
        return
    places = ("critic.model.fsdp_config.", "critic.fsdp.", "critic.megatron.")
    said = [(f"{place}{each}", parts) for place in places for each, parts in OFFLOADS.items()]
    moved = {part for key, parts in said if keys.flag(key) for part in parts}
    both = [part for part in actor if part in moved]
    if both != list(actor):
        keys.draft.values["trainer_offload"] = both
        key = next((key for key, _ in said if keys.has(key)), f"{at}param_offload")
        why = "the critic stays on the card: so is the policy counted"
        keys.bound(key, why, "engine")


def _apart(keys: Keys, config: str) -> bool:
    """Whether the engine has cards of its own, and how many."""
    asynchronous = bool(re.search(r"fully_async|one_step_off", config))
    if not asynchronous and keys.flag("actor_rollout_ref.hybrid_engine") is not False:
        return False
    for at in ("rollout.", ROLLOUT):
        if keys.has(f"{at}n_gpus_per_node"):
            size = known(keys, f"{at}n_gpus_per_node") * known(keys, f"{at}nnodes")
            put(keys, "num_gpus", size, f"{at}n_gpus_per_node")
            break
    return True


def _own(keys: Keys, name: str) -> None:
    """``engine_kwargs.vllm``: arguments as the engine calls them, stronger than verl's."""
    at = f"{ROLLOUT}engine_kwargs.{name}."
    read_fields(keys, generating.VLLM if name == "vllm" else generating.SGLANG, at)
    generating.warn_felt(keys, at)
