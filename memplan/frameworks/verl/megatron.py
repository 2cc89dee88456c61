"""verl's Megatron workers: degrees, recomputation, optimizer, of a section ``megatron`` or an engine's.

Source: verl 0.2 to 0.9 workers/megatron_workers.py, utils/megatron_utils.py (DistributedDataParallelConfig: fp32
gradients, no overlap), workers/engine/megatron/transformer_impl.py; trainer/config/engine/megatron.yaml."""

from memplan.frameworks.base import Keys
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.files.documents import is_template, words
from memplan.frameworks.megatron.keys import NOT_MODELLED, OTHER_NAMES, SIZES
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.keys import MODEL
from memplan.spec.megatron import Megatron

VIRTUAL = "virtual_pipeline_model_parallel_size"
CHANGES = ("override_transformer_config.", "override_ddp_config.", "override_mcore_model_config.")
HOSTED = ("optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d")
OF_MINDSPEED = {"use_fused_rmsnorm": "norm_fusion"}
"""Megatron of another make -> the job's settings."""
QUIET = words(
    """param_offload grad_offload optimizer_offload use_mbridge vanilla_mbridge use_dist_checkpointing
    dist_checkpointing_path dist_checkpointing_prefix seed sequence_parallel strategy dtype
    num_layers_per_virtual_pipeline_stage use_remove_padding"""
)
"""Loads, saves, and what is moved to the host between the phases and is back in the update."""


def degrees(keys: Keys, at: str) -> dict[str, int]:
    """The job's degrees of parallelism."""
    found = {}
    for name, job_key in SIZES.items():
        if keys.get(f"{at}{name}") not in (None, "None"):
            found[job_key] = known(keys, f"{at}{name}", job_key)
        keys.skip(f"{at}{name}")
    if keys.get(f"{at}{VIRTUAL}") is not None:
        found["virtual_pipeline"] = known(keys, f"{at}{VIRTUAL}", "virtual_pipeline")
    return found


def read_megatron(keys: Keys, at: str, strategy: str, optim: str) -> None:
    """Everything but the batch. ``at``: where the engine's settings stand; ``strategy``: the key that names it."""
    keys.draft.facts["verl trainer"] = f"{keys.draft.facts.get('verl trainer', 'verl')}-megatron"
    sizes = degrees(keys, at)
    names = {job_key: name for name, job_key in SIZES.items()} | {"virtual_pipeline": VIRTUAL}
    for job_key, size in sizes.items():
        if size > 1 or keys.has(f"{at}{names[job_key]}"):
            keys.put(job_key, size, f"{at}{names[job_key]}")
    keys.skip(*(f"{at}{name}" for name in QUIET))
    whole = keys.flag(f"{at}use_distributed_optimizer") is not False
    keys.put("sharding", "distributed-optimizer" if whole else "ddp", strategy)
    half = str(keys.get(f"{at}dtype") or "bfloat16")
    keys.put("precision", "fp16-master" if half in ("float16", "fp16") else "bf16-master", f"{at}dtype")
    keys.put("attention", "flash", f"{at}override_transformer_config.attention_backend")
    for name in ("use_megatron_fsdp", "dynamic_context_parallel", "qat.enable"):
        if keys.flag(f"{at}{name}"):
            keys.warn(f"{at}{name}", "is not modelled", "parallelism")
    _recompute(keys, at)
    for change in CHANGES:
        _changes(keys, f"{at}{change}")
    _changes(keys, f"{optim}override_optimizer_config.")
    _on_the_host(keys, f"{optim}override_optimizer_config.optimizer_cpu_offload")


def _on_the_host(keys: Keys, key: str) -> None:
    """Without the precision-aware optimizer, which Megatron's own arguments ask for beside it and verl's do not, master
    weights stay on the card (megatron/core/optimizer/distrib_optimizer.py): so is all counted."""
    settings = keys.draft.values.get("megatron") or {}
    if settings.get("optimizer_cpu_offload") and not settings.get("use_precision_aware_optimizer"):
        keys.draft.values["megatron"] = {name: value for name, value in settings.items() if name not in HOSTED}
        keys.bound(key, "without use_precision_aware_optimizer states are counted as on the card", "optimizer")


def recompute_of(keys: Keys, model: str, at: str) -> tuple[str, str]:
    """``recompute_granularity`` and its key. In 0.4 enable_gradient_checkpointing puts what its kwargs say in its
    place, which is nothing unless they do (single_controller/base/megatron/worker.py); in others the workers do not
    read it. ``model``, ``at``: where settings of the model and of its engine stand."""
    new = f"{at}override_transformer_config.recompute_granularity"
    old = f"{model}gradient_checkpointing_kwargs.activations_checkpoint_granularity"
    if keys.draft.facts["verl"] == "0.4" and keys.flag(f"{model}enable_gradient_checkpointing"):
        new, old = old, new
    kind = str(keys.get(new) or "none").lower()
    keys.skip(old)
    if kind not in ("full", "selective", "none"):
        raise keys.settings.error(new, f"{kind[:20]!r} is not known", "use full or selective")
    return kind, new


def _recompute(keys: Keys, at: str) -> None:
    kind, key = recompute_of(keys, MODEL, at)
    keys.put("gradient_checkpointing", kind, key)
    of = {"selective": ("modules",), "full": ("method", "num_layers")}.get(kind, ())
    keys.skip(*(f"{at}override_transformer_config.recompute_{name}" for name in ("modules", "method", "num_layers")
                if name not in of))  # fmt: skip


def _changes(keys: Keys, at: str) -> None:
    """Settings of Megatron under its own names: memplan's, those that are not modelled, and those that do not bear."""
    for key in [key for key in keys.settings.values if key.startswith(at) and not keys.took(key)]:
        name, value = key.removeprefix(at), keys.get(key)
        own = (OTHER_NAMES | OF_MINDSPEED).get(name, name)
        if own in Megatron.model_fields:
            if is_template(value):
                keys.warn(key, f"{str(value)[:40]} stands for something that is not in the file")
            else:
                put_inner(keys, "megatron", own, _plain(value), key)
        elif name in NOT_MODELLED and value not in (None, False, "null", ""):
            keys.warn(key, NOT_MODELLED[name])
        elif name in ("context_parallel_size", "tensor_model_parallel_size", "sequence_parallel"):
            keys.skip(key)


def _plain(value: object) -> object:
    """'["core_attn", "mlp"]' of a command as a list."""
    if isinstance(value, str) and value.strip("\"'").startswith("["):
        return [part.strip("\"' ") for part in value.strip("\"'[]").split(",") if part.strip("\"' ")]
    return value
