"""Axolotl's YAML: supervised fine-tuning with transformers' Trainer, preferences with TRL's.

What a file does not say is Axolotl's default (``axolotl_keys``); a DeepSpeed JSON that it names is followed."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from memplan.frameworks.axolotl import keys as table
from memplan.frameworks.axolotl.launch import read_start, starts
from memplan.frameworks.axolotl.model import put_cast, read_adapter, read_attention_flags, read_kernels
from memplan.frameworks.axolotl.switches import read_switches, release_of
from memplan.frameworks.axolotl.write import in_flags, trainer_of, write
from memplan.frameworks.base import DEFAULT, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common import fsdp_keys
from memplan.frameworks.files.documents import Document
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.hugging_face.arguments import read_deepspeed
from memplan.frameworks.hugging_face.switches import ask_loaded, mapping, read_compile
from memplan.frameworks.hugging_face.version import labelled
from memplan.frameworks.own_words.names import lora_targets, put_hf_optimizer, with_values
from memplan.frameworks.transformers import assume_one_gpu
from memplan.frameworks.trl.keys import METHODS as TRL_METHODS
from memplan.frameworks.trl.online import read_online
from memplan.tables.choices import SYNONYMS
from memplan.units import ceil_div


def recognise(document: Document) -> tuple[str, ...]:
    """A base model with keys of a training; ``axolotl train`` in a script."""
    if document.form == "shell":
        return tuple(launch.program for launch in starts(document))[:1]
    if document.form != "yaml" or "base_model" not in document.keys:
        return ()
    return ("base_model",) if document.keys & table.MARKS else ()


def read(document: Document, draft: Draft) -> None:
    """One config, or the one that a script starts with."""
    settings = read_start(document, draft) if document.form == "shell" else document.settings
    release, sign = release_of(settings)
    keys = Keys(draft, settings, labelled(FRAMEWORK, release, draft), table.DEFAULTS)
    method = _method(keys, sign)
    keys.copy("model", "base_model")
    keys.copy("revision", "revision_of_model")
    _batch(keys)
    _precision(keys)
    _checkpointing(keys, method)
    trainer = "trl" if method != "sft" else "transformers"
    if keys.text("optimizer") == "muon":
        keys.put("optimizer", "muon", "optimizer")
    else:
        put_hf_optimizer(keys, "optimizer", trainer, table.OWN_OPTIMIZERS)
    _optimizer_arguments(keys)
    read_adapter(keys)
    read_attention_flags(keys)
    read_kernels(keys, method)
    _losses(keys, method)
    _spread(keys)
    _products(keys)
    keys.warn_on(table.NOT_MODELLED, "1")
    ask_loaded(keys, "lora_model_dir")
    if keys.get("torch_compile") == "auto":
        keys.skip("torch_compile", "torch_compile_backend", "torch_compile_mode")
    else:
        read_compile(keys)
    keys.copy("empty_cache_steps", "torch_empty_cache_steps", "whole")
    read_switches(keys, method)
    assume_one_gpu(draft)
    keys.close(table.HARMLESS)
    draft.finishers["precision"] = hf_precision.settle


def _method(keys: Keys, sign: str) -> str:
    """``rl``, ``reward_model``; else supervised fine-tuning. Raises InvalidJob for what is not modelled. ``sign``: what
    tells the release."""
    word = (keys.text("rl") or "").lower()
    word = {"true": "dpo", "false": ""}.get(word, word)  # a switch, in its first versions
    reward = keys.flag("reward_model")
    if word and word not in table.METHODS:
        raise keys.settings.error("rl", f"{word[:20]} is not modelled", f"modelled: {', '.join(table.METHODS)}")
    method = table.METHODS[word] if word else "reward" if reward else "sft"
    key = ("rl",) if word else ("reward_model",) if reward else ("rl",)
    keys.put("method", method, *key)
    trainer = "transformers" if method == "sft" else "trl"
    version = table.RELEASES[keys.framework.version][trainer == "trl"]
    keys.draft.put("trainer", trainer, Origin(FILE, f"{keys.settings.path}: Axolotl trains {method} with it"))
    origin = Origin(DEFAULT, f"{sign}{keys.framework.label} takes {trainer} {version}")
    keys.draft.put("trainer_version", version, origin)
    return method


def _batch(keys: Keys) -> None:
    keys.copy("sequence_length", "sequence_len", "whole")
    keys.copy("batch_size", "micro_batch_size", "whole")
    total, each = keys.whole("batch_size"), keys.whole("micro_batch_size", 1)
    if total and not keys.has("gradient_accumulation_steps"):
        keys.put("gradient_accumulation_steps", max(1, total // each), "batch_size")
    else:
        keys.copy("gradient_accumulation_steps", "gradient_accumulation_steps", "whole")
    keys.skip("eval_batch_size")
    if keys.number("val_set_size") or keys.has("test_datasets"):  # else nothing is held out, and nothing evaluated
        keys.put("eval_batch_size", keys.whole("eval_batch_size") or each, "eval_batch_size")


def _precision(keys: Keys) -> None:
    """bf16 ``auto`` is true where the card has it; ``full`` and ``bfloat16`` run without autocast."""
    word = str(keys.get("bf16")).lower()
    if word not in ("auto", "full"):
        keys.flag("bf16")  # which refuses what is no switch
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
        origin = Origin(DEFAULT, f"{keys.framework.label}: bf16 auto")
    keys.draft.facts["amp"] = ("no" if pure or kind == "fp32" else kind, origin)
    for key in ("reinit_weights", "random_init_weights"):  # which was its name before 0.13
        if keys.flag(key):  # loaders/model.py: _load_model_from_config
            keys.bound(key, "weights that are made from a config are counted in float32", "precision")
            kind, origin = "fp32", Origin(FILE, f"{keys.settings.where(key)}: {key} true")
    keys.draft.facts["load"] = (kind, origin)


def _checkpointing(keys: Keys, method: str) -> None:
    """Reentrant by default in supervised fine-tuning; activations on the host in place of it, or beside it."""
    value = keys.get("gradient_checkpointing")
    offloaded = isinstance(value, str) and value.startswith("offload")
    on = True if offloaded or value == "unsloth" else bool(keys.flag("gradient_checkpointing"))
    where = str(keys.get("activation_offloading") or "").lower()
    if where == "hidden_states" or value == "unsloth":  # so called before 0.7
        key = "gradient_checkpointing" if value == "unsloth" else "activation_offloading"
        keys.bound(key, "checkpoints on the host are counted on the GPU", "checkpointing")
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
    keys.put_on("precompute_ref_log_probs", "reference", "precomputed")
    if method != "grpo":
        keys.skip("trl")
        return
    keys.draft.forget("sequence_length")
    inner = keys.section("trl").settings
    adapter = bool(keys.text("adapter"))
    found = Keys(keys.draft, with_values(inner, {"use_peft": adapter or None}), FRAMEWORK, TRL_METHODS["grpo"])
    read_online(found, "grpo")
    found.skip("use_peft", "loss_type")
    found.put_on("use_liger_loss", "kernels", "liger")
    found.put_on("sync_ref_model", "reference", "resident")


TILE = 32768
"""Tokens of a tile where nobody names their number (monkeypatch/tiled_mlp/patch.py; before 0.18 hidden_size)."""


def _products(keys: Keys) -> None:
    """torchao's tensorwise float8 under accelerate (core/trainers/base.py: additional_accelerator_args); tiles of
    feed-forwards (monkeypatch/tiled_mlp)."""
    gathers, plain = keys.flag("fp8_enable_fsdp_float8_all_gather"), not (keys.text("adapter") or keys.has("deepspeed"))
    if keys.flag("fp8") and not plain:
        keys.warn("fp8", "products in fp8 are not modelled")
    elif keys.flag("fp8"):
        keys.put("float8", "tensorwise", "fp8")
        if gathers:
            fsdp_keys.put_inner(keys, "fsdp", "float8_all_gather", True, "fp8_enable_fsdp_float8_all_gather")
    if keys.flag("tiled_mlp"):
        length = int(keys.draft.values.get("sequence_length") or 1) // int(
            keys.draft.values.get("context_parallel") or 1
        )
        count = keys.whole("tiled_mlp_num_shards") or max(1, ceil_div(length, TILE))
        keys.put("tiled_mlp", count, "tiled_mlp")


def _search(keys: Keys, told: bool, draft: Draft) -> None:
    """DDP searches for what is unused where it is told to alone (axolotl 0.19 core/builders/causal.py)."""
    several = draft.now("sharding") in (None, "ddp") and int(draft.now("num_gpus") or 1) > 1
    if told or (several and draft.now("lora")):
        fsdp_keys.put_inner(keys, "ddp", "find_unused_parameters", told, "ddp_find_unused_parameters")


def _spread(keys: Keys) -> None:
    """DeepSpeed's file, FSDP's config, and sizes of the device mesh."""
    if keys.has("deepspeed"):
        read_deepspeed(keys)
    keys.skip("deepspeed", "fsdp_version", "fsdp_config", "fsdp")
    fsdp_keys.put_inner(keys, "ddp", "bucket_cap_mb", keys.number("ddp_bucket_cap_mb"), "ddp_bucket_cap_mb")
    keys.skip("ddp_find_unused_parameters")
    keys.draft.finishers["search"] = partial(_search, keys, bool(keys.flag("ddp_find_unused_parameters")))
    keys.skip("accelerator_config")
    _fsdp(keys)
    if keys.text("adapter") and str(keys.draft.values.get("sharding")).startswith("fsdp"):
        kind, origin = keys.draft.facts["load"]  # the frozen base stays as it is loaded; what trains is upcast
        keys.draft.put("precision", kind, origin)
    put_cast(keys)
    sizes = {name: keys.whole(name, 1) for name in ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size",
                                                      "context_parallel_size", "sequence_parallel_degree")}  # fmt: skip
    context = max(sizes["context_parallel_size"], sizes["sequence_parallel_degree"])
    if sizes["tensor_parallel_size"] > 1:
        keys.put("tensor_parallel", sizes["tensor_parallel_size"], "tensor_parallel_size")
    if context > 1:
        keys.put("context_parallel", context, "context_parallel_size", "sequence_parallel_degree")
        keys.put("context_exchange", "gathered", "context_parallel_size", "sequence_parallel_degree")
    shards, copies, rest = sizes["dp_shard_size"], sizes["dp_replicate_size"], sizes["tensor_parallel_size"] * context
    if keys.has("dp_shard_size") and "num_gpus" in keys.draft.given:  # what the shards leave are replicas of them
        copies = max(copies, int(keys.draft.options["num_gpus"]) // (shards * rest))
    elif keys.has("dp_shard_size") and shards * copies * rest > 1:
        keys.put("num_gpus", shards * copies * rest, "dp_shard_size")
    if copies > 1 and shards > 1:
        key = "dp_replicate_size" if keys.has("dp_replicate_size") else "dp_shard_size"
        fsdp_keys.put_inner(keys, "fsdp", "replicate", copies, key)


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
    policy, computed = str(inner.values.get("mixed_precision_policy") or ""), keys.draft.facts["load"][0]
    if policy and SYNONYMS["dtype"].get(policy, policy) != computed:
        keys.warn("fsdp_config", f"mixed_precision_policy {policy[:20]}: weights are counted as gathered in {computed}")
    settings = with_values(inner, more)
    values = dict(settings.values)
    for name in ("final_state_dict_type", "cpu_offload_pin_memory", "mixed_precision_policy"):
        values.pop(name, None)
    if str(values.get("fsdp_version") or values.get("version") or 1) == "2":
        values = {key: value for key, value in values.items() if not str(key).endswith("sharding_strategy")}
    trimmed = type(settings)(settings.path, values, settings.lines, settings.prefix)
    fsdp_keys.read_fsdp(Keys(keys.draft, trimmed, FRAMEWORK), defaults)
    if (keys.draft.values.get("fsdp") or {}).get("cpu_ram_efficient_loading") and keys.draft.now("sharding") == "fsdp2":
        fsdp_keys.put_inner(keys, "fsdp", "packs_on_host", True, "fsdp_config")  # loaders/model.py: device_map


FRAMEWORK = Framework(
    "axolotl", "Axolotl", "0.18", recognise, read, write, extends=("transformers", "trl", "memplan"),
    trainer_of=trainer_of, onto=in_flags,
    beside=lambda job: ("num_gpus", "gpus_per_node", *(("sequence_length",) if job.method == "grpo" else ())),
)  # fmt: skip
