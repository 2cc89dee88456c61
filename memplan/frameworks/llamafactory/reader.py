"""LLaMA-Factory's YAML, and ``llamafactory-cli train`` with one and options over it.

Its arguments stand beside transformers' TrainingArguments (``hf_arguments``); defaults are those of 0.9.5. The dtype of
weights is the trainer's own: trained ones in fp32 unless ``pure_bf16`` or ZeRO-3, frozen ones as they compute."""

from functools import partial
from typing import Any

from memplan.errors import NoTraining
from memplan.frameworks.base import DEFAULT, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands import processes
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.common.references import put_reference
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import found_at, told_of
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.hugging_face.arguments import HARMLESS as TRAINER_HARMLESS
from memplan.frameworks.hugging_face.arguments import put_attention, read_arguments
from memplan.frameworks.hugging_face.switches import ask_loaded
from memplan.frameworks.hugging_face.version import beside_torch
from memplan.frameworks.llamafactory import switches
from memplan.frameworks.llamafactory import v1 as llamafactory_v1
from memplan.frameworks.llamafactory.keys import ATTENTIONS, HARMLESS, LOSSES, MARKS, NOT_MODELLED, STAGES
from memplan.frameworks.llamafactory.write import write
from memplan.frameworks.own_words.names import bound_images, config_of, is_command_of, lora_targets, may_see_images
from memplan.frameworks.transformers import assume_one_gpu, only_launch, read_launcher
from memplan.frameworks.trl.keys import LOSSES as TRL_LOSSES
from memplan.spec.freezing import LANGUAGE_MODEL

VERBS = ("train", *llamafactory_v1.COMMANDS)
PROGRAMS = ("llamafactory-cli", "lmf", "llamafactory.cli", "src/train.py", "src/train_bash.py")


def is_ours(launch: Launch) -> bool:
    """Its command, or its script with its arguments: other projects have a src/train.py, too."""
    if not launch.program.endswith(".py"):
        return is_command_of(launch, PROGRAMS, VERBS)
    said = set(launch.arguments().values)
    own = {"stage", "finetuning_type", "template", "do_train"} & said
    config = launch.words and launch.words[0].text.endswith((".yaml", ".yml", ".json"))
    here = found_at(launch.path, launch.program)
    anothers = here is not None and "run_exp" not in here.read_text("utf-8", "replace")
    renamed = {"stage", "finetuning_type", "template"} <= said
    return (renamed or (is_command_of(launch, PROGRAMS, VERBS) and bool(own or config))) and not anothers


def recognise(document: Document) -> tuple[str, ...]:
    """Its arguments beside a stage or a template; ``llamafactory-cli train`` in a script."""
    if document.form == "shell":
        return tuple(launch.program for launch in launches(document) if is_ours(launch))[:1]
    if document.form not in ("yaml", "json"):
        return ()
    if llamafactory_v1.is_v1(document.settings):
        return llamafactory_v1.MARKS[:1]
    marks = tuple(key for key in document.settings.values if key in MARKS)
    words = document.keys & {"stage", "template", "finetuning_type", "fine_tuning"}
    return marks if words and "fine_tuning" not in words else ()  # PaddleFormers'


def read(document: Document, draft: Draft) -> None:
    """A file, or the one that a command names with its options."""
    if document.form != "shell":
        read_settings(document.settings, draft)
        return
    launch = only_launch([found for found in launches(document) if is_ours(found)])
    verb = launch.words[0].text if launch.words else ""
    if launch.program.endswith(f"{switches.OLD}.py"):
        draft.facts[switches.OLD] = f"{launch.where}: {launch.program}"
    if launch.program.endswith(".py") and not is_command_of(launch, PROGRAMS, VERBS):
        told_of(document.path, launch.program, launch.where, draft)
    read_settings(config_of(launch, draft), draft, verb if verb in VERBS else "")
    if launch.launcher or launch.before:
        read_launcher(launch, draft)
    else:
        _put_workers(launch, draft)


OLD_LENGTHS = ("max_source_length", "max_target_length")
"""Of a prompt and of its answer, 512 each, in place of ``cutoff_len`` before 0.3."""
OTHER = ("export_dir", "infer_backend", "infer_dtype", "eval_template", "do_predict", "lang")
"""Keys of ``llamafactory-cli export``, ``chat``, ``api`` and ``eval``, and of predictions."""


def _trains(keys: Keys) -> None:
    """Raises NoTraining for a file that merges, serves or evaluates: without ``do_train`` nothing is trained."""
    named = next((key for key in OTHER if keys.has(key) and keys.get(key) is not False), "")
    if named and not keys.flag("do_train"):
        raise NoTraining(
            f"{keys.settings.where(named)}: {named} without do_train: it trains nothing", "check a training"
        )


def _put_workers(launch: Launch, draft: Draft) -> None:
    """``FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train``: its own way to torchrun (launcher.py)."""
    ray, forced = (launch.command.environment.get(key, "").lower() in ("1", "true", "y") for key in _SWITCHES)
    if not (ray and "num_gpus" in draft.values):
        processes.put(processes.of_variables(launch, forced), draft)


_SWITCHES = ("USE_RAY", "FORCE_TORCHRUN")


def read_settings(settings: Settings, draft: Draft, verb: str = "") -> None:
    """All arguments of one training; files of the rewritten trainer (v1) have another format."""
    if llamafactory_v1.is_v1(settings):
        llamafactory_v1.read_settings(settings, draft, FRAMEWORK, verb)
        return
    keys = Keys(draft, switches.with_names(settings), FRAMEWORK, switches.defaults_of(settings, draft))
    _trains(keys)
    draft.put("trainer", "llamafactory", Origin(FILE, f"{settings.path}: LLaMA-Factory's arguments"))
    method = _method(keys)
    keys.copy("model", "model_name_or_path")
    bound_images(keys, "model_name_or_path", said=may_see_images(keys.text("template")), asks=True)
    if keys.has("model_revision") and keys.text("model_revision") != "main":
        keys.copy("revision", "model_revision")
    keys.skip("model_revision", "do_train", "do_eval")
    _length(keys)
    read_arguments(keys)
    _checkpointing(keys)
    switches.read_optimizer(keys)
    _finetuning(keys)
    _quantisation(keys)
    _fp8(keys, method)
    word = (keys.text("flash_attn") or "auto").lower()
    word = switches.SWITCH.get(word, word)
    if word in ATTENTIONS:
        put_attention(keys, ATTENTIONS[word], word, "flash_attn")
    else:
        raise keys.settings.error("flash_attn", f"{word[:20]!r} is no attention", f"use {', '.join(ATTENTIONS)}")
    keys.put_on("enable_liger_kernel", "kernels", "liger")
    if keys.has("ref_model") and method in ("dpo", "ipo", "kto"):  # beside adapters too (trainer_utils.py)
        put_reference(keys, "ref_model", resident=True)
    if keys.number("pref_ftx") and method in ("dpo", "ipo"):
        keys.put("sft_term", True, "pref_ftx")
    if keys.number("moe_aux_loss_coef"):
        keys.put("router_aux_loss", True, "moe_aux_loss_coef")
    if keys.flag("pure_bf16"):
        keys.put("precision", "bf16", "pure_bf16")
        keys.put("autocast", False, "pure_bf16")
    if keys.flag("upcast_layernorm"):
        if keys.draft.values.get("quantization"):
            keys.put("kbit_upcast", True, "upcast_layernorm")
        else:
            keys.warn("upcast_layernorm", "norms are counted in the checkpoint's dtype")
    _data(keys, method)
    keys.warn_on(NOT_MODELLED, "1")
    _loaded(keys)
    assume_one_gpu(draft)
    keys.close(HARMLESS | TRAINER_HARMLESS)
    draft.finishers["precision"] = _settle
    if draft.facts.get("whole"):
        switches.rest(keys)
    draft.finishers |= {"reentrant": _without_reentrant, "torch": partial(beside_torch, settings.path)}


def _loaded(keys: Keys) -> None:
    """Adapters that are trained on; beside new ones they are merged into a base that can be (0.9.5 model/adapter.py:
    _setup_lora_tuning)."""
    apart = {"quantization", "zero3"} & {*keys.draft.values, keys.draft.values.get("sharding")}
    if keys.flag("create_new_adapter") and not apart:
        keys.skip("adapter_name_or_path")
    else:
        ask_loaded(keys, "adapter_name_or_path")


def _data(keys: Keys, method: str) -> None:
    """Rows of several examples, which a 4-D mask tells apart where flash attention does not; what evaluation keeps."""
    if keys.flag("neat_packing") and method == "sft" and keys.draft.values.get("attention") == "sdpa":
        keys.put("padded", True, "neat_packing")
    evaluates = "eval_batch_size" in keys.draft.values and not keys.flag("predict_with_generate")
    if evaluates and keys.flag("compute_accuracy"):
        keys.warn("compute_accuracy", "the predictions that evaluation collects on the GPU are not counted")
    keys.skip("neat_packing", "predict_with_generate", "compute_accuracy")
    if (keys.whole("ray_num_workers") or 1) > 1:
        keys.put("num_gpus", keys.whole("ray_num_workers"), "ray_num_workers")


def _fp8(keys: Keys, method: str) -> None:
    """TransformerEngine's products, or torchao's, as accelerate gathers them; in SFT alone (train/fp8_utils.py)."""
    if not keys.flag("fp8") or method != "sft":
        return
    if keys.text("finetuning_type") == "lora" or keys.has("deepspeed"):
        keys.warn("fp8", "products in fp8 are not modelled")
        return
    keys.put("float8", "te" if keys.text("fp8_backend") == "te" else "tensorwise", "fp8")
    if keys.text("fp8_backend") != "te":
        keys.draft.finishers["float8"] = _gathered_in_float8


def _gathered_in_float8(draft: Draft) -> None:
    if draft.now("sharding") == "fsdp2":
        fsdp = {**(draft.values.get("fsdp") or {}), "float8_all_gather": True}
        draft.put("fsdp", fsdp, Origin(DEFAULT, "accelerate: enable_fsdp_float8_all_gather"))


def _settle(draft: Draft) -> None:
    """Where neither bf16 nor fp16 is on, all weights are trained in fp32, but under DeepSpeed (model/adapter.py)."""
    amp, why = draft.facts.get("amp", ("no", Origin(DEFAULT, "")))
    sharding = str(draft.now("sharding") or "")
    known = {"precision", "dtype"} & (draft.given | set(draft.values)) or "zero_stage" in draft.given
    if amp == "no" and not known and not draft.values.get("lora") and not sharding.startswith("zero"):
        draft.put("precision", "fp32", why)
    hf_precision.settle(draft)


def _without_reentrant(draft: Draft) -> None:
    """Under FSDP2 it sets ``use_reentrant_gc`` to false itself (model_utils/checkpointing.py)."""
    sharding = draft.now("sharding")
    checkpoints = draft.values.get("gradient_checkpointing") != "none"
    if sharding == "fsdp2" and checkpoints and draft.values.get("gradient_checkpointing_reentrant"):
        why = Origin(DEFAULT, f"{FRAMEWORK.label}: use_reentrant_gc is false under FSDP2")
        draft.origins.pop("gradient_checkpointing_reentrant", None)
        draft.put("gradient_checkpointing_reentrant", False, why)


def _method(keys: Keys) -> str:
    """``stage`` and, of preferences, ``pref_loss``. Raises InvalidJob for PPO, which is not modelled."""
    stage = (keys.text("stage") or "").lower()
    if stage not in STAGES:
        raise keys.settings.error("stage", f"{stage[:20]!r} is not modelled", f"modelled: {', '.join(STAGES)}")
    loss = (keys.text("pref_loss") or "").lower()
    if stage != "dpo":
        keys.put("method", STAGES[stage], "stage")
        return STAGES[stage]
    method = LOSSES.get(loss) or ("dpo" if TRL_LOSSES.get(loss) == "dpo" else "")
    if not method:
        raise keys.settings.error("pref_loss", f"{loss[:20]!r} is no loss", f"known: {', '.join(LOSSES)}")
    if loss not in LOSSES:  # of the same log-probabilities
        keys.remark(f"{loss} is TRL's, which a fork of the project's has", "pref_loss")
    keys.put("method", method, "pref_loss", "stage")
    return method


def _length(keys: Keys) -> None:
    keys.copy("sequence_length", "cutoff_len", "whole")
    if not keys.has("cutoff_len") and any(keys.has(key) for key in OLD_LENGTHS):
        keys.put("sequence_length", sum(int(keys.number(key) or 512) for key in OLD_LENGTHS), *OLD_LENGTHS)


def _checkpointing(keys: Keys) -> None:
    """On by default, and reentrant; LLaMA-Factory's own switches are stronger than transformers'."""
    keys.draft.forget("gradient_checkpointing", "gradient_checkpointing_reentrant")
    off = bool(keys.flag("disable_gradient_checkpointing"))
    keys.put("gradient_checkpointing", "none" if off else "full", "disable_gradient_checkpointing")
    keys.put("gradient_checkpointing_reentrant", bool(keys.flag("use_reentrant_gc")), "use_reentrant_gc")


def _finetuning(keys: Keys) -> None:
    """lora, full, freeze or oft."""
    kind = (keys.text("finetuning_type") or "lora").lower()
    own = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target", "use_rslora", "use_dora", "additional_target")
    keys.skip(*own, "oft_rank", "oft_block_size", "oft_target", "freeze_trainable_layers", "freeze_trainable_modules")
    keys.skip(*switches.RESTING)
    if kind == "full":
        keys.draft.facts["whole"] = True
        keys.put("lora", None, "finetuning_type")
        return
    if kind == "freeze":
        where, why = keys.settings.where("finetuning_type"), "only the last layers are trained, and all are counted"
        keys.draft.bound("finetuning_type", where, why, "freezing")
        return
    if kind != "lora":
        keys.warn("finetuning_type", f"{kind[:20]} is not modelled: it is counted as LoRA")
    rank = keys.whole("lora_rank")
    lora: dict[str, Any] = {
        "r": rank,
        "alpha": keys.number("lora_alpha") or 2.0 * (rank or 8),
        "dropout": keys.number("lora_dropout"),
        "targets": lora_targets(keys.names("lora_target") or ("all",)),
    }
    model = str(keys.draft.options.get("model") or keys.get("model_name_or_path") or "")
    if may_see_images(model):  # visual.py: patch_target_modules
        lora["exclude_modules"] = [part for part in switches.resting(keys) if part != LANGUAGE_MODEL]
    if keys.names("additional_target"):
        lora["modules_to_save"] = list(keys.names("additional_target") or ())
    lora |= {job: True for key, job in (("use_dora", "dora"), ("use_rslora", "rslora")) if keys.flag(key)}
    if keys.flag("pure_bf16"):
        lora["dtype"] = "bf16"
    keys.put("lora", lora, "finetuning_type", "lora_rank", "lora_target")


def _quantisation(keys: Keys) -> None:
    bits = keys.whole("quantization_bit")
    method = (keys.text("quantization_method") or "").lower()
    kind, twice = (keys.text("quantization_type") or "nf4").lower(), keys.flag("double_quantization")
    if bits is None:
        return
    if method.startswith(("bnb", "bitsandbytes")) and bits in (4, 8):
        found = "int8" if bits == 8 else "nf4-double" if twice and kind == "nf4" else kind
        keys.put("quantization", found, "quantization_bit")
    elif method == "hqq" and bits == 4:
        keys.put("quantization", "hqq-4bit", "quantization_bit")
    else:
        keys.warn("quantization_bit", f"{bits} bits of {method[:20]} are not modelled: the base is counted as loaded")


FRAMEWORK = Framework(
    "llamafactory", "LLaMA-Factory", "0.9.5", recognise, read, write, extends=("transformers", "trl", "memplan"),
    trainer="llamafactory", beside=lambda job: ("num_gpus", "gpus_per_node"),
)  # fmt: skip
