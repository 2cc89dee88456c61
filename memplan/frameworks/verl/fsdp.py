"""verl's FSDP workers: sharding, dtypes, replicas, what waits on the host; padding, what stays awake.

Source: verl 0.2 to 0.9 workers/fsdp_workers.py (_build_model_optimizer, create_device_mesh),
trainer/fsdp_sft_trainer.py, workers/engine/fsdp/transformer_impl.py; 0.9
trainer/config/rollout/rollout.yaml, workers/config/model.py."""

from memplan.frameworks.base import Keys
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.image_bounds import IMAGES
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.own_words.names import bound_images
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.keys import ACTOR
from memplan.tables.trainer import version_key


def ulysses(keys: Keys, *places: str) -> int:
    """Ranks that share a sequence: the most that any place says."""
    names = [f"{at}{name}" for at in dict.fromkeys(places) for name in
             ("ulysses_sequence_parallel_size", "ulysses_parallel_size")]  # fmt: skip
    return max(known(keys, name, "context_parallel") for name in names)


def read_fsdp(keys: Keys, strategy: str, said: str, at: str, world: int) -> None:
    """``strategy``: fsdp or fsdp2, which the key ``said`` says; ``at``: where the engine's settings stand."""
    keys.put("sharding", strategy, said)
    stored, computed = str(keys.get(f"{at}model_dtype")), str(keys.get(f"{at}dtype"))
    half = "fp16" if computed in ("float16", "fp16") else "bf16"
    pure = stored in ("bf16", "bfloat16", "fp16", "float16")
    keys.put("precision", half if pure else f"{half}-amp", f"{at}model_dtype")
    keys.skip(f"{at}dtype", f"{at}param_offload", f"{at}optimizer_offload", f"{at}grad_offload", f"{at}strategy")
    reshard = f"{at}reshard_after_forward"
    if keys.flag(reshard) is False:  # of FSDP1 from 0.6 on; before it takes no more than is counted
        if strategy == "fsdp2":
            keys.put("reshard_after_forward", False, reshard)
        else:
            put_inner(keys, "fsdp", "sharding_strategy", "SHARD_GRAD_OP", reshard)
    host = f"{at}offload_policy" if keys.flag(f"{at}offload_policy") else f"{at}offload_params"
    if keys.flag(host) and (strategy == "fsdp2" or host.endswith("params")):
        put_inner(keys, "fsdp", "cpu_offload", True, host)
    keys.skip(f"{at}cpu_offload")
    if strategy == "fsdp" and keys.flag(f"{at}forward_prefetch"):
        put_inner(keys, "fsdp", "forward_prefetch", True, f"{at}forward_prefetch")
    if keys.flag(f"{at}defer_fsdp_grad_sync") is not None:
        keys.put("sync_each_batch", not keys.flag(f"{at}defer_fsdp_grad_sync"), f"{at}defer_fsdp_grad_sync")
    _replicas(keys, strategy, f"{at}fsdp_size", world)


def _replicas(keys: Keys, strategy: str, key: str, world: int) -> None:
    """``fsdp_size``: GPUs that share one copy of the states; the other copies are replicas."""
    size = known(keys, key, "fsdp", -1)
    if size < 1 or size >= world:
        return
    if size == 1 or world % size:
        keys.warn(key, f"states are counted as shared by all {world} GPUs, not by {size}", "parallelism")
        return
    if strategy == "fsdp":
        whole = "sharding_strategy" in (keys.draft.values.get("fsdp") or {})
        put_inner(keys, "fsdp", "sharding_strategy", "HYBRID_SHARD_ZERO2" if whole else "HYBRID_SHARD", key)
    put_inner(keys, "fsdp", "replicate", world // size, key)


NAMED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
DETERMINISTIC = "deterministic kernels need more scratch memory, which is not counted"


def read_switches(keys: Keys, at: str, engine: str) -> None:
    """``at``: where the model's settings stand; ``engine``: those of its FSDP engine."""
    padding = f"{engine}use_remove_padding" if keys.has(f"{engine}use_remove_padding") else f"{at}use_remove_padding"
    workers = keys.draft.values.get("sharding") not in ("fsdp", "fsdp2")
    packs = workers and not padding.startswith(f"{engine}use")  # Megatron's pack whatever the model's setting says
    if keys.flag(padding) is False and not packs and "padded" not in keys.draft.given:
        keys.put("padded", True, padding)
    config = f"{at}hf_config_path"
    if keys.has(config) and keys.text(config) != keys.get(f"{at}path"):
        keys.warn(config, "the model is counted by the config of its own path")
    said = any(_names(keys.settings, each) for each in ("image", "video"))
    bound_images(keys, f"{at}path" if keys.has(f"{at}path") else f"{at}partial_pretrain", workers, said)
    if keys.flag(f"{engine}full_determinism"):
        keys.warn(f"{engine}full_determinism", DETERMINISTIC)
    if (keys.text("trainer.use_legacy_worker_impl") or "").lower() == "enable":
        keys.warn("trainer.use_legacy_worker_impl", "the update is counted as the engine of 0.9 runs it")
    if keys.draft.values.get("sharding") in ("fsdp", "fsdp2"):
        _dtypes(keys, f"{engine}mixed_precision")
        for key in (f"{engine}use_orig_params", *_freeze(keys, f"{ACTOR}freeze_vision_tower")):
            if keys.draft.values["sharding"] == "fsdp" and keys.has(key):
                put_inner(keys, "fsdp", "use_orig_params", keys.flag(key), key)


def _freeze(keys: Keys, key: str) -> tuple[str, ...]:
    """A tower with its projector, which Qwen's ``visual`` is, rests in the workers of FSDP until 0.8; the engine of 0.9
    has the setting and leaves it alone. The key, where it does."""
    old = version_key(keys.draft.facts["verl"]) < version_key("0.9")
    if not (old and keys.is_on(key) and IMAGES in keys.draft.finishers):
        return ()
    keys.put("freeze", ["vision_tower", "multi_modal_projector"], key)
    return (key,)


def _names(settings: Settings, what: str) -> bool:
    """Whether a command, or a config in words of its own, says where its data has them; verl's config always does."""
    key = f"data.{what}_key"
    value, config = settings.values.get(key), settings.paths.get(key, settings.path).endswith((".yaml", ".yml"))
    return bool(value) and not (config and value == f"{what}s")


def _dtypes(keys: Keys, at: str) -> None:
    """``mixed_precision``: what weights are gathered and gradients reduced in."""
    reduced, computed = keys.text(f"{at}.reduce_dtype"), keys.text(f"{at}.param_dtype")
    if reduced:
        keys.put("reduce_dtype", NAMED.get(reduced, reduced), f"{at}.reduce_dtype")
    half = str(keys.draft.values.get("precision") or "").partition("-")[0]
    word = NAMED.get(computed or "", computed)
    if computed and word != half and {word, half} != {"bf16", "fp16"}:  # which are as large
        keys.warn(f"{at}.param_dtype", f"weights are counted as gathered in {half}")
    keys.skip(f"{at}.buffer_dtype", f"{at}.param_dtype")
