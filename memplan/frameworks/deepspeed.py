"""DeepSpeed's JSON, as transformers' integration hands it on: ``auto`` is what the trainer's arguments say.

A key that is left out has DeepSpeed's own default, not ``auto``: buckets of 5e8 elements instead of hidden².
Source: deepspeed 0.19 runtime/zero/config.py, runtime/config.py; transformers 5.23 integrations/deepspeed.py."""

from collections.abc import Mapping
from typing import Any

from memplan.frameworks.accelerate.write import write_deepspeed
from memplan.frameworks.base import ASSUMED, Draft, Framework, Keys, Origin
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.files.documents import Document, Settings, words
from memplan.frameworks.hugging_face.precision import settle
from memplan.frameworks.project.shipped import open_config
from memplan.units import pairs_of, words_of

AUTO = "auto"
HARMLESS = words(
    """gradient_clipping scheduler steps_per_print wall_clock_breakdown zero_allow_untested_optimizer dump_state
    prescale_gradients gradient_predivide_factor sparse_gradients flops_profiler tensorboard wandb
    csv_monitor comms_logger checkpoint load_universal_checkpoint disable_allgather memory_breakdown
    zero_force_ds_cpu_optimizer activation_checkpointing autotuning aio
    seq_parallel_communication_data_type curriculum_learning dataloader_drop_last comms_config timers
    monitor_config seed use_data_before_expert_parallelism """
)
WHERE_ENABLED = {
    "elasticity": ("enabled", "the micro-batch is counted as it is written, not as DeepSpeed chooses it"),
    "data_efficiency": ("enabled", "whole sequences are counted"),
    "hybrid_engine": ("enabled", "what the hybrid engine holds to generate is not counted"),
    "amp": ("enabled", "apex is not modelled"),
    "compile": ("deepcompile", "DeepCompile is not modelled"),
}
"""Sections that bear where this key of theirs is on."""
OPTIMIZERS = pairs_of("adam=adamw adamw fusedadam=adamw deepspeedcpuadam=adamw lion sgd muon")


def recognise(document: Document) -> tuple[str, ...]:
    """Keys that only DeepSpeed's config has."""
    own = ("zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer")
    marks = [key for key in own if key in document.keys]
    half = [key for key in ("bf16", "fp16") if isinstance(document.settings.values.get(key), Mapping)]
    return (*marks, *half) if document.form == "json" else tuple(marks[:1] and marks)


def read(document: Document, draft: Draft) -> None:
    """A config file."""
    read_settings(document.settings, draft)


def read_named(keys: Keys, key: str, path: str) -> None:
    """The config file that a key names, where it is here."""
    document = open_config(keys.draft, keys.settings, key, path, FRAMEWORK.name)
    if document is not None:
        read(document, keys.draft)


def read_settings(settings: Settings, draft: Draft) -> None:
    """A config, of a file of its own or within another."""
    keys = Keys(draft, settings, FRAMEWORK)
    _batch(keys)
    _dtype(keys)
    zero = keys.section("zero_optimization", {"stage": 0})
    stage = zero.whole("stage") or 0
    if stage not in (0, 1, 2, 3):
        raise zero.settings.error("stage", f"{stage} is no stage of ZeRO", "use 0, 1, 2 or 3")
    zero.put("sharding", f"zero{int(stage)}", "stage")
    put_inner(zero, "deepspeed", "own_defaults", True, "stage")
    for key, value in zero.settings.values.items():
        if key == "offload_param" and passes_over(zero, key, int(stage)):
            continue
        if key != "stage" and zero.get(key) is not None:
            zero.text(key) if isinstance(value, str) else None
            put_inner(zero, "deepspeed", key, on_the_host(zero, key, value, int(stage)), key)
    _optimizer(keys)
    for key in ("data_types", "communication_data_type", "tensor_parallel", "torch_autocast", "pipeline"):
        if keys.has(key):
            put_inner(keys, "deepspeed", key, keys.get(key), key)
    for key, (inner, why) in WHERE_ENABLED.items():
        section = keys.section(key)
        if section.get(inner) not in (None, False, "false", AUTO):
            keys.warn(key, why)
    keys.close(HARMLESS)
    draft.finishers.setdefault("precision", settle)  # the trainer's own is stronger


def passes_over(keys: Keys, key: str, stage: int) -> bool:
    """Whether DeepSpeed does not look at where parameters wait (runtime/engine.py: of stage 3 alone)."""
    if stage == 3 or {"sharding", "zero_stage"} & keys.draft.given:
        return False
    keys.skip(key)
    keys.remark(f"{key}: DeepSpeed passes over it below stage 3", key)
    return True


def on_the_host(keys: Keys, key: str, value: Any, stage: int) -> Any:
    """Below stage 3 states that are to wait on NVMe wait in the host's memory (runtime/zero/stage_1_and_2.py)."""
    nvme = key == "offload_optimizer" and isinstance(value, Mapping) and value.get("device") == "nvme"
    if not nvme or stage == 3 or {"sharding", "zero_stage"} & keys.draft.given:
        return value
    keys.remark("nvme: below stage 3 DeepSpeed keeps states in host memory", key)
    return {**value, "device": "cpu"}


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
            of_loop = job_key == "gradient_accumulation_steps" and keys.draft.facts.get("loop")
            if known is not None and (known.kind != "file" or of_loop) and job_key in keys.draft.values:
                keys.draft.origins.pop(job_key)  # a loop's steps give way: accelerate 1.15's Accelerator takes these
            if whole is not None and not (job_key == "global_batch_size" and keys.has("gradient_accumulation_steps")):
                keys.put(job_key, whole, key)


def _dtype(keys: Keys) -> None:
    """bf16 or fp16 by ``enabled``; auto is the trainer's; ``unsaid`` without a section of either."""
    names = ("bf16", "fp16", "bfloat16")
    dtype = "fp32" if any(keys.has(name) for name in names) else "unsaid"
    origin = Origin(ASSUMED, f"{keys.settings.path}: neither bf16 nor fp16 is enabled")
    for name in names:
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
                    put_inner(keys, "deepspeed", name, {key: True}, name)
    keys.draft.facts["deepspeed dtype"] = (dtype, origin)


def _optimizer(keys: Keys) -> None:
    """DeepSpeed's own optimizer, in place of the trainer's: of AdamW a fused one of its own, or PyTorch's
    (deepspeed 0.19 runtime/engine.py: _configure_basic_optimizer)."""
    section = keys.section("optimizer")
    name = section.text("type")
    if name is None:
        return
    found = OPTIMIZERS.get(name.lower())
    if found is None:
        section.warn("type", f"optimizer {name[:40]} is not modelled: adamw is counted in its place")
        found = "adamw"
    keys.draft.forget("optimizer", "optimizer_impl", "optimizer_args")
    section.put("optimizer", found, "type")
    if found == "adamw":
        section.put("optimizer_impl", "foreach" if section.section("params").flag("torch_adam") else "fused", "type")
    put_inner(keys, "deepspeed", "ds_optimizer", True, "optimizer")


FRAMEWORK = Framework(
    "deepspeed", "DeepSpeed", "0.19", recognise, read, write_deepspeed, launches=True,
    writes=words_of("batch_size gradient_accumulation_steps sharding zero_stage deepspeed offload grad_dtype"),
)  # fmt: skip
