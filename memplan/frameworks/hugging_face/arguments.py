"""transformers' TrainingArguments, which transformers, TRL and LLaMA-Factory share: what of them memory feels.

Source: transformers 5.23 training_args.py, trainer_optimizer.py; 4.44 to 4.57 for the names that went."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.frameworks import deepspeed
from memplan.frameworks.accelerate.parallelism import read_parallelism
from memplan.frameworks.asking import GENERATES, KEEPS_LOGITS, STAGE, SUCH
from memplan.frameworks.base import DEFAULT, FILE, Keys, Origin
from memplan.frameworks.common import fsdp_keys
from memplan.frameworks.common.row_making import read_rows
from memplan.frameworks.files.documents import words
from memplan.frameworks.hugging_face.switches import NOT_MODELLED, mapping, read_compile, read_liger_parts
from memplan.tables.optimizers import find_optimizer
from memplan.tables.texts import parts_of, rows_of, settings_in
from memplan.tables.trainers import TRAINERS
from memplan.units import pairs_of

_PARTS = parts_of(__file__)

DEFAULTS: dict[str, Any] = settings_in(
    """per_device_train_batch_size=8 gradient_accumulation_steps=1 gradient_checkpointing=false bf16=false fp16=false
    optim=adamw_torch_fused"""
)
"""transformers 5."""
OLD_DEFAULTS = DEFAULTS | {"optim": "adamw_torch"}
"""transformers 4 on torch before 2.8."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    name: dict(pairs_of(text)) for name, text in rows_of(_PARTS["optimizers"]).items()
}
"""OptimizerNames that are modelled; the first of each set of equal rows is the one that is written."""
LESS = ("adagrad", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit")
"""One state a parameter, of torch.optim or bitsandbytes."""
ATTENTIONS = {"flash_attention_2": "flash", "flash_attention_3": "flash", "sdpa": "sdpa", "eager": "eager"}

HANDLED = words(_PARTS["handled"])
HARMLESS = words(_PARTS["harmless"])
FIELDS = HANDLED | HARMLESS
"""Every name that TrainingArguments has or had."""


def read_arguments(keys: Keys) -> None:
    """The shared arguments into the draft. Dtypes are settled when every file is read (``hf_precision``)."""
    keys.copy("batch_size", "per_device_train_batch_size", "whole")
    keys.copy("batch_size", "per_gpu_train_batch_size", "whole")
    keys.copy("gradient_accumulation_steps", "gradient_accumulation_steps", "whole")
    _checkpointing(keys)
    _mixed_precision(keys)
    _optimizer(keys)
    read_compile(keys)
    keys.copy("empty_cache_steps", "torch_empty_cache_steps", "whole")
    if keys.flag("use_liger_kernel"):
        keys.put("kernels", "liger", "use_liger_kernel")
        read_liger_parts(keys)
    keys.skip("liger_kernel_config")
    _evaluation(keys)
    _wrapping(keys)
    read_rows(keys)
    keys.warn_on(NOT_MODELLED, "1")
    if keys.flag("auto_find_batch_size") and "batch_size" not in keys.draft.given:
        where, why = keys.settings.where("auto_find_batch_size"), "the batch that is written is halved until it fits"
        keys.draft.bound("auto_find_batch_size", where, why, "batch", "batch_size")
    if keys.flag("use_cpu") or keys.flag("no_cuda"):
        keys.remark("the training runs on the CPU", "use_cpu")


def _checkpointing(keys: Keys) -> None:
    name = "activation_checkpointing" if keys.has("activation_checkpointing") else "gradient_checkpointing"
    keys.skip("activation_checkpointing", "gradient_checkpointing")
    offloads = keys.raw(name) == "unsloth"  # its layer inputs wait on the host: here they are counted on the card
    on = True if offloads else keys.flag(name)
    some = False
    for arguments in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        if keys.has(arguments):
            inner = mapping(keys, arguments)
            reentrant = inner.flag("use_reentrant")
            if reentrant is not None:
                inner.put("gradient_checkpointing_reentrant", reentrant, "use_reentrant")
            some = (on is not False and _some_layers(inner)) or some
            inner.close(("preserve_rng_state", "determinism_check", "debug"))
        keys.skip(arguments)
    if on is not None and not some:
        keys.put("gradient_checkpointing", "full" if on else "none", name)


def _some_layers(inner: Keys) -> bool:
    """Whether not all of every layer is made again: every n-th one (transformers 5.23 trainer.py), or TRL's policy
    (trl 1.16 trainer/sft_trainer.py)."""
    every = inner.whole("every_n_layers", 1)
    selective = inner.framework.name == "trl" and inner.flag("selective")
    if inner.flag("offload"):
        inner.bound("offload", "layer inputs that wait on the host are counted on the GPU", "activations")
    if selective:
        inner.put("gradient_checkpointing", "selective", "selective")
    elif every > 1:
        inner.put("gradient_checkpointing", f"every:{every}", "every_n_layers")
    return bool(selective) or every > 1


def _mixed_precision(keys: Keys) -> None:
    """What accelerate's autocast runs in: bf16, fp16 or no; a default bf16 where TRL leaves it open."""
    half, brain = keys.flag("fp16"), keys.flag("bf16")
    if keys.has("bf16") and keys.has("fp16") and half and brain:
        raise keys.settings.error("fp16", "true beside bf16: true", "keep one of them")
    name = "fp16" if half else "bf16"
    on = "fp16" if half else "bf16" if (brain or (brain is None and keys.defaults.get("bf16") is None)) else "no"
    keys.skip("bf16_full_eval", "fp16_full_eval")
    if (keys.text("half_precision_backend") or "").lower() == "apex":
        keys.warn("half_precision_backend", "apex is counted as torch's autocast")
    given = next((key for key in (name, "bf16", "fp16") if keys.has(key)), None)
    if given:
        origin = Origin(FILE, f"{keys.settings.where(given)}: {given}")
    else:
        shown = keys.defaults.get("bf16")
        origin = Origin(DEFAULT, f"{keys.framework.label}: bf16 {'true unless fp16' if shown is None else shown}")
    keys.draft.facts["amp"] = (on, origin)


def job_optimizer(name: str, trainer: str) -> dict[str, Any] | None:
    """A job's keys of an optimizer under transformers' name; None for one that is not modelled."""
    row = OPTIMIZERS.get(name.lower().removeprefix("optimizernames."))
    if row is None:
        return None
    found: dict[str, Any] = {key: row[key] for key in ("optimizer", "optimizer_impl") if key in row}
    library, usual = row.get("library", ""), find_optimizer(row["optimizer"], trainer)
    if library and find_optimizer(row["optimizer"], trainer, library) != usual:
        found["optimizer_args"] = {"library": library}
    return found


def _optimizer(keys: Keys) -> None:
    name = keys.text("optim")
    if name is None:
        return
    found = job_optimizer(name, keys.framework.name if keys.framework.name in TRAINERS else "transformers")
    if found is None and name.lower() in LESS:
        why = f"optimizer {name} is counted as adamw, which has two states where it has one"
        keys.bound("optim", why, "optimizer")
    elif found is None:
        keys.warn("optim", f"optimizer {name[:40]} is not modelled: adamw is counted in its place")
    else:
        settings = found.pop("optimizer_args", {})
        for key, value in found.items():
            keys.put(key, value, "optim")
        _optimizer_arguments(keys, found["optimizer"], settings)


def _optimizer_arguments(keys: Keys, optimizer: str, settings: dict[str, Any]) -> None:
    """``optim_args: "rank=64, update_proj_gap=100"`` and the modules whose gradients are projected."""
    text = keys.text("optim_args") or ""
    for pair in text.split(",") if optimizer in ("galore", "apollo") else ():
        name, _, value = (part.strip() for part in pair.partition("="))
        if name in ("rank", "update_proj_gap") and value.isdigit():
            settings[name] = int(value)
    targets = keys.names("optim_target_modules")
    if targets and optimizer in ("galore", "apollo"):
        settings["targets"] = "all-linear" if targets == ("all-linear",) else list(targets)
    if settings:
        keys.put("optimizer_args", settings, "optim_args" if text else "optim")


EVAL_BATCH_SIZE = 8
"""Examples per device, of transformers 4 and 5 alike (TrainingArguments.per_device_eval_batch_size)."""


def _evaluation(keys: Keys) -> None:
    """Evaluation's batch, where there is evaluation."""
    key = "eval_strategy" if keys.text("eval_strategy") else "evaluation_strategy"
    strategy = (keys.text(key) or "no").lower().removeprefix("intervalstrategy.")
    keys.skip("per_device_eval_batch_size", "eval_accumulation_steps", "predict_with_generate")
    if strategy in ("no", "false"):
        return
    if strategy not in ("steps", "epoch", "true"):
        raise keys.settings.error(key, f"{strategy[:20]!r} is no strategy", "write no, steps or epoch")
    if keys.flag("predict_with_generate"):
        keys.warn("predict_with_generate", GENERATES)
    if "eval_batch_size" not in keys.draft.given:
        size = keys.whole("per_device_eval_batch_size") or EVAL_BATCH_SIZE
        keys.put("eval_batch_size", size, "per_device_eval_batch_size")
        if str(keys.get("compute_metrics")).lower() in ("true", "1") and "evaluation" not in keys.draft.given:
            where = keys.settings.where("compute_metrics")  # a switch of the script's own
            keys.draft.ask("evaluation", where, KEEPS_LOGITS, f"add {SUCH['evaluation']}")


def read_ddp(keys: Keys) -> None:
    """DDP's own settings."""
    fsdp_keys.put_inner(keys, "ddp", "bucket_cap_mb", keys.number("ddp_bucket_cap_mb"), "ddp_bucket_cap_mb")
    for name in ("find_unused_parameters", "static_graph"):
        fsdp_keys.put_inner(keys, "ddp", name, keys.flag(f"ddp_{name}"), f"ddp_{name}")


def _wrapping(keys: Keys) -> None:
    """Sharding that the arguments themselves ask for, and accelerate's settings among them."""
    read_ddp(keys)
    if keys.has("accelerator_config"):
        inner = mapping(keys, "accelerator_config")
        if inner.has("gradient_accumulation_kwargs"):
            accumulation = inner.section("gradient_accumulation_kwargs")
            accumulation.copy("sync_each_batch", "sync_each_batch", "flag")
            accumulation.close(("adjust_scheduler", "sync_with_dataloader", "num_steps"))
        inner.close(("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking",
                     "use_configured_state"))  # fmt: skip
    if isinstance(keys.raw("parallelism_config"), Mapping):
        read_parallelism(keys, keys.framework, "DEEPSPEED" if keys.has("deepspeed") else "")
    else:
        keys.warn("parallelism_config", "parallelism of accelerate's own is not read here: give its config with --with")
    fsdp_keys.read_trainer_fsdp(keys)
    if keys.has("deepspeed"):
        read_deepspeed(keys)
    keys.skip("deepspeed")


def read_deepspeed(keys: Keys) -> None:
    """``deepspeed``: a file beside this one, or the settings themselves; true where a script makes them."""
    value = keys.get("deepspeed")
    if isinstance(value, Mapping):
        deepspeed.read_settings(keys.section("deepspeed").settings, keys.draft)
    elif value is True and not {"sharding", "zero_stage"} & keys.draft.given and "deepspeed" not in keys.draft.beside:
        what = "deepspeed names no file: the script makes the config"
        keys.draft.ask("sharding", keys.settings.where("deepspeed"), what, STAGE)
    elif str(value).strip().startswith("{"):
        deepspeed.read_settings(mapping(keys, "deepspeed").settings, keys.draft)
    elif value and value is not True:
        deepspeed.read_named(keys, "deepspeed", str(value).strip())


LATER_FLASH = re.compile(r"(?:flash[-_]?att(?:n|ention)[-_]?|^fa)([34])\b")


def put_attention(keys: Keys, found: str, word: str, key: str) -> None:
    """Which attention a word means, and of flash attention's the generation."""
    keys.put("attention", found, key)
    later = LATER_FLASH.search(word)
    if found == "flash" and later:
        keys.put("flash_version", int(later[1]), key)


def read_attention(keys: Keys, key: str) -> None:
    """``attn_implementation``; a kernel of the Hub is flash attention where its name says so."""
    name = keys.text(key)
    if name is None:
        return
    word = name.lower().removeprefix("paged|")
    found = ATTENTIONS.get(word, "flash" if "flash" in word else "")
    if found:
        put_attention(keys, found, word, key)
    else:
        keys.warn(key, f"attention {name[:40]} is not modelled: sdpa is counted in its place")
