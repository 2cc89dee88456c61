"""Megatron-LM's argument lists: in a command, a launch script, or as MODEL_ARGS of YAML.

The model is what the arguments describe (``megatron_model``); memplan's own knobs of Megatron have Megatron's names.
Source: Megatron-LM megatron/training/arguments.py (core 0.16)."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.asking import MODEL
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands.processes import tasks_before
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.megatron import keys as table
from memplan.frameworks.megatron.model import config_of, own_layers, put_attention
from memplan.frameworks.megatron.names import is_known
from memplan.frameworks.megatron.shape import felt_shape
from memplan.frameworks.megatron.write import write
from memplan.frameworks.own_words.names import OTHERS
from memplan.frameworks.shell.reader import options_of
from memplan.spec.megatron import Megatron
from memplan.units import ceil_div

_PROGRAM = re.compile(
    r"\b(pretrain_\w+|posttrain_\w+|finetune_\w+|train_rl|train)\.py$|\b(pretrain_gpt|posttrain_gpt)$"
)
_TRAINS = re.compile(r"\b(pretrain|posttrain|finetune|train)_\w+(\.py|\b(?=\s*\\))")


def recognise(document: Document) -> tuple[str, ...]:
    """``pretrain_gpt.py`` and its like with Megatron's names; MODEL_ARGS of YAML."""
    return _marks(document, False)


def is_mindspeed(document: Document) -> tuple[str, ...]:
    """The same, with arguments that MindSpeed-LLM adds."""
    return _marks(document, True)


def _marks(document: Document, mindspeed: bool) -> tuple[str, ...]:
    if document.form == "yaml":
        arguments = document.settings.values.get("MODEL_ARGS")
        return ("MODEL_ARGS",) if not mindspeed and isinstance(arguments, Mapping) else ()
    text = document.text
    if document.form != "shell" or "--num-layers" not in text or "--hf-checkpoint" in text:
        return ()
    if not _TRAINS.search(text) and any(f"--{name} " not in text for name in table.SHAPE):
        return ()
    own = any(f"--{name.replace('_', '-')}" in text for name in table.OF_MINDSPEED) or "posttrain_gpt.py" in text
    return ("--num-layers",) if own is mindspeed and "--micro-batch-size" in text else ()


def read(document: Document, draft: Draft) -> None:
    """The training of a Megatron script."""
    read_for(document, draft, FRAMEWORK)


def read_for(document: Document, draft: Draft, row: Framework) -> None:
    """A training of Megatron-LM or MindSpeed-LLM."""
    if document.form == "yaml":
        section = document.settings.section("MODEL_ARGS")
        lines = {
            str(key).lstrip("-").replace("-", "_"): document.settings.lines.get(f"MODEL_ARGS.{key}", 1)
            for key in section.values
        }
        values = {str(key).lstrip("-").replace("-", "_"): value for key, value in section.values.items()}
        read_arguments(Keys(draft, Settings(document.path, values, lines), row, table.DEFAULTS), {})
        return
    for whole in document.commands:
        command = list(whole.words)
        named = [at for at, word in enumerate(command) if _PROGRAM.search(word.text)]
        files = [at for at, word in enumerate(command) if word.text.endswith(".py")]
        modules = [at for at, word in enumerate(command) if at and command[at - 1].text == "-m"]
        place = next(iter([*named, *files, *modules[::-1]]), -1)
        if place < 0 or not any(word.text == "--num-layers" for word in command):
            continue
        values, lines, _ = options_of(command[place + 1 :])
        started = {key: values.pop(key, None) for key in table.OF_PROCESS}  # a fork's, under mpirun
        launcher, _, _ = options_of(command[:place])
        if isinstance(started["world_size"], int):
            launcher.setdefault("nproc_per_node", started["world_size"])
        tasks = None if "nproc_per_node" in launcher else tasks_before(whole, document.path)
        if tasks is not None and (tasks.each or 1) > 1 and tasks.nodes:  # one may start others
            launcher = {"nproc_per_node": tasks.each, "nnodes": tasks.nodes}
        settings = Settings(document.path, values, lines | {"program": command[place].line})
        draft.facts["program"] = command[place].text
        if why := table.other_model(command[place].text, "model" in draft.given):
            hint = "" if "model" in draft.given else MODEL
            draft.warn("program", settings.where("program"), why, "model", hint)
        if table.OWN_LOSS.search(command[place].text) and "stage" not in values:
            draft.warn("program", settings.where("program"), "its loss is counted as pretraining's", "method")
        read_arguments(Keys(draft, settings, row, table.DEFAULTS), launcher)
        return
    raise InvalidJob(f"{document.path}: no training with --num-layers in it", "name the script that starts one")


def read_arguments(keys: Keys, launcher: Mapping[str, Any]) -> None:
    """All arguments of a training."""
    if keys.has("num_experts"):
        keys.defaults = {**keys.defaults, **table.DEFAULTS_OF_EXPERTS}
    draft, mindspeed = keys.draft, keys.framework.name == "mindspeed"
    draft.put("trainer", keys.framework.name, Origin(FILE, f"{keys.settings.path}: {keys.framework.title}'s arguments"))
    if "method" not in draft.values:
        _method(keys, mindspeed)
    config = config_of(keys) if keys.has("num_layers") or "model" not in draft.values else None
    if config and "model" not in draft.given:
        keys.put("model", config, "num_layers")
    keys.copy("sequence_length", "seq_length", "whole")
    if (keys.whole("max_padding_length") or 0) > (keys.whole("seq_length") or 0):  # Pai-Megatron-Patch's data
        keys.draft.values["sequence_length"] = keys.whole("max_padding_length")
    parallel = read_parallel(keys, launcher)
    read_batch(keys, parallel)
    half = "bf16" if keys.flag("bf16") else "fp16" if keys.flag("fp16") else ""
    if half:
        keys.put("dtype", half, half)
        if keys.flag("grad_reduce_in_bf16"):  # a buffer in bf16, of which the step copies a shard to fp32
            keys.put("grad_dtype", "bf16", "grad_reduce_in_bf16")
        elif half == "fp16" and not keys.flag("accumulate_allreduce_grads_in_fp32"):  # bf16 alone sets it by itself
            keys.put("grad_dtype", "fp16", "fp16")
    else:
        keys.put("precision", "fp32", "bf16")
    name = (keys.text("optimizer") or "adam").lower()
    momentum = keys.number("sgd_momentum")
    names = {"adam": "adamw", "sgd": "sgd" if momentum == 0 else "sgd-momentum"}
    if name in ("adam", "sgd", "lion", "muon"):
        keys.put("optimizer", names.get(name, name), "optimizer")
    else:
        keys.warn("optimizer", f"optimizer {name[:20]} is not modelled: adamw is counted in its place")
    backend = (keys.text("attention_backend") or "auto").lower()
    flash = backend in ("auto", "flash", "fused") and keys.get("use_flash_attn") is not False
    if own_layers(keys, mindspeed):
        flash = bool(keys.flag("use_flash_attn"))
    kernel = "flash" if half else "sdpa"
    put_attention(keys, kernel if flash else "eager", 0.1, "attention_backend", "use_flash_attn")
    _masks(keys, mindspeed)
    dropout = keys.number("hidden_dropout")
    put_inner(keys, "megatron", "hidden_dropout", 0.1 if dropout is None else dropout, "hidden_dropout")
    read_recompute(keys)
    read_knobs(keys)
    _adapter(keys)
    _close(keys)


def _method(keys: Keys, mindspeed: bool) -> None:
    """``--stage`` of MindSpeed; pretraining and SFT are the same to memory."""
    stage = (keys.text("stage") or "sft").lower() if mindspeed else "sft"
    methods = {"sft": "sft", "dpo": "dpo", "simpo": "simpo", "orm": "reward", "rm": "reward", "pairwise": "reward"}
    if stage not in methods:
        raise keys.settings.error("stage", f"{stage[:20]!r} is not modelled", f"modelled: {', '.join(methods)}")
    method = "ipo" if stage == "dpo" and keys.text("dpo_loss_type") == "ipo" else methods[stage]
    keys.put("method", method, *(["stage"] if keys.has("stage") else []))


def read_parallel(keys: Keys, launcher: Mapping[str, Any]) -> int:
    """Sizes of the mesh, the number of GPUs; data-parallel ranks."""
    model = 1
    for name, job_key in table.SIZES.items():
        size = keys.whole(name)
        if size is not None and (size > 1 or keys.has(name)):
            keys.put(job_key, size, name)
        if name.split("_")[0] in ("tensor", "pipeline", "context"):
            model *= size or 1
    if (keys.whole("tensor_model_parallel_size") or 1) > 1:
        keys.put("sequence_parallel", bool(keys.flag("sequence_parallel")), "sequence_parallel")
    each, nodes = launcher.get("nproc_per_node"), launcher.get("nnodes", 1)
    gpus = each * nodes if isinstance(each, int) and isinstance(nodes, int) else 0
    world = keys.draft.options.get("num_gpus") or gpus
    if gpus:
        keys.put("num_gpus", gpus)
        if isinstance(nodes, int) and nodes > 1:
            keys.put("gpus_per_node", each)
    elif not world:
        keys.assume("num_gpus", model, "no launcher says on how many GPUs it runs: those that hold one copy")
    layers, stages = keys.whole("num_layers", 1), keys.whole("pipeline_model_parallel_size", 1)
    chunk = keys.whole("num_layers_per_virtual_pipeline_stage")
    chunks = keys.whole("num_virtual_stages_per_pipeline_rank")
    if chunk and stages > 1:
        keys.put("virtual_pipeline", max(1, layers // (stages * chunk)), "num_layers_per_virtual_pipeline_stage")
    elif chunks and stages > 1:
        keys.put("virtual_pipeline", chunks, "num_virtual_stages_per_pipeline_rank")
    on = bool(keys.flag("use_distributed_optimizer"))
    if on and not world and "cluster" not in keys.draft.given:
        keys.draft.ask("num_gpus", keys.settings.path, "the optimizer is shared among GPUs, and nothing says how many")
    keys.put("sharding", "distributed-optimizer" if on else "ddp", "use_distributed_optimizer")
    return max(1, int(world or model) // model)


def read_batch(keys: Keys, ranks: int) -> None:
    """Micro-batch, and micro-batches of the global batch."""
    micro = keys.whole("micro_batch_size", 1)
    keys.put("batch_size", micro, "micro_batch_size")
    if is_template(keys.settings.values.get("global_batch_size")):
        keys.skip("global_batch_size")
        steps = max(2, 2 * keys.whole("pipeline_model_parallel_size", 1))
        keys.assume("gradient_accumulation_steps", steps, "global_batch_size is not in the file")
    elif total := keys.whole("global_batch_size"):
        keys.put("gradient_accumulation_steps", max(1, ceil_div(total, micro * ranks)), "global_batch_size")


def _masks(keys: Keys, mindspeed: bool) -> None:
    """The data loader's mask of all tokens by all tokens, one byte each; MindSpeed's ways of context parallelism."""
    length, micro = keys.whole("seq_length") or 0, keys.whole("micro_batch_size", 1)
    made = not keys.flag("no_create_attention_mask_in_dataloader")
    if made and not mindspeed and length * length * micro >= table.MASK:
        put_inner(keys, "megatron", "create_attention_mask_in_dataloader", True, "create_attention_mask_in_dataloader")
    if mindspeed and (keys.whole("context_parallel_size") or 1) > 1:
        word = keys.text("context_parallel_algo") or "ulysses_cp_algo"
        ways = {"ulysses_cp_algo": "a2a", "megatron_cp_algo": "p2p"}
        if word in ways:
            put_inner(keys, "megatron", "cp_comm_type", ways[word], "context_parallel_algo")
        else:
            keys.warn("context_parallel_algo", f"{word[:30]} is counted as Megatron's ring")
    keys.skip("context_parallel_algo")


def read_recompute(keys: Keys) -> None:
    """``checkpoint_activations`` is what full recomputation was called until 2022; ``recompute_activations`` makes a
    granularity selective, whatever it is (validate_args)."""
    kind = keys.text("recompute_granularity") or ("full" if keys.flag("checkpoint_activations") else "none")
    kind = "selective" if keys.flag("recompute_activations") else kind
    said = keys.settings.values
    kind = "none" if said.get("recompute_granularity", kind) is None else kind.lower()
    if kind not in ("full", "selective", "none"):
        raise keys.settings.error("recompute_granularity", f"{kind[:20]!r} is not known", "use full or selective")
    keys.put("gradient_checkpointing", kind, "recompute_granularity", "recompute_activations", "checkpoint_activations")


def read_knobs(keys: Keys) -> None:
    """Settings that memplan has under Megatron's own names."""
    if layout := table.layout_of(keys.names("num_layer_list") or ()):
        put_inner(keys, "megatron", "pipeline_model_parallel_layout", layout, "num_layer_list")
    for flag, name in table.NEGATIONS.items():
        if keys.flag(flag):
            put_inner(keys, "megatron", name, False, flag)
    for name in (*Megatron.model_fields, *table.OTHER_NAMES):
        if name.endswith("_dropout") or (name not in keys.defaults and not keys.has(name)):
            continue
        value = keys.get(name)
        if is_template(value):
            keys.warn(name, f"{str(value)[:40]!r} stands for something that is not in the file")
            continue
        if name in ("recompute_modules",) and isinstance(value, str):
            value = value.split()
        put_inner(keys, "megatron", table.OTHER_NAMES.get(name, name), value, name)


def _adapter(keys: Keys) -> None:
    """MindSpeed's adapters: names of Megatron's fused linears."""
    rank, alpha = keys.whole("lora_r"), keys.number("lora_alpha")
    given = keys.names("lora_target_modules") or ()
    targets = [part for name in given for part in table.FUSED_LINEARS.get(name, (name,))]
    if rank:
        keys.put("lora", {"r": rank, "alpha": alpha, "targets": targets or "all-linear"}, "lora_r")


def _close(keys: Keys) -> None:
    """Arguments that bear and are on, and names that neither Megatron nor MindSpeed-LLM has; the rest do not bear."""
    for key, why in table.NOT_MODELLED.items():
        value = keys.get(key)
        usual = key == "spec" and table.USUAL_SPEC.search(str(value))
        if value not in (None, False, "", "none") and not usual:
            keys.warn(key, why, table.DECIDES.get(key))
    for key, value in keys.settings.values.items():
        if keys.took(key) or key in table.KNOWN or value in (None, False):
            continue
        if table.BEARING.fullmatch(key):
            keys.warn(key)
        elif not is_known(key):
            keys.warn(
                key, f"no argument of {keys.framework.title}'s that is known", table.of_unknown(key, keys.draft.facts)
            )


FRAMEWORK = Framework("megatron", "Megatron-LM", "core 0.16", recognise, read, write, extends=OTHERS,
                      trainer="megatron", same_model=felt_shape)  # fmt: skip
