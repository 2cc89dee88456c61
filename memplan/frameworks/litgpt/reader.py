"""LitGPT's YAML, and ``litgpt finetune_lora …`` with one and options over it.

Over several GPUs it wraps blocks in FSDP1; fine-tuning then checkpoints each block. Source: litgpt 0.5.13
finetune/full.py, finetune/lora.py, pretrain.py, args.py; precisions are Lightning Fabric's."""

from collections.abc import Mapping
from typing import Any

from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands import processes
from memplan.frameworks.commands.launch import launches
from memplan.frameworks.files.documents import Document, Settings, words
from memplan.frameworks.litgpt.write import own_of, write
from memplan.frameworks.own_words.names import config_of, is_command_of
from memplan.frameworks.transformers import assume_one_gpu, only_launch
from memplan.tables.texts import settings_in
from memplan.units import pairs_of

DEFAULTS: dict[str, Any] = settings_in(
    """precision=bf16-true devices=1 num_nodes=1 lora_r=8 lora_alpha=16 lora_dropout=0.05 lora_query=true
    lora_key=false lora_value=true lora_projection=false lora_mlp=false lora_head=false optimizer=AdamW"""
)
TARGETS = pairs_of(
    """lora_query=q_proj lora_key=k_proj lora_value=v_proj lora_projection=o_proj
    lora_mlp=gate_proj,up_proj,down_proj lora_head=lm_head"""
)
"""LitGPT's switches -> the Hub's names."""
PRECISIONS = pairs_of("bf16-true=bf16 16-true=fp16 32-true=fp32 32=fp32 bf16-mixed=bf16-amp 16-mixed=fp16-amp")
QUANTISED = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-double", "bnb.fp4": "fp4", "bnb.int8-training": "int8"}
PRETRAINED = {f"pythia-{size}": f"EleutherAI/pythia-{size}" for size in ("14m", "70m", "160m")} | {
    "tiny-llama-1.1b": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T"
}
"""Names of its own configs -> the Hub's."""
OPTIMIZERS = pairs_of(
    """adamw adam=adamw sgd adamw8bit=adamw-8bit pagedadamw8bit=paged-adamw-8bit pagedadamw=paged-adamw
    galoreadamw=galore galoreadamw8bit=galore"""
)
VERBS = ("finetune", "finetune_lora", "finetune_full", "pretrain", "finetune_adapter", "finetune_adapter_v2")
HARMLESS = words(
    """out_dir data eval log logger_name seed access_token resume initial_checkpoint_dir initial_validation
    tokenizer_dir initial_checkpoint"""
)


def recognise(document: Document) -> tuple[str, ...]:
    """``checkpoint_dir`` or ``model_name`` with a section ``train``; ``litgpt finetune`` in a command."""
    if document.form == "shell":
        return tuple(launch.program for launch in launches(document) if is_command_of(launch, ("litgpt",), VERBS))[:1]
    train = document.settings.values.get("train")
    own = document.keys & {"checkpoint_dir", "model_name", "lora_r"}
    known = isinstance(train, Mapping) and bool({"micro_batch_size", "global_batch_size"} & set(train))
    return tuple(sorted(own))[:1] if document.form == "yaml" and known else ()


def read(document: Document, draft: Draft) -> None:
    """A file, or the one that a command names with its options."""
    if document.form != "shell":
        read_settings(document.settings, draft)
        return
    launch = only_launch([found for found in launches(document) if is_command_of(found, ("litgpt",), VERBS)])
    settings = config_of(launch, draft)
    verb = launch.words[0].text
    loose = [word.text for word in launch.words[1:2] if not word.text.startswith("-")]
    values = _nested(settings.values)
    if loose and "=" not in loose[0] and not loose[0].endswith((".yaml", ".yml")):
        values.setdefault("checkpoint_dir" if verb.startswith("finetune") else "model_name", loose[0])
    if verb in ("finetune", "finetune_lora"):
        values.setdefault("lora_r", DEFAULTS["lora_r"])
    read_settings(Settings(settings.path, values, settings.lines), draft)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """``--train.micro_batch_size 2`` into the section."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = str(key).partition(".")
        if dot:
            before = found.get(section)
            found[section] = {**(before if isinstance(before, Mapping) else {}), name: value}
        else:
            found[key] = value
    return found


def read_settings(settings: Settings, draft: Draft) -> None:
    """One training."""
    keys = Keys(draft, settings, FRAMEWORK, DEFAULTS)
    pretraining = keys.has("model_name") and not keys.has("checkpoint_dir")
    draft.put("trainer", "litgpt", Origin(FILE, f"{settings.path}: LitGPT's settings"))
    keys.put("method", "sft")
    _model(keys, pretraining)
    gpus = _gpus(keys)
    train = keys.section(
        "train", {"global_batch_size": 512 if pretraining else 16, "micro_batch_size": 4 if pretraining else 1}
    )
    _batch(train, gpus)
    _sharding(keys, gpus, pretraining)
    name = (keys.text("precision") or "bf16-true").lower()
    if name not in PRECISIONS:
        raise settings.error("precision", f"{name[:20]!r} is not modelled", f"modelled: {', '.join(PRECISIONS)}")
    precision, autocast = PRECISIONS[name], name.endswith("-mixed")
    keys.put("precision", precision, "precision")
    if gpus > 1 and autocast:
        keys.draft.remarks.append(
            f"{settings.path}: Fabric's FSDP gathers fp32 weights under {name}; half of them are counted"
        )
    if gpus == 1:
        keys.put("autocast", autocast, "precision")
    _adapter(keys, precision)
    _optimizer(keys)
    keys.warn("model_config", "the model is counted as its name says", "model")
    assume_one_gpu(draft)
    keys.close(HARMLESS)


def _model(keys: Keys, pretraining: bool) -> None:
    """``checkpoints/meta-llama/Llama-2-7b-hf`` is the Hub's meta-llama/Llama-2-7b-hf."""
    if "model" in keys.draft.given:
        keys.skip("checkpoint_dir", "model_name")
        return
    if pretraining:
        name = keys.text("model_name") or ""
        keys.put("model", PRETRAINED.get(name, name), "model_name")
        return
    keys.skip("model_name")
    path = keys.text("checkpoint_dir")
    if path is not None:
        parts = path.rstrip("/").split("/")
        keys.put(
            "model",
            "/".join(parts[parts.index("checkpoints") + 1 :] if "checkpoints" in parts else parts),
            "checkpoint_dir",
        )


def _gpus(keys: Keys) -> int:
    """Devices times nodes; ``auto`` is what the machine has."""
    given = keys.draft.options.get("num_gpus")
    nodes = keys.whole("num_nodes", 1)
    if str(keys.get("devices")).lower() in ("auto", "-1"):
        processes.put(processes.Count(None, nodes, "devices auto", keys.settings.where("devices"), True), keys.draft)
        return int(given or keys.draft.values.get("num_gpus") or 1)
    each = keys.whole("devices", 1)
    keys.put("num_gpus", each * nodes, "devices")
    if nodes > 1:
        keys.put("gpus_per_node", each, "devices")
    return int(given or each * nodes)


def _batch(train: Keys, gpus: int) -> None:
    micro, total = train.whole("micro_batch_size", 1), train.whole("global_batch_size", 1)
    train.put("batch_size", micro, "micro_batch_size")
    train.put("gradient_accumulation_steps", max(1, total // gpus // micro), "global_batch_size")
    train.copy("sequence_length", "max_seq_length", "whole")
    if train.flag("tie_embeddings"):
        train.warn("tie_embeddings", "the head is counted beside the embeddings")
    train.close(
        words("""save_interval log_interval lr_warmup_steps lr_warmup_fraction epochs max_tokens max_steps max_time
                      max_norm min_lr max_seq_length learning_rate weight_decay beta1 beta2""")
    )


def _sharding(keys: Keys, gpus: int, pretraining: bool) -> None:
    """FSDP1 over several GPUs, with checkpointing of each block where a checkpoint is fine-tuned."""
    source = Origin("trainer", f"{FRAMEWORK.label}: {'FSDP' if gpus > 1 else 'one device'}")
    on = gpus > 1 and not pretraining
    keys.draft.put("gradient_checkpointing", "full" if on else "none", source)
    if gpus > 1:
        keys.draft.put("sharding", "fsdp", source)
        if pretraining and (keys.whole("num_nodes") or 1) > 1:
            keys.warn("num_nodes", "weights are counted as sharded over all GPUs, not within each node")


def _adapter(keys: Keys, precision: str) -> None:
    """LoRA where one of its settings is there; bitsandbytes under it."""
    said = [key for key in DEFAULTS if key.startswith("lora_") and keys.has(key)]
    targets = [name for key, names in TARGETS.items() if keys.flag(key) for name in names.split(",")]
    rank, alpha, dropout = keys.whole("lora_r"), keys.number("lora_alpha"), keys.number("lora_dropout")
    if not said:
        return
    dtype = precision if precision in ("bf16", "fp16") else "fp32"
    lora = {"r": rank, "alpha": alpha, "dropout": dropout, "targets": targets, "dtype": dtype}
    keys.put("lora", lora, said[0])
    name = (keys.text("quantize") or "").lower()
    if name in QUANTISED:
        keys.put("quantization", QUANTISED[name], "quantize")
    elif name:
        keys.warn("quantize", f"{name[:20]} is not modelled: the base is counted as it is")


def _optimizer(keys: Keys) -> None:
    """A name, or a class with its arguments."""
    value = keys.get("optimizer")
    path = str(value.get("class_path") if isinstance(value, Mapping) else value)
    found = OPTIMIZERS.get(path.rsplit(".", 1)[-1].lower())
    arguments = value.get("init_args") if isinstance(value, Mapping) else None
    arguments = arguments if isinstance(arguments, Mapping) else {}
    if found is None:
        keys.warn("optimizer", f"optimizer {path[:40]} is not modelled: adamw is counted in its place")
        return
    keys.put("optimizer", found, "optimizer")
    if arguments.get("fused"):
        keys.put("optimizer_impl", "fused", "optimizer")


FRAMEWORK = Framework(
    "litgpt", "LitGPT", "0.5", recognise, read, write, extends=("memplan",), trainer="litgpt", trainer_of=own_of
)
