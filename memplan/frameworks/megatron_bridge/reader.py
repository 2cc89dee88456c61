"""Megatron-Bridge: a recipe under a command's overrides or YAML, or a program that makes its ``ConfigContainer``.

Names are Megatron's own within sections (``model.``, ``train.``, ``ddp.``, ``optimizer.``), and training is Megatron's:
the reader of its arguments reads them. Source: NVIDIA-NeMo/Megatron-Bridge 0.6 (067f987) training/config.py,
training/mixed_precision.py, training/gpt_step.py, models/gpt_provider.py, recipes/common.py."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.asking import MODEL
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.megatron.keys import BEARING, KNOWN, NOT_MODELLED
from memplan.frameworks.megatron.model import config_of, put_attention
from memplan.frameworks.megatron.names import is_known
from memplan.frameworks.megatron.reader import read_batch, read_knobs, read_parallel, read_recompute
from memplan.frameworks.megatron_bridge import keys as table
from memplan.frameworks.megatron_bridge.recipes import recipe
from memplan.frameworks.megatron_bridge.source import OVER, RECIPE, STEM, is_program, of_document, runs, trains
from memplan.frameworks.own_words.names import OTHERS, bound_images
from memplan.frameworks.transformers import read_launcher


def recognise(document: Document) -> tuple[str, ...]:
    """Its runner with a recipe, or overrides of its config; a program that makes one; YAML of its sections."""
    if document.form == "shell":
        return tuple(launch.program for launch, _, _ in runs(document))[:1]
    if document.form == "python":
        return ("megatron.bridge",) if is_program(document) and trains(document) else ()
    values = document.settings.values
    target = values.get(RECIPE)
    if isinstance(target, Mapping) and str(target.get("_target_")).startswith("megatron.bridge."):
        return (RECIPE,)
    if str(values.get("_target_")).startswith("megatron.bridge."):
        return ("_target_",)
    train, model = values.get("train"), values.get("model")
    batched = isinstance(train, Mapping) and {"train_iters", "micro_batch_size", "global_batch_size"} & set(train)
    sized = isinstance(model, Mapping) and any(key.endswith("_parallel_size") for key in model if isinstance(key, str))
    return ("train",) if batched and sized else ()


def read(document: Document, draft: Draft) -> None:
    """One training."""
    given = of_document(document, draft)
    idle = not any(key.startswith(("train.", "model.")) for key in given.values) and RECIPE not in given.values
    if idle or given.values.get("train", True) is None:
        raise InvalidJob(f"{document.path}: no training of Megatron-Bridge's in it", "name the script that starts one")
    keys = Keys(draft, _as_megatron(given), FRAMEWORK, table.DEFAULTS)
    draft.put("trainer", "megatron", Origin(FILE, f"{given.path}: Megatron-Bridge's settings"))
    keys.put("method", "sft")
    if keys.flag("skip_train"):
        raise InvalidJob(f"{given.path}: skip_train: it evaluates, and trains nothing", "name the file of a training")
    model = _recipe(keys)
    _model(keys, model)
    _adapters(keys)
    _length(keys)
    ranks = read_parallel(keys, _launcher(keys))
    read_batch(keys, ranks)
    _precision(keys)
    read_recompute(keys)
    _drop_idle(keys)
    read_knobs(keys)
    backend = str(keys.get("attention_backend") or "auto").rpartition(".")[2].lower()
    put_attention(keys, "eager" if backend in ("unfused", "local") else "flash", 0.0, "attention_backend")
    _optimizer(keys)
    _close(keys)


def _as_megatron(given: Settings) -> Settings:
    """Fields of the sections under Megatron's names; the rest under their own."""
    values: dict[str, Any] = {}
    lines, paths = dict(given.lines), dict(given.paths)
    for section in table.SECTIONS:
        for key in [key for key in given.values if key.startswith(f"{section}.")]:
            bare = key.partition(".")[2]
            name = table.RENAMED.get(bare, bare)
            values[name] = given.values[key]
            lines[name] = given.lines.get(key, given.lines.get(section, 1))
            paths[name] = given.paths.get(key, given.path)
    values |= {key: value for key, value in given.values.items() if key.partition(".")[0] not in table.SECTIONS}
    if is_template(values.get("optimizer")):  # one of two that a function gives back
        del values["optimizer"]
    either = [given.values.get(f"{section}.use_distributed_optimizer") for section in ("ddp", "optimizer")]
    own = given.values.get("optimizer.made") == "OptimizerConfig"
    if any(value is not None for value in either) or own:  # one of them turns the other on
        values["use_distributed_optimizer"] = bool(any(either)) or not own
    if "num_query_groups" in values:
        values["group_query_attention"] = True
    if values.get("share_embeddings_and_output_weights") is False:
        values["untie_embeddings_and_output_weights"] = True
    dtypes = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    for key in [key for key in values if key.endswith("_dtype")]:
        values[key] = dtypes.get(str(values[key]).rpartition(".")[2], values[key])
    return Settings(given.path, values, lines, paths=paths)


def _recipe(keys: Keys) -> str:
    """The recipe's settings as defaults; its model."""
    name = str(keys.get(RECIPE) or keys.get("recipe_name") or "").rpartition(".")[2]
    mode = str(keys.get("mode") or "").lower()
    if not name and keys.has(STEM) and keys.has("mode"):
        name = f"{keys.get(STEM)}_{'pretrain' if mode == 'pretrain' else 'sft'}_config"
    keys.skip("mode", STEM, "packed_sequence", "recipe_name", RECIPE, OVER)
    keys.draft.facts["recipe"] = name
    found = recipe(name) if name else None
    base = recipe("qwen3_600m_pretrain" if "pretrain" in name else "qwen3_600m_sft") if name.startswith("_") else None
    if found:
        keys.defaults = {**keys.defaults, **found[1]}
        return found[0]
    if base:  # _sft_common(): batches alone
        common = {key: base[1][key] for key in ("micro_batch_size", "seq_length")}
        keys.defaults = {**keys.defaults, **common}
    elif name or not all(keys.has(size) for size in table.SIZES[:2]):
        what = f"{name[:60] or 'the recipe'} is not known here: what it sets beside this is not counted"
        keys.draft.warn(RECIPE, keys.settings.where(RECIPE), what, "parallelism")
    return ""


def _model(keys: Keys, of_recipe: str) -> None:
    """The recipe's, the one that a bridge is made from, or the one that the fields describe."""
    draft = keys.draft
    made = [key for key in table.NAMED if keys.has(key)]
    keys.skip(*table.NAMED, "trust_remote_code", "load_hf_weights", "made")
    shape = [key for key in keys.settings.values if key in table.SHAPED]
    if "model" in draft.given:
        keys.skip(*shape)
        return
    whole = {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"} <= set(shape)
    named = None if whole else keys.text(made[0]) if made else of_recipe
    if named and not (is_template(named) and of_recipe):
        keys.put("model", named, made[0] if made else RECIPE)
        bound_images(keys, made[0] if made else RECIPE, megatron=True)
        for key in shape:
            keys.warn(key, f"the model is counted as {named[:60]} is", "model")
    elif of_recipe and not whole:
        keys.put("model", of_recipe, RECIPE)
    elif keys.has("num_layers") and keys.has("hidden_size"):
        keys.put("model", config_of(keys), "num_layers")
    else:
        name = str(draft.facts.get("recipe") or "")
        what = f"{name[:60]} is no recipe that is known" if name else "no recipe, and no model that its text names"
        raise NotKnown(f"{keys.settings.where(RECIPE)}: model is not known: {what}", MODEL)


def _adapters(keys: Keys) -> None:
    """LoRA, whose rank and products the recipe says where the file does not: 32 at most, on every linear
    (recipes/common.py)."""
    said = [key for key in keys.settings.values if key == "peft" or key.startswith("peft.")]
    keys.skip(*said)
    word = str(keys.settings.values.get("peft", "")).lower()
    off = word in ("none", "null", "") and not any(key.startswith("peft.") for key in said)
    name = str(keys.draft.facts.get("recipe") or "")
    mode = str(keys.settings.values.get("mode") or "").lower()
    default = mode in ("lora", "dora") or "_peft" in name or ("_finetune_" in f"{name}_" and "peft" not in said)
    if not off or default:
        at = said[0] if said else RECIPE
        if "dora" in (word, mode):
            keys.draft.warn(at, keys.settings.where(at), "DoRA is counted as LoRA", "adapters")
        names, rank = keys.names("peft.target_modules") or (), keys.whole("peft.dim")
        targets: Any = [name.strip("[]'\" ") for name in names] or "all-linear"
        keys.put("lora", {"r": rank or 32, "targets": targets}, at)
        if not (names and rank):
            keys.bound(at, "adapters are counted as of 32 on every linear where nothing is said", "adapters")


def _length(keys: Keys) -> None:
    """What the data has, which the model follows."""
    found = [key for key in table.LENGTHS if keys.has(key)]
    keys.skip(*table.LENGTHS)
    if "sequence_length" in keys.draft.given:
        return
    if found:
        keys.copy("sequence_length", found[0], "whole")
    elif keys.get("seq_length"):
        keys.put("sequence_length", keys.whole("seq_length"), "seq_length")
    else:
        keys.draft.ask("sequence_length", keys.settings.where(), "nothing says how long a sequence is")


def _launcher(keys: Keys) -> dict[str, Any]:
    """GPUs that the launcher starts, as torchrun's options; those of its own Slurm launcher."""
    draft, launch = keys.draft, keys.draft.facts.get("launch")
    nodes, each = (keys.whole(key) for key in ("nodes", "gpus_per_node"))
    if each:
        draft.put(
            "num_gpus", each * (nodes or 1), Origin(FILE, f"{keys.settings.where('gpus_per_node')}: gpus_per_node")
        )
        return {"nproc_per_node": each, "nnodes": nodes or 1}
    if launch is not None and (launch.launcher != "python" or launch.before):
        read_launcher(launch, draft)
    gpus = draft.values.get("num_gpus")
    of_node = draft.values.get("gpus_per_node") or gpus
    return {"nproc_per_node": of_node, "nnodes": gpus // of_node} if gpus and of_node else {}


def _precision(keys: Keys) -> None:
    """bf16 with gradients in fp32, unless ``mixed_precision`` says otherwise."""
    parts = [key for key in keys.settings.values if key.startswith("mixed_precision.")]
    word = str(
        keys.get("mixed_precision.from") or keys.get("mixed_precision.made") or keys.get("mixed_precision") or ""
    )
    half = "fp16" in word.partition("_with_")[0] or bool(keys.flag("mixed_precision.fp16"))
    said = next((key for key in ("mixed_precision", *parts) if keys.has(key)), "")
    keys.skip("mixed_precision", *parts)
    if said:
        keys.put("dtype", "fp16" if half else "bf16", said)
    else:
        keys.assume("dtype", "bf16", "Megatron-Bridge's bf16_mixed")
    _narrow(keys, word, said)
    without = not said and keys.draft.facts.get("recipe", "") == "" and keys.get("grad_reduce_in_fp32") is False
    if keys.get("mixed_precision.grad_reduce_in_fp32") is False or keys.get("grad_reduce_in_bf16") or without:
        at = next((key for key in ("mixed_precision.grad_reduce_in_fp32", "grad_reduce_in_bf16") if keys.has(key)), "")
        keys.put("grad_dtype", "bf16", at or "grad_reduce_in_fp32")
    keys.skip("grad_reduce_in_bf16", "grad_reduce_in_fp32", "fp8")


NARROW: dict[str, dict[str, Any]] = {
    "fp8_delayed": {"fp8_format": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "fp8_current": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True},
    "fp8_subchannel": {"fp8_format": "hybrid", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "nvfp4": {"fp4_format": "e2m1", "fp4_param_gather": True},
}
"""Of precisions whose names have these words (training/mixed_precision.py). Current scaling leaves the first and last
layer in 16 bits."""


OVERWRITTEN = ("fp8_param", "fp8_param_gather", "fp4_param", "fp4_param_gather")


def _narrow(keys: Keys, word: str, said: str) -> None:
    """Products in FP8 and FP4, where the precision is one by name and nothing of it is changed."""
    kind = next((name for name in NARROW if name in word and word.startswith("bf16_with_")), "")
    own, at = NARROW.get(kind, {}), said or "fp8"
    told = [(f"mixed_precision.{each}", own[name]) for name in own for each in (name, name.removesuffix("_gather"))]
    changed = [key for key in keys.settings.values if key.endswith((".fp8", ".fp4")) and keys.get(key)]
    changed += [key for key, value in told if keys.get(key) not in (None, value)]
    if kind and not changed and not keys.get("fp8"):
        for name, value in own.items():
            put_inner(keys, "megatron", name, value, said)
        if kind == "fp8_current" and keys.get("mixed_precision.first_last_layers_bf16") is not False:
            keys.draft.warn(said, keys.settings.where(said), "the first and last layer are counted in fp8", "precision")
    elif changed or "fp8" in word or "fp4" in word or keys.get("fp8"):
        keys.draft.warn(at, keys.settings.where(at), "products in fp8 are not counted", "precision")


def _drop_idle(keys: Keys) -> None:
    """What only another way of recomputation reads, which a saved config has too; of ``ddp`` and ``model`` what
    ``mixed_precision`` overwrites as training starts (training/mixed_precision.py: setup), or nothing else reads."""
    how = str(keys.get("recompute_granularity") or "")
    others = {"full": ("recompute_modules",), "selective": ("recompute_method", "recompute_num_layers")}
    idle = (*others.get(how, tuple(name for names in others.values() for name in names)), *OVERWRITTEN)
    keys.skip(*idle)
    keys.defaults = {key: value for key, value in keys.defaults.items() if key not in idle}
    kept = {key: value for key, value in keys.settings.values.items() if key not in idle}
    keys.settings = replace(keys.settings, values=kept)


def _optimizer(keys: Keys) -> None:
    """Adam, unless it says another."""
    name = (keys.text("optimizer") or "adam").lower()
    made = str(keys.get("optimizer.made") or "")
    if name != "adam" or "muon" in made:
        keys.draft.warn("optimizer", keys.settings.where("optimizer"), f"{name[:20]} is counted as adam", "optimizer")
    else:
        keys.put("optimizer", "adamw", "optimizer")


def _close(keys: Keys) -> None:
    """What bears and is on; of sections that do not bear, nothing."""
    for key in ("use_megatron_fsdp", "use_torch_fsdp2"):
        if keys.flag(key):
            keys.warn(key, "states are counted as sharded by the distributed optimizer", "parallelism")
    if keys.get("pipeline_model_parallel_layout") and (keys.whole("pipeline_model_parallel_size") or 1) > 1:
        at = "pipeline_model_parallel_layout"
        keys.draft.warn(at, keys.settings.where(at), "layers are counted as divided evenly", "parallelism")
    keys.skip("pipeline_model_parallel_layout", "data_parallel_sharding_strategy")
    for key, value in keys.settings.values.items():
        if table.FROZEN.fullmatch(key) and value:
            keys.warn(key, "all weights are counted as trained", "freezing")
    for key, why in NOT_MODELLED.items():
        value = keys.get(key)
        if value in (None, False, "", "none", 0) or key in table.OWN:
            continue
        keys.draft.warn(key, keys.settings.where(key), why)
    known = {key for key in keys.settings.values if (key in KNOWN or is_known(key)) and not BEARING.fullmatch(key)}
    elsewhere = {key for key in keys.settings.values if "." in key}
    off = {key for key, value in keys.settings.values.items() if value in (None, False, 0, [], "", "null", "None")}
    keys.close(known | elsewhere | off | table.OWN | table.SHAPED)


FRAMEWORK = Framework(
    "megatron-bridge", "Megatron-Bridge", "0.6", recognise, read, trainer="megatron",
    extends=(*OTHERS, "megatron", "mindspeed", "python"),
)  # fmt: skip
