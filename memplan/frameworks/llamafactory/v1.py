"""The files of LLaMA-Factory's rewritten trainer (v1): plugins by name in place of flat arguments, a loop of its own.

A file does not say its stage: the command does (``llamafactory-cli sft``). Weights that are trained are fp32, and no
autocast runs: FSDP2 and DeepSpeed cast. Source: LLaMA-Factory, August 2026 src/llamafactory/v1/config/*.py, plugins/,
core/base_trainer.py; 0.9.5 for keys that have moved since."""

import re
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks import deepspeed
from memplan.frameworks.base import ASSUMED, DEFAULT, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.files.documents import Settings, words
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.hugging_face.switches import mapping
from memplan.frameworks.own_words.names import lora_targets
from memplan.frameworks.transformers import assume_one_gpu
from memplan.tables.texts import settings_in

MARKS = ("train_dataset", "model")
COMMANDS = ("sft", "dpo", "rm")
DEFAULTS: dict[str, Any] = settings_in(
    """micro_batch_size=1 cutoff_len=2048 bf16=true enable_activation_checkpointing=true flash_attn=sdpa
    optim_config=null"""
)
ATTENTIONS = {"sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash"}
NOT_MODELLED = {"full_determinism": "deterministic kernels need more scratch memory, which is not counted"}
HARMLESS = words(
    """template trust_remote_code train_dataset eval_dataset output_dir learning_rate num_train_epochs max_steps
    max_grad_norm batching_strategy batching_workers lr_scheduler_config seed resume_from_checkpoint save_steps
    save_epochs save_ckpt_as_hf save_total_limit logging_steps dp_size dist_timeout mp_shard_size pref_loss pref_beta
    pref_ftx simpo_gamma dpo_label_smoothing ld_alpha custom_chat_template init_config sample_backend max_new_tokens
    cp_mode"""
)


def is_v1(settings: Settings) -> bool:
    """Whether the settings are of this format."""
    return set(MARKS) <= set(settings.values)


def read_settings(settings: Settings, draft: Draft, row: Framework, stage: str = "") -> None:
    """All arguments of one training; ``stage``: the command's word. Raises InvalidJob for preferences and rewards."""
    keys = Keys(draft, settings, row._replace(title="LLaMA-Factory v1", version=""), DEFAULTS)
    draft.put("trainer", "llamafactory-v1", Origin(FILE, f"{settings.path}: LLaMA-Factory v1's arguments"))
    _method(keys, stage)
    keys.copy("model", "model")
    keys.copy("sequence_length", "cutoff_len", "whole")
    keys.copy("batch_size", "micro_batch_size", "whole")
    keys.copy("global_batch_size", "global_batch_size", "whole")
    on = keys.flag("enable_activation_checkpointing")
    keys.put("gradient_checkpointing", "full" if on else "none", "enable_activation_checkpointing")
    word = (keys.text("flash_attn") or "sdpa").lower()
    if word not in ATTENTIONS:
        raise settings.error("flash_attn", f"{word[:20]!r} is no attention", f"use {', '.join(ATTENTIONS)}")
    keys.put("attention", ATTENTIONS[word], "flash_attn")
    if (keys.text("model_class") or "llm") != "llm":
        keys.warn("model_class", "the model is counted as a language model")
    _optimizer(keys)
    _adapter(keys)
    _quantisation(keys)
    _kernels(keys)
    _spread(keys)
    keys.warn_on(NOT_MODELLED, "1")
    assume_one_gpu(draft)
    bf16 = bool(keys.flag("bf16"))
    keys.close(HARMLESS)
    said = Origin(FILE, f"{settings.where('bf16')}: bf16") if keys.has("bf16") else Origin(DEFAULT, "v1: bf16 true")
    draft.facts["amp"] = ("bf16" if bf16 else "no", said)
    draft.finishers["precision"] = _settle


def _method(keys: Keys, stage: str) -> None:
    """The command's word, or one in the file's name; else supervised fine-tuning, as the launcher takes."""
    name = keys.settings.path.rsplit("/", 1)[-1].lower()
    found = next((word for word in COMMANDS if word in re.split(r"[^a-z]+", name)), "")
    word = {"train": "sft"}.get(stage, stage) or found or "sft"
    if word != "sft" and "method" not in keys.draft.given:
        raise InvalidJob(
            f"{keys.settings.path}: {word} of LLaMA-Factory's v1 is not modelled: chosen and rejected share a row",
            "modelled: sft; add --method sft if that is what the command starts",
        )
    why = f"the command is {stage}" if stage else "the file does not say its stage: sft, as the launcher takes"
    keys.draft.put("method", "sft", Origin(FILE if stage else ASSUMED, why))


def _optimizer(keys: Keys) -> None:
    """AdamW of torch, or Muon."""
    name = _section(keys, "optim_config").text("name")
    if name not in (None, "muon"):
        keys.warn("optim_config", f"optimizer {str(name)[:30]} is not modelled: adamw is counted in its place")
    keys.put("optimizer", "muon" if name == "muon" else "adamw", "optim_config")


def _section(keys: Keys, name: str) -> Keys:
    """A plugin's settings; empty where there are none."""
    return mapping(keys, name) if keys.has(name) else Keys(keys.draft, Settings(keys.settings.path, {}), keys.framework)


def _adapter(keys: Keys) -> None:
    """``peft_config``: lora or freeze."""
    inner = _section(keys, "peft_config")
    kind = inner.text("name")
    if kind is None:
        keys.put("lora", None, "peft_config")
        return
    if kind != "lora":
        keys.warn("peft_config", f"{kind[:20]}: all weights are counted as trained")
        return
    inner.warn("adapter_name_or_path", "an adapter that is loaded is counted as r says")
    targets = inner.names("target_modules") or ("all",)
    dropout = inner.number("lora_dropout")
    lora: dict[str, Any] = {
        "r": inner.whole("r", 8),
        "alpha": inner.number("lora_alpha") or 16.0,
        "dropout": 0.05 if dropout is None else dropout,
        "targets": lora_targets(targets),
    }
    if inner.names("modules_to_save"):
        lora["modules_to_save"] = list(inner.names("modules_to_save") or ())
    lora |= {job: True for key, job in (("use_dora", "dora"), ("use_rslora", "rslora")) if inner.flag(key)}
    inner.close(words("name adapter_name_or_path export_dir export_size export_hub_model_id infer_dtype "
                      "export_legacy_format"))  # fmt: skip
    keys.put("lora", lora, "peft_config")


def _quantisation(keys: Keys) -> None:
    """bitsandbytes: four bits where a plugin is named and no bits, unless it is ``auto``."""
    inner = _section(keys, "quant_config")
    name, bits = inner.text("name"), inner.whole("quantization_bit")
    kind, twice = (inner.text("quantization_type") or "nf4").lower(), inner.flag("double_quantization")
    inner.close(("compute_dtype",))
    if name not in (None, "auto", "bnb"):
        keys.warn("quant_config", f"{str(name)[:20]} is not modelled: the base is counted as loaded")
    elif name == "bnb" or (name == "auto" and bits):
        double = kind == "nf4" and twice is not False
        keys.put("quantization", "int8" if bits == 8 else "nf4-double" if double else kind, "quant_config")


def _kernels(keys: Keys) -> None:
    """Liger's, without its fused head; others are of experts and of linear attention."""
    inner = _section(keys, "kernel_config")
    for name in (part.strip() for part in (inner.text("name") or "").split(",")):
        if name == "liger_kernel":
            keys.put("kernels", "liger", "kernel_config")
            keys.warn("kernel_config", "the loss is counted as PyTorch's, which keeps more than Liger's")
        elif name == "auto":
            keys.remark(
                "experts are counted as transformers runs them, where kernel_config auto takes a kernel of its own",
                "kernel_config",
            )
        elif name:
            keys.warn("kernel_config", f"{name[:40]}: layers are counted as transformers runs them")


def _spread(keys: Keys) -> None:
    """``dist_config``: fsdp2, deepspeed with a file, fsdpturbo; DDP without one."""
    inner = _section(keys, "dist_config")
    name = inner.text("name")
    context = max(keys.whole("cp_size", 1), inner.whole("cp_size", 1))
    if context > 1:
        keys.put("context_parallel", context, "cp_size", "dist_config")
    replicas = max(keys.whole("mp_replicate_size", 1), inner.whole("mp_replicate_size", 1))
    inner.skip("cp_mode", "dcp_path", "config_file", "ep_size", "ep_dispatcher", "mp_shard_size", "dp_size", "timeout")
    if name == "deepspeed":
        reference = inner.text("config_file")
        if reference is None:
            raise keys.settings.error("dist_config", "deepspeed without a config_file", "name DeepSpeed's JSON")
        deepspeed.read_named(keys, "dist_config", reference)
    elif name in ("fsdp2", "fsdpturbo"):
        keys.put("sharding", "fsdp2", "dist_config")
        if inner.flag("reshard_after_forward") is False:
            keys.put("reshard_after_forward", False, "dist_config")
        for key, job_key in (("offload_params", "cpu_offload"), ("pin_memory", "pin_memory")):
            if inner.flag(key) is not None:
                put_inner(inner, "fsdp", job_key, inner.flag(key), key)
        if replicas > 1:
            put_inner(keys, "fsdp", "replicate", replicas, "mp_replicate_size")
        if name == "fsdpturbo":
            keys.warn("dist_config", "fsdpturbo is counted as fsdp2: experts are not divided by ep_size")
    elif name is not None:
        keys.warn("dist_config", f"{name[:20]} is not modelled: weights are counted whole on each GPU")
    inner.close(("name",))


def _settle(draft: Draft) -> None:
    """Trained weights are fp32, and frozen ones the checkpoint's; FSDP2 casts both to bf16, DeepSpeed as it says."""
    sharding = str(draft.now("sharding") or "")
    if sharding.startswith("zero") or "zero_stage" in draft.given or {"precision", "dtype"} & draft.given:
        hf_precision.settle(draft)
        return
    (amp, why), adapted = draft.facts["amp"], bool(draft.values.get("lora"))
    if sharding != "fsdp2":
        draft.put("precision", "bf16" if adapted else "fp32", why)
    elif adapted:
        draft.put("precision", "bf16", why)
        draft.put("autocast", amp == "bf16", why)  # adapters in fp32 are gathered in bf16, and so are their products
    else:
        draft.put("precision", "bf16-amp" if amp == "bf16" else "fp32", why)
