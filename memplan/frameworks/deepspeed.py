"""DeepSpeed's JSON, as transformers' integration hands it on: ``auto`` is what the trainer's arguments say.

A key that is left out has DeepSpeed's own default, not ``auto``: buckets of 5e8 elements instead of hidden².
Source: deepspeed 0.19 runtime/zero/config.py, runtime/config.py; transformers 5.23 integrations/deepspeed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplan.frameworks.base import ASSUMED, Draft, Framework, Keys, Origin
from memplan.frameworks.documents import Document, Settings, words
from memplan.frameworks.fsdp_keys import put_inner
from memplan.frameworks.hf_precision import settle
from memplan.spec.job import Job
from memplan.tables.choices import SYNONYMS

AUTO = "auto"
ZERO: dict[str, Any] = {
    "stage": 0,
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "sub_group_size": 1_000_000_000,
}
"""Settings of ``zero_optimization`` that are always counted, with DeepSpeed's defaults."""
USUAL: dict[str, Any] = {
    "allgather_bucket_size": 500_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_model_persistence_threshold": None,
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "allgather_partitions": True,
    "round_robin_gradients": False,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "mics_shard_size": -1,
    "use_multi_rank_bucket_allreduce": True,
    "overlap_comm": None,
    "load_from_fp32_weights": True,
    "memory_efficient_linear": True,
}
"""Further settings that memory feels: counted where a job has them, else warned about when they are not these."""
HARMLESS_ZERO = words(
    """stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save ignore_unused_parameters
    legacy_stage1 elastic_checkpoint mics_hierarchical_params_gather grad_hooks cpu_offload_pin_memory
    pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings leaf_module
    stage3_use_all_reduce_for_fetch_params stage3_module_granularity_threshold"""
)
HARMLESS = words(
    """gradient_clipping scheduler steps_per_print wall_clock_breakdown zero_allow_untested_optimizer dump_state
    prescale_gradients gradient_predivide_factor sparse_gradients flops_profiler tensorboard wandb csv_monitor
    comms_logger checkpoint load_universal_checkpoint disable_allgather memory_breakdown zero_force_ds_cpu_optimizer
    communication_data_type_comment activation_checkpointing elasticity autotuning aio data_efficiency
    curriculum_learning dataloader_drop_last comms_config timers monitor_config seed compile
    use_data_before_expert_parallelism hybrid_engine amp"""
)
OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "fusedadam": "adamw",
    "deepspeedcpuadam": "adamw",
    "lion": "lion",
    "sgd": "sgd",
    "muon": "muon",
}


def recognise(document: Document) -> tuple[str, ...]:
    """Keys that only DeepSpeed's config has."""
    own = ("zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer")
    marks = [key for key in own if key in document.keys]
    half = [key for key in ("bf16", "fp16") if isinstance(document.settings.values.get(key), Mapping)]
    return (*marks, *half) if document.form == "json" else tuple(marks[:1] and marks)


def read(document: Document, draft: Draft) -> None:
    """A config file."""
    read_settings(document.settings, draft)


def read_settings(settings: Settings, draft: Draft) -> None:
    """A config, of a file of its own or within another."""
    keys = Keys(draft, settings, FRAMEWORK)
    _batch(keys)
    _dtype(keys)
    zero = keys.section("zero_optimization", ZERO)
    stage = _value(zero, "stage") or 0
    if stage not in (0, 1, 2, 3):
        raise zero.settings.error("stage", f"{stage} is no stage of ZeRO", "use 0, 1, 2 or 3")
    zero.put("sharding", f"zero{int(stage)}", "stage")
    _sizes(zero, int(stage))
    _offload(zero)
    zero.close(HARMLESS_ZERO)
    _optimizer(keys)
    _types(keys)
    for key in ("tensor_parallel", "sequence_parallel_size", "torch_autocast", "pipeline"):
        keys.warn(key, "is not read")
    keys.close(HARMLESS)
    draft.finishers["precision"] = settle


def names() -> frozenset[str]:
    """Keys that ``deepspeed:`` of a job has."""
    fields = getattr(Job.model_fields["deepspeed"].annotation, "model_fields", None)
    return frozenset(fields or ("reduce_bucket_size", "stage3_prefetch_bucket_size", "sub_group_size", "overlap_comm"))


def _value(keys: Keys, key: str) -> float | None:
    """A number; None for auto."""
    return None if str(keys.get(key)).lower() == AUTO else keys.number(key)


def _batch(keys: Keys) -> None:
    for key, job_key in (
        ("train_micro_batch_size_per_gpu", "batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("train_batch_size", "global_batch_size"),
    ):
        given = keys.get(key)
        if given is not None and str(given).lower() != AUTO and job_key not in keys.draft.given:
            whole = keys.whole(key)
            known = keys.draft.origins.get(job_key)
            if known is not None and known.kind != "file" and job_key in keys.draft.values:
                keys.draft.origins.pop(job_key)
            if whole is not None and not (job_key == "global_batch_size" and keys.has("gradient_accumulation_steps")):
                keys.put(job_key, whole, key)


def _dtype(keys: Keys) -> None:
    """bf16 or fp16 by ``enabled``; auto is the trainer's."""
    dtype, origin = "fp32", Origin(ASSUMED, f"{keys.settings.path}: neither bf16 nor fp16 is enabled")
    for name in ("bf16", "fp16", "bfloat16"):
        section = keys.section(name)
        given = section.get("enabled")
        on = AUTO if str(given).lower() == AUTO else section.flag("enabled")
        section.skip("enabled")
        if on and dtype in ("fp32", AUTO):
            dtype = AUTO if on == AUTO else name.replace("bfloat16", "bf16")
            origin = Origin("file", f"{keys.settings.where(f'{name}.enabled')}: {name}.enabled")
        if on:
            for key in ("immediate_grad_update", "bf16_master_weights_and_grads", "fp16_master_weights_and_grads"):
                if section.flag(key):
                    section.warn(key, "is not modelled")
    keys.draft.facts["deepspeed dtype"] = (dtype, origin)


def _sizes(zero: Keys, stage: int) -> None:
    """Buckets and thresholds; auto is left to memplan, which takes hidden² as the integration does."""
    known = names()
    for key in ("reduce_bucket_size", *(("stage3_prefetch_bucket_size", "sub_group_size") if stage == 3 else ())):
        value = _value(zero, key)
        if value is not None and stage:
            put_inner(zero, "deepspeed", key, int(value), key)
    zero.skip(*ZERO)
    for key, usual in USUAL.items():
        value = zero.get(key)
        if value is None or value == usual or str(value).lower() == AUTO:
            continue
        if key in known:
            number = zero.flag(key) if isinstance(value, bool) or isinstance(usual, bool) else zero.number(key)
            put_inner(zero, "deepspeed", key, int(number) if isinstance(number, float) else number, key)
        elif not (key.startswith("stage3") and stage < 3):
            zero.warn(key, f"{str(value)[:20]} is not modelled; {usual} is counted")


def _offload(zero: Keys) -> None:
    """States and weights on the host; stage 1's ``cpu_offload`` is the older spelling."""
    away = []
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        section = zero.section(key)
        device = (section.text("device") or "none").lower()
        if device == "nvme":
            section.warn("device", "nvme is counted as host memory")
        if device in ("cpu", "nvme"):
            away.append((what, key))
        ratio = section.number("ratio")
        if ratio not in (None, 1):
            section.warn("ratio", "is not modelled; 1 is counted")
        section.close(
            words(
                """pin_memory nvme_path buffer_count buffer_size max_in_cpu pipeline_read pipeline_write
                fast_init super_offload
            cpuadam_cores_perc pipeline"""
            )
        )
    for key, what in (("cpu_offload", "optimizer"), ("cpu_offload_params", "parameters")):
        if zero.flag(key):
            away.append((what, key))
    if away:
        zero.put("offload", sorted({what for what, _ in away}), away[0][1])


def _optimizer(keys: Keys) -> None:
    """DeepSpeed's own optimizer, in place of the trainer's."""
    section = keys.section("optimizer")
    name = section.text("type")
    if name is None:
        return
    found = OPTIMIZERS.get(name.lower())
    if found is None:
        section.warn("type", f"optimizer {name[:40]} is not modelled: adamw is counted in its place")
        found = "adamw"
    for table in (keys.draft.values, keys.draft.origins):
        table.pop("optimizer", None)
        table.pop("optimizer_args", None)
    section.put("optimizer", found, "type")


def _types(keys: Keys) -> None:
    """Dtypes of accumulation and of communication."""
    data = keys.section("data_types")
    for section, key, job_key in (
        (data, "grad_accum_dtype", "grad_dtype"),
        (keys, "communication_data_type", "reduce_dtype"),
    ):
        text = section.text(key)
        if text is not None and text.lower() not in (AUTO, "none"):
            dtype = SYNONYMS["dtype"].get(text.lower(), text.lower())
            if dtype in ("bf16", "fp16", "fp32"):
                section.put(job_key, dtype, key)
            else:
                section.warn(key, f"{text[:20]} is no dtype")
    data.close()


FRAMEWORK = Framework("deepspeed", "DeepSpeed", "0.19", recognise=recognise, read=read, launches=True)
