"""LLM Foundry's YAML of ``scripts/train/train.py``, with MosaicML's ``parameters:`` around it or ``composer`` before.

Weights are loaded in fp32 and run under autocast; FSDP1 wraps layers on several GPUs, and on one nothing of its section
holds, checkpointing included. Source: mosaicml/llm-foundry 0.22 (8c8dd48) command_utils/train.py, models/hf/hf_base.py,
hf_fsdp.py, utils/config_utils.py; mosaicml/composer 0.32 utils/parallelism.py, distributed/mosaic_parallelism.py."""

import re
from collections.abc import Mapping
from functools import partial

from memplan.frameworks.asking import MODEL
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands import processes
from memplan.frameworks.common.config_changes import change
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.hugging_face.arguments import read_attention
from memplan.frameworks.llm_foundry import keys as table
from memplan.frameworks.llm_foundry.keys import FSDP, LOADS
from memplan.frameworks.llm_foundry.mpt import read_mpt
from memplan.frameworks.own_words.names import OTHERS, lora_targets, module_names
from memplan.frameworks.verl.source import flat, referred
from memplan.units import ceil_div


def recognise(document: Document) -> tuple[str, ...]:
    """A model and ``train_loader``, with a batch or a length, at the top or in ``parameters``."""
    values = document.settings.values
    inner = values.get("parameters")
    found = inner if isinstance(inner, Mapping) and "train_loader" in inner else values
    sized = {"global_train_batch_size", "device_train_microbatch_size", "max_seq_len", "fsdp_config"} & set(found)
    model = found.get("model")
    if document.form != "yaml" or not isinstance(model, Mapping) or "name" not in model or not sized:
        return ()
    return ("train_loader",) if isinstance(found.get("train_loader"), Mapping) else ()


def read(document: Document, draft: Draft) -> None:
    """One training."""
    keys = Keys(draft, _settings(document, draft), FRAMEWORK, table.DEFAULTS)
    draft.put("trainer", "llm-foundry", Origin(FILE, f"{document.path}: LLM Foundry's settings"))
    keys.put("method", "sft")
    _model(keys)
    _length(keys)
    _precision(keys)
    _optimizer(keys)
    _adapter(keys)
    _batch(keys)
    processes.expect(draft)
    sharded = any(key.startswith(FSDP) for key in keys.settings.values)
    draft.put("sharding", "fsdp" if sharded else "ddp", Origin(FILE, f"{document.path}: fsdp_config"))
    if sharded:
        _fsdp(keys)
    draft.finishers["llm-foundry"] = partial(_settle, keys)
    _close(keys)


def _settings(document: Document, draft: Draft) -> Settings:
    """By dotted name, references put in; of MosaicML's platform the parameters, and its GPUs."""
    own = document.settings
    inner = own.values.get("parameters")
    below = isinstance(inner, Mapping) and "train_loader" in inner
    whole = dict(flat(own.values))
    values = {key.removeprefix("parameters."): value for key, value in whole.items() if key.startswith("parameters.")}
    lines = {key.removeprefix("parameters."): line for key, line in own.lines.items()} if below else dict(own.lines)
    gpus = whole.get("compute.gpus", whole.get("gpu_num"))
    if below and isinstance(gpus, int) and gpus > 0:
        draft.put("num_gpus", gpus, Origin(FILE, f"{own.where('compute.gpus')}: compute.gpus"))
        if gpus > 8:
            draft.put("gpus_per_node", 8, Origin("default", "nodes of 8 GPUs, as MosaicML's are"))
    found = values if below else whole
    return Settings(own.path, referred(referred(found)), lines, paths=own.paths)


def _model(keys: Keys) -> None:
    """The Hub's by its name; MPT by its sizes, whose layers are LLM Foundry's own."""
    name = keys.text("model.name") or ""
    change(keys, "model.config_overrides.")
    if name in table.OTHER_MODELS:
        why = f"{name[:40]} is no decoder with a head of its vocabulary that is trained here"
        raise keys.settings.error("model.name", why, "memplan estimates the training of language models")
    if name == "mpt_causal_lm":
        read_mpt(keys)
    elif "model" in keys.draft.given:
        keys.skip(LOADS)
    elif keys.has(LOADS) and not is_template(keys.get(LOADS)):
        keys.copy("model", LOADS)
    else:
        what = f"{name[:40] or 'no model'} is not one that is known by its name"
        keys.draft.ask("model", keys.settings.where("model"), what, MODEL)
    _vocabulary(keys)
    if table.OWN_LAYERS.fullmatch(str(keys.draft.values.get("model"))):
        keys.warn(LOADS, "its code is LLM Foundry's own, and its layers are counted as transformers'", "model")
    if name not in ("hf_causal_lm", "mpt_causal_lm"):
        keys.warn("model.name", "a class of the project's own, counted as its checkpoint's", "model")
        keys.skip(*(key for key in keys.settings.values if table.OF_OWN_CLASS.fullmatch(key)))
    if keys.flag("model.use_flash_attention_2"):
        keys.put("attention", "flash", "model.use_flash_attention_2")
        keys.skip("model.attn_implementation")
    elif name != "mpt_causal_lm":
        read_attention(keys, "model.attn_impl" if keys.has("model.attn_impl") else "model.attn_implementation")


def _vocabulary(keys: Keys) -> None:
    """A tokenizer of another family may have more tokens than the model, which then grows (HuggingFaceModel)."""
    names = [str(keys.get(key) or "").lower() for key in ("tokenizer.name", LOADS)]
    apart = [(name.rpartition("/")[0], re.split(r"[-_.\d]", name.rpartition("/")[2])[0]) for name in names]
    if all(names) and not any(map(is_template, names)) and all(a != b for a, b in zip(*apart, strict=True)):
        keys.warn("tokenizer.name", "the vocabulary is counted as the model's", "model")


def _length(keys: Keys) -> None:
    """What the data loader makes of every sample: padded or packed to it."""
    found = next((key for key in ("train_loader.dataset.max_seq_len", "max_seq_len") if keys.has(key)), None)
    if found is not None:
        keys.copy("sequence_length", found, "whole")
    elif "sequence_length" not in keys.draft.given:
        keys.draft.ask("sequence_length", keys.settings.where("train_loader"), "max_seq_len is not there")


def _precision(keys: Keys) -> None:
    """fp32 weights under autocast, unless ``master_weights_dtype`` stores them otherwise."""
    name = (keys.text("precision") or "amp_bf16").lower().removeprefix("precision.")
    precision = table.PRECISIONS.get(name)
    if precision is None:
        keys.warn("precision", f"{name[:20]} is counted as amp_bf16", "precision")
    stored = (keys.text("model.master_weights_dtype") or keys.text("master_weights_dtype") or "fp32").lower()
    if stored in ("bf16", "bfloat16"):
        keys.put("precision", "bf16", "model.master_weights_dtype", "master_weights_dtype")
        keys.skip("precision")
    else:
        keys.put("precision", precision or "bf16-amp", "precision")
        if stored not in ("fp32", "float32"):
            keys.warn("model.master_weights_dtype", "weights are counted in fp32", "precision")
    keys.put_on("expandable_segments", "allocator", {"expandable_segments": True})
    for key in ("model.load_in_8bit", "model.fc_type", "model.quantization_config"):
        if keys.is_on(key, "torch"):
            keys.warn(key, "weights are counted as they are without it", "quantisation")


def _optimizer(keys: Keys) -> None:
    """Composer's AdamW, one weight after another; Lion with one state."""
    name = (keys.text("optimizer.name") or "decoupled_adamw").lower()
    found = table.OPTIMIZERS.get(name)
    if found is None:
        keys.warn(
            "optimizer.name", f"optimizer {name[:30]} is not modelled: adamw is counted in its place", "optimizer"
        )
        return
    keys.put("optimizer", found, "optimizer.name")
    keys.put("optimizer_impl", "loop", "optimizer.name")


def _adapter(keys: Keys) -> None:
    """``peft_config``, and ``lora`` of before 0.6."""
    for at in ("model.peft_config.", "model.lora.args.", "lora.args.", "peft_config."):
        parts = [key for key in keys.settings.values if key.startswith(at)]
        if parts:
            break
    else:
        return
    keys.skip(*parts, "model.lora.peft_type", "lora.peft_type")
    kind = (keys.text(f"{at}peft_type") or "LORA").upper()
    if kind != "LORA":
        keys.warn(f"{at}peft_type", "all weights are counted", "adapters")
        return
    targets = keys.get(f"{at}target_modules")
    names = module_names(targets) if isinstance(targets, str) and targets != "all-linear" else ()
    listed = tuple(str(name) for name in targets) if isinstance(targets, list) else names or (str(targets),)
    if targets is None:
        keys.draft.warn(f"{at}target_modules", keys.settings.where(at[:-1]), "PEFT's own modules for the model are "
                        "counted as all linears", "adapters")  # fmt: skip
        listed = ("all-linear",)
    lora: dict[str, object] = {"r": keys.whole(f"{at}r", 8), "targets": lora_targets(listed)}
    lora |= {"alpha": keys.number(f"{at}lora_alpha"), "dropout": keys.number(f"{at}lora_dropout") or 0.0}
    lora |= {"dora": True} if keys.flag(f"{at}use_dora") else {}
    keys.put("lora", lora, parts[0])
    for name in ("modules_to_save", "bias"):
        if keys.is_on(f"{at}{name}"):
            keys.warn(f"{at}{name}", "adapters are counted without it", "adapters")


def _batch(keys: Keys) -> None:
    """Samples that go through together; ``auto`` is halved from the whole down to one until the step fits
    (composer trainer/trainer.py: _adjust_device_train_microbatch_size)."""
    at = "device_train_microbatch_size"
    if str(keys.get(at)).lower() == "auto":
        keys.put("batch_size", 1, at)
        why = "auto is halved until the step fits: counted is the least, one sample"
        keys.remark(f"{why}; what runs fills the card more", at)
    else:
        keys.copy("batch_size", at, "whole")
    total = keys.whole("global_train_batch_size")
    if total is None:
        keys.assume("gradient_accumulation_steps", 2, "global_train_batch_size is not there")
    every = str(keys.get("eval_interval"))
    loads = any(key.startswith("eval_loader") for key in keys.settings.values)
    if loads and every != "0" and keys.has("device_eval_batch_size"):
        keys.copy("eval_batch_size", "device_eval_batch_size", "whole")
    keys.skip("device_eval_batch_size")


def _fsdp(keys: Keys) -> None:
    """Its section, as it holds on several GPUs."""
    mixed = keys.get(f"{FSDP}mixed_precision")
    word = str(mixed).upper() if not isinstance(mixed, Mapping) else ""
    parts = [key for key in keys.settings.values if key.startswith(f"{FSDP}mixed_precision.")]
    if parts or word not in ("DEFAULT", "PURE"):
        where = keys.settings.where(f"{FSDP}mixed_precision")
        why = "weights are counted as gathered in the precision, and gradients as reduced in fp32"
        keys.draft.warn(f"{FSDP}mixed_precision", where, why, "precision")
    elif word == "PURE":
        keys.put("reduce_dtype", "fp16" if "fp16" in str(keys.get("precision")) else "bf16", f"{FSDP}mixed_precision")
    keys.skip(*parts)
    for name in ("sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params"):
        if keys.get(f"{FSDP}{name}") is not None:
            value = keys.get(f"{FSDP}{name}")
            put_inner(keys, "fsdp", name, str(value).upper() if isinstance(value, str) else value, f"{FSDP}{name}")
    on = keys.flag(f"{FSDP}activation_checkpointing")
    keys.put("gradient_checkpointing", "full" if on else "none", f"{FSDP}activation_checkpointing")
    if on:
        reentrant = keys.flag(f"{FSDP}activation_checkpointing_reentrant")
        keys.put("gradient_checkpointing_reentrant", reentrant, f"{FSDP}activation_checkpointing_reentrant")
    keys.warn("model.activation_checkpointing_target", "whole layers are counted as checkpointed", "checkpointing")
    keys.warn_on({f"{FSDP}{name}": why for name, why in table.BESIDE_FSDP}, "1")
    keys.skip(*(f"{FSDP}{name}" for name in table.OF_FSDP), f"{FSDP}activation_checkpointing_reentrant")


def _settle(keys: Keys, draft: Draft) -> None:
    """What follows from the number of GPUs: on one there is no FSDP; a micro-batch is no larger than a GPU's batch."""
    gpus = int(draft.now("num_gpus") or 0)
    if gpus == 1:
        draft.forget("fsdp", "reduce_dtype", "gradient_checkpointing_reentrant", "gradient_checkpointing")
        if draft.values["sharding"] == "fsdp":
            keys.remark("on one GPU fsdp_config does not hold, checkpointing included")
        draft.values["sharding"] = "none"
    total = keys.whole("global_train_batch_size")
    micro = int(draft.now("batch_size") or 1)
    if total and gpus:
        each = max(1, total // gpus)
        if micro > each and "batch_size" not in draft.given:
            draft.values["batch_size"] = micro = each
        keys.put("gradient_accumulation_steps", ceil_div(each, micro), "global_train_batch_size")


def _close(keys: Keys) -> None:
    """What changes the training and is not modelled; the rest of the sections."""
    for key in keys.settings.values:
        if key.startswith("algorithms.") and not key.startswith("algorithms.gradient_clipping"):
            keys.warn(key, "an algorithm that changes model or batch is not followed", "model")
        elif key.startswith(("tp_config", "deepspeed_config")):
            keys.warn(key, "it is counted without it", "parallelism")
        elif key.startswith("compile_config"):
            keys.warn(key, "the model is counted as it is written, which holds more", "")
    keys.skip(*(key for key in keys.settings.values if key.startswith(table.SECTIONS)))
    keys.close(table.HARMLESS)


FRAMEWORK = Framework("llm-foundry", "LLM Foundry", "0.22", recognise, read, trainer="llm-foundry", extends=OTHERS)
