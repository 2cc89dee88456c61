"""Axolotl's YAML: supervised fine-tuning with transformers' Trainer, preferences with TRL's.

What a file does not say is Axolotl's default (``axolotl_keys``); a DeepSpeed JSON that it names is followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplan.frameworks import fsdp_keys, hf_precision
from memplan.frameworks.axolotl_keys import (
    ATTENTION_FLAGS,
    DEFAULTS,
    HARMLESS,
    LIGER,
    MARKS,
    METHODS,
    NOT_MODELLED,
    OWN_OPTIMIZERS,
    TRANSFORMERS_VERSION,
    TRL_VERSION,
)
from memplan.frameworks.axolotl_write import trainer_of, write
from memplan.frameworks.base import DEFAULT, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.documents import Document
from memplan.frameworks.hf_arguments import mapping, read_attention, read_deepspeed
from memplan.frameworks.own_names import lora_targets, module_names, put_hf_optimizer, with_values
from memplan.frameworks.transformers import assume_one_gpu
from memplan.frameworks.trl_keys import METHODS as TRL_METHODS
from memplan.frameworks.trl_online import read_online


def recognise(document: Document) -> tuple[str, ...]:
    """A base model with keys of a training."""
    if document.form != "yaml" or "base_model" not in document.keys:
        return ()
    return ("base_model",) if document.keys & MARKS else ()


def read(document: Document, draft: Draft) -> None:
    """One config."""
    keys = Keys(draft, document.settings, FRAMEWORK, DEFAULTS)
    method = _method(keys)
    keys.copy("model", "base_model")
    if keys.has("revision_of_model"):
        keys.copy("revision", "revision_of_model")
    _batch(keys)
    _precision(keys)
    _checkpointing(keys, method)
    trainer = "trl" if method != "sft" else "transformers"
    if keys.text("optimizer") == "muon":
        keys.put("optimizer", "muon", "optimizer")
    else:
        put_hf_optimizer(keys, "optimizer", trainer, OWN_OPTIMIZERS)
    _optimizer_arguments(keys)
    _adapter(keys)
    _attention(keys)
    _kernels(keys, method)
    _losses(keys, method)
    _spread(keys)
    for key, why in NOT_MODELLED.items():
        value = keys.get(key)
        if value and value != "none" and (value is True or value != 1):
            keys.warn(key, why)
    if keys.flag("torch_compile") and keys.get("torch_compile") != "auto":
        keys.put("compile", True, "torch_compile")
    assume_one_gpu(draft)
    keys.close(HARMLESS)
    draft.finishers["precision"] = hf_precision.settle


def _method(keys: Keys) -> str:
    """``rl``, ``reward_model``; else supervised fine-tuning. Raises InvalidJob for what is not modelled."""
    word = (keys.text("rl") or "").lower()
    reward = keys.flag("reward_model")
    if word and word not in METHODS:
        raise keys.settings.error("rl", f"{word[:20]} is not modelled", f"modelled: {', '.join(METHODS)}")
    method = METHODS[word] if word else "reward" if reward else "sft"
    key = ("rl",) if word else ("reward_model",) if reward else ("rl",)
    keys.put("method", method, *key)
    trainer, version = ("transformers", TRANSFORMERS_VERSION) if method == "sft" else ("trl", TRL_VERSION)
    keys.draft.put("trainer", trainer, Origin(FILE, f"{keys.settings.path}: Axolotl trains {method} with it"))
    keys.draft.put("trainer_version", version, Origin(DEFAULT, f"{FRAMEWORK.label} takes {trainer} {version}"))
    return method


def _batch(keys: Keys) -> None:
    keys.copy("sequence_length", "sequence_len", "whole")
    keys.copy("batch_size", "micro_batch_size", "whole")
    total, each = keys.whole("batch_size"), keys.whole("micro_batch_size") or 1
    if total and not keys.has("gradient_accumulation_steps"):
        keys.put("gradient_accumulation_steps", max(1, total // each), "batch_size")
    else:
        keys.copy("gradient_accumulation_steps", "gradient_accumulation_steps", "whole")
    if keys.has("eval_batch_size"):
        keys.copy("eval_batch_size", "eval_batch_size", "whole")


def _precision(keys: Keys) -> None:
    """bf16 ``auto`` is true where the card has it; ``full`` and ``bfloat16`` run without autocast."""
    word = str(keys.get("bf16")).lower()
    keys.skip("bf16", "fp16", "bfloat16", "float16", "float32", "torch_dtype")
    half = bool(keys.flag("fp16"))
    if word == "auto" and (half or keys.flag("float16")):
        word = "false"
    brain = word in ("auto", "true", "full", "yes", "1") or bool(keys.flag("bfloat16"))
    pure = word == "full" or (bool(keys.flag("bfloat16")) and word not in ("auto", "true")) or (
        bool(keys.flag("float16")) and not half
    )  # fmt: skip
    kind = "bf16" if brain else "fp16" if half or keys.flag("float16") else "fp32"
    key = next((name for name in ("bfloat16", "bf16", "fp16", "float16") if keys.has(name)), "")
    if key:
        origin = Origin(FILE, f"{keys.settings.where(key)}: {key} {str(keys.get(key)).lower()}")
    else:
        origin = Origin(DEFAULT, f"{FRAMEWORK.label}: bf16 auto")
    keys.draft.facts["amp"] = ("no" if pure or kind == "fp32" else kind, origin)
    keys.draft.facts["load"] = (kind, origin)


def _checkpointing(keys: Keys, method: str) -> None:
    """Reentrant by default in supervised fine-tuning; activations on the host in place of it, or beside it."""
    value = keys.get("gradient_checkpointing")
    offloaded = isinstance(value, str) and value.startswith("offload")
    on = True if offloaded else bool(keys.flag("gradient_checkpointing"))
    where = str(keys.get("activation_offloading") or "").lower()
    if where == "hidden_states":
        keys.warn("activation_offloading", "checkpoints on the host are counted on the GPU")
    elif offloaded or where in ("true", "legacy", "disk"):
        key = "gradient_checkpointing" if offloaded else "activation_offloading"
        keys.put("offload", ["activations"], key)
        on = on and not keys.has("adapter")
    keys.skip("activation_offloading", "gradient_checkpointing_kwargs")
    keys.put("gradient_checkpointing", "full" if on else "none", "gradient_checkpointing")
    if not on:
        return
    if keys.has("gradient_checkpointing_kwargs"):
        inner = mapping(keys, "gradient_checkpointing_kwargs")
        reentrant = inner.flag("use_reentrant")
        if reentrant is not None:
            inner.put("gradient_checkpointing_reentrant", reentrant, "use_reentrant")
        inner.close(("preserve_rng_state", "determinism_check", "debug"))
    else:
        usual = method in ("sft", "reward") and not keys.has("unfrozen_parameters")
        keys.put("gradient_checkpointing_reentrant", usual, "gradient_checkpointing_kwargs")


def _optimizer_arguments(keys: Keys) -> None:
    """Those of GaLore and APOLLO; others are rates."""
    given, optimizer = keys.get("optim_args"), keys.draft.values.get("optimizer")
    pairs = given if isinstance(given, Mapping) else dict(
        part.strip().partition("=")[::2] for part in str(given or "").split(",") if "=" in part
    )  # fmt: skip
    settings: dict[str, Any] = {}
    for name in ("rank", "update_proj_gap"):
        if optimizer in ("galore", "apollo") and str(pairs.get(name, "")).isdigit():
            settings[name] = int(pairs[name])
    targets = keys.names("optim_target_modules")
    if targets and optimizer in ("galore", "apollo"):
        settings["targets"] = lora_targets(targets)
    if settings:
        keys.put("optimizer_args", settings, "optim_args")
    keys.skip("optim_args", *(key for key in keys.settings.values if str(key).startswith("qgalore_")))


def _adapter(keys: Keys) -> None:
    """``adapter``: lora or qlora, over a base in 4 or 8 bits (nf4, quantised twice)."""
    kind = (keys.text("adapter") or "").lower()
    names = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_linear", "lora_target_modules",
             "lora_modules_to_save", "peft_use_dora", "peft_use_rslora", "peft", "bnb_config_kwargs",
             "peft_autocast_adapter_dtype", "peft_trainable_token_indices", "lora_mlp_kernel")  # fmt: skip
    four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
    if not kind:
        keys.skip(*names)
        return
    if kind not in ("lora", "qlora"):
        keys.warn("adapter", f"{kind[:20]} is not modelled: it is counted as LoRA")
    lora: dict[str, Any] = {"dropout": keys.number("lora_dropout"), "targets": _targets(keys)}
    for job_key, key, value in (("r", "lora_r", keys.whole("lora_r")), ("alpha", "lora_alpha", keys.number("lora_alpha"))):  # fmt: skip
        if keys.has(key):
            lora[job_key] = value
    if keys.names("lora_modules_to_save"):
        lora["modules_to_save"] = list(keys.names("lora_modules_to_save") or ())
    for job_key, key in (("dora", "peft_use_dora"), ("rslora", "peft_use_rslora")):
        if keys.flag(key):
            lora[job_key] = True
    if keys.flag("peft_autocast_adapter_dtype") is False:
        lora["dtype"] = keys.draft.facts["load"][0]
    keys.put("lora", lora, "adapter")
    keys.skip(*names)
    if four:
        inner = mapping(keys, "bnb_config_kwargs") if keys.has("bnb_config_kwargs") else None
        quant = (inner.text("bnb_4bit_quant_type") if inner else None) or "nf4"
        twice = inner.flag("bnb_4bit_use_double_quant") if inner else None
        keys.put("quantization", "nf4-double" if quant == "nf4" and twice is not False else quant, "load_in_4bit")
    elif eight:
        keys.put("quantization", "int8", "load_in_8bit")
    if four or eight:
        keys.draft.put("kbit_upcast", False, Origin(DEFAULT, f"{FRAMEWORK.label}: norms are cast back to torch_dtype"))


def _targets(keys: Keys) -> str | list[str]:
    """Names, a regular expression whose last part is names, or every linear."""
    if keys.flag("lora_target_linear"):
        return "all-linear"
    value = keys.get("lora_target_modules")
    if isinstance(value, str) and not value.replace("_", "").replace("-", "").isalnum():
        found = module_names(value)
        if not found:
            keys.warn("lora_target_modules", "the regular expression is not read: every linear is counted as adapted")
            return "all-linear"
        return list(found)
    names = keys.names("lora_target_modules")
    if not names:
        keys.draft.remarks.append(f"{keys.settings.path}: neither lora_target_linear nor lora_target_modules is set: "
                                  "q_proj and v_proj are counted, as PEFT takes for Llama and Qwen")  # fmt: skip
    return lora_targets(names or ("q_proj", "v_proj"))


def _attention(keys: Keys) -> None:
    """``attn_implementation``, or a flag of earlier versions."""
    keys.skip(*ATTENTION_FLAGS)
    if keys.has("attn_implementation"):
        read_attention(keys, "attn_implementation")
        return
    for flag, name in ATTENTION_FLAGS.items():
        if keys.flag(flag):
            found = {"flash_attention_2": "flash", "sdpa": "sdpa", "eager": "eager"}.get(name)
            if found:
                keys.put("attention", found, flag)
            else:
                keys.warn(flag, f"attention {name} is not modelled: sdpa is counted in its place")
            return


def _kernels(keys: Keys, method: str) -> None:
    """Liger's kernels and Apple's cut cross-entropy, where their plugins are loaded."""
    plugins = " ".join(str(item) for item in keys.get("plugins") or ())
    wanted = keys.flag("cut_cross_entropy")
    cut = wanted or (wanted is None and "cut_cross_entropy" in plugins)
    parts = [key for key in LIGER if keys.flag(key)]
    fused = bool(keys.flag("liger_fused_linear_cross_entropy"))
    keys.skip(*LIGER, "liger_fused_linear_cross_entropy")
    if parts or fused:
        keys.put("kernels", "liger", *(parts or ["liger_fused_linear_cross_entropy"]))
        if method == "sft" and not fused and not cut:
            keys.put("loss_head", "cross-entropy", parts[0])
        if not {"liger_rms_norm"} & set(parts) or not {"liger_glu_activation", "liger_swiglu"} & set(parts):
            keys.draft.remarks.append(f"{keys.settings.path}: all of Liger's layer kernels are counted, "
                                      f"though only {', '.join(parts) or 'its loss'} is on")  # fmt: skip
    if cut and method == "sft":
        keys.put("loss_head", "cut-cross-entropy", "cut_cross_entropy" if wanted else "plugins")
    if method != "sft" and keys.flag("dpo_use_liger_kernel"):
        keys.put("kernels", "liger", "dpo_use_liger_kernel")


def _losses(keys: Keys, method: str) -> None:
    """What a preference loss adds, and what generates."""
    alpha = keys.number("cpo_alpha")
    if method == "simpo":
        keys.put("sft_term", alpha is None or alpha != 0, "cpo_alpha")
    if keys.number("rpo_alpha"):
        keys.put("sft_term", True, "rpo_alpha")
    loss = keys.get("dpo_loss_type")
    if loss and "sft" in (loss if isinstance(loss, list) else [loss]):
        keys.put("sft_term", True, "dpo_loss_type")
    keys.skip("dpo_use_liger_kernel")
    if keys.flag("precompute_ref_log_probs"):
        keys.put("reference", "precomputed", "precompute_ref_log_probs")
    if method != "grpo":
        keys.skip("trl")
        return
    for job_key in ("sequence_length",):
        keys.draft.values.pop(job_key, None)
        keys.draft.origins.pop(job_key, None)
    inner = keys.section("trl").settings
    adapter = bool(keys.text("adapter"))
    found = Keys(keys.draft, with_values(inner, {"use_peft": adapter or None}), FRAMEWORK, TRL_METHODS["grpo"])
    read_online(found, "grpo")
    found.skip("use_peft", "loss_type")
    if found.flag("use_liger_loss"):
        found.put("kernels", "liger", "use_liger_loss")
    if found.flag("sync_ref_model"):
        found.put("reference", "resident", "sync_ref_model")


def _spread(keys: Keys) -> None:
    """DeepSpeed's file, FSDP's config, and sizes of the device mesh."""
    if keys.has("deepspeed"):
        read_deepspeed(keys)
    keys.skip("deepspeed", "fsdp_version", "fsdp_config", "fsdp", "fp32_norms")
    if keys.has("ddp_bucket_cap_mb"):
        fsdp_keys.put_inner(keys, "ddp", "bucket_cap_mb", keys.number("ddp_bucket_cap_mb"), "ddp_bucket_cap_mb")
    if keys.has("accelerator_config"):
        keys.skip("accelerator_config")
    _fsdp(keys)
    sizes = {name: keys.whole(name) or 1 for name in ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size",
                                                      "context_parallel_size", "sequence_parallel_degree")}  # fmt: skip
    context = max(sizes["context_parallel_size"], sizes["sequence_parallel_degree"])
    if sizes["tensor_parallel_size"] > 1:
        keys.put("tensor_parallel", sizes["tensor_parallel_size"], "tensor_parallel_size")
    if context > 1:
        keys.put("context_parallel", context, "context_parallel_size", "sequence_parallel_degree")
    if sizes["dp_shard_size"] > 1 and sizes["dp_replicate_size"] > 1:
        keys.warn("dp_replicate_size", "weights are counted as sharded over all ranks, not in replicas")
    total = sizes["dp_shard_size"] * sizes["dp_replicate_size"] * sizes["tensor_parallel_size"] * context
    if total > 1 and "num_gpus" not in keys.draft.given and keys.has("dp_shard_size"):
        keys.put("num_gpus", total, "dp_shard_size")


def _fsdp(keys: Keys) -> None:
    """``fsdp``, ``fsdp_version``, ``fsdp_config`` with or without the prefix."""
    config = keys.get("fsdp_config")
    if not keys.get("fsdp") and not config:
        return
    inner = keys.section("fsdp_config").settings
    version = keys.settings.values.get("fsdp_version")
    more = {} if version is None else {"fsdp_version": version, "version": None}
    words = keys.get("fsdp") or []
    on = [str(word).lower() for word in (words if isinstance(words, list) else str(words).split())]
    defaults = fsdp_keys.LAUNCH | {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    for name in ("shard_grad_op", "no_shard", "hybrid_shard"):
        if name in on:
            more |= {"sharding_strategy": name.upper()}
    if "offload" in on:
        more |= {"offload_params": True}
    settings = with_values(inner, more)
    values = dict(settings.values)
    for name in ("final_state_dict_type", "cpu_offload_pin_memory", "mixed_precision_policy"):
        values.pop(name, None)
    if str(values.get("fsdp_version") or values.get("version") or 1) == "2":
        values = {key: value for key, value in values.items() if not str(key).endswith("sharding_strategy")}
    trimmed = type(settings)(settings.path, values, settings.lines, settings.prefix)
    fsdp_keys.read_fsdp(Keys(keys.draft, trimmed, FRAMEWORK), defaults)


FRAMEWORK = Framework(
    "axolotl",
    "Axolotl",
    "0.18",
    recognise=recognise,
    read=read,
    write=write,
    extends=("transformers", "trl", "memplan"),
    trainer_of=trainer_of,
    beside=lambda job: ("num_gpus", "gpus_per_node", *(("sequence_length",) if job.method == "grpo" else ())),
)
