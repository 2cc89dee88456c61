"""accelerate's config (``accelerate config``) and the options of ``accelerate launch``.

Source: accelerate 1.15 commands/config/config_args.py, commands/launch.py, utils/dataclasses.py (DeepSpeedPlugin)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks import deepspeed
from memplan.frameworks.accelerate.parallelism import read_parallelism
from memplan.frameworks.accelerate.write import LAUNCHING, files_of
from memplan.frameworks.base import DEFAULT, Draft, Framework, Keys, Origin
from memplan.frameworks.commands import processes
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.common.fsdp_keys import LAUNCH, put_inner, read_fsdp
from memplan.frameworks.files.documents import Document, Settings, words
from memplan.frameworks.hugging_face.precision import settle
from memplan.frameworks.project.shipped import open_config
from memplan.tables.texts import parts_of

_PARTS = parts_of(__file__)

HARMLESS = words(_PARTS["harmless"])
MARKS = ("distributed_type", "compute_environment", "main_training_function", "deepspeed_config", "num_processes")
ZERO: dict[str, Any] = {"zero_stage": 2}
"""DeepSpeedPlugin's."""
MULTI = ("MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_SDAA", "MULTI_XPU", "MULTI_HPU")


def recognise(document: Document) -> tuple[str, ...]:
    """Keys of its config, or its launcher in a script."""
    if document.form == "shell":
        return tuple("accelerate launch" for launch in launches(document) if launch.launcher == "accelerate")[:1]
    marks = tuple(key for key in MARKS if key in document.keys)
    return marks if len(marks) > 1 or "distributed_type" in marks else ()


def read(document: Document, draft: Draft) -> None:
    """A config file; of a script, the options of its first launch alone."""
    if document.form != "shell":
        read_settings(document.settings, draft)
        return
    launch = next(launch for launch in launches(document) if launch.launcher == "accelerate")
    read_launch(launch, draft)
    draft.warn(launch.program[:60], launch.where, "a script of its own, whose options are not read", "method")


def read_launch(launch: Launch, draft: Draft) -> None:
    """``accelerate launch --config_file …``: the file, under the options beside it; the machine's own is unknown."""
    path = launch.options.values.get("config_file")
    if not isinstance(path, str):
        read_settings(Settings(launch.path, {}), draft, launch.options, launch)
        return
    document = open_config(draft, launch.options, "config_file", path, FRAMEWORK.name)
    if document is not None:
        if "distributed_type" not in document.keys and deepspeed.recognise(document):
            problem, hint = (
                f"{path[:80]} is DeepSpeed's, and accelerate refuses it",
                "give it as --deepspeed_config_file",
            )
            raise launch.options.error("config_file", problem, f"{hint}, with --use_deepspeed")
        read_settings(document.settings, draft, launch.options)
        return
    if not processes.number(launch.options.values.get("num_processes")):
        seen = processes.visible(launch.command.environment)
        processes.expect(draft, launch.options.where("config_file"), f"{path[:80]} is not here", seen)
    sharding, origin = draft.values.get("sharding"), draft.origins.get("sharding")  # as the file's name says
    read_settings(Settings(launch.path, {}), draft, launch.options)
    if origin is not None and not {"use_fsdp", "use_deepspeed"} & launch.options.values.keys():
        draft.values["sharding"], draft.origins["sharding"] = sharding, origin


def read_settings(
    settings: Settings, draft: Draft, options: Settings | None = None, launch: Launch | None = None
) -> None:
    """A config, and options of the launcher that are stronger than it. ``launch``: what starts without a config."""
    keys = Keys(draft, settings, FRAMEWORK)
    over = Keys(draft, options or Settings(settings.path, {}), FRAMEWORK)
    kind = (keys.text("distributed_type") or "").upper().removeprefix("DISTRIBUTEDTYPE.")
    kind = "NO" if kind == "FALSE" else kind  # what PyYAML makes of NO without quotes, which accelerate takes for it
    kind = "FSDP" if over.flag("use_fsdp") else "DEEPSPEED" if over.flag("use_deepspeed") else kind
    total = _processes(keys, over, kind, launch)
    _mixed_precision(over if over.has("mixed_precision") else keys, keys)
    over.skip("mixed_precision", "dynamo_backend")
    keys.skip("mixed_precision")
    _sharding(keys, over, kind, total)
    read_parallelism(keys, FRAMEWORK, str(keys.get("distributed_type")))
    _dynamo(keys, over)
    if settings.values.get("megatron_lm_config"):
        keys.warn("megatron_lm_config", "is not read")
    keys.skip("megatron_lm_config")
    keys.close(HARMLESS)
    over.close({*HARMLESS, "same_network"})
    draft.finishers.setdefault("precision", settle)  # the trainer's own is stronger


def _processes(keys: Keys, over: Keys, kind: str, launch: Launch | None) -> int:
    """GPUs in all, into the job; 0 where only the machine knows. accelerate refuses a config without a number."""
    holder = over if over.has("num_processes") else keys
    given = holder.get("num_processes")
    total, machines = processes.number(given), processes.number(over.get("num_machines") or keys.get("num_machines"))
    for each in (keys, over):
        each.skip("num_processes", "num_machines")
    alone = kind == "NO" and not over.flag("multi_gpu")
    if alone and (total or 1) > 1 and holder is over:
        over.warn("num_processes", "accelerate starts one process where distributed_type is NO")
    if total:
        holder.put("num_gpus", total, "num_processes")
        if machines and machines > 1 and "cluster" not in keys.draft.given:
            holder.put("gpus_per_node", max(1, total // machines), "num_processes")
    elif alone:
        keys.put("num_gpus", 1, "distributed_type")
    elif given is None and launch is not None:
        processes.put_every(launch, keys.draft)
    elif given is not None or kind:
        what = f"num_processes {given}" if given is not None else "accelerate's config has no num_processes"
        processes.expect(keys.draft, holder.settings.where("num_processes"), what)
    return total or int(alone)


def _mixed_precision(keys: Keys, whole: Keys) -> None:
    """What autocast runs in, where the trainer's arguments do not say it (they are stronger)."""
    word = (keys.text("mixed_precision") or "no").lower()
    keys.flag("fp16")
    if word not in ("no", "bf16", "fp16", "fp8"):
        raise keys.settings.error("mixed_precision", f"{word[:20]!r} is no mixed precision", "use no, fp16 or bf16")
    if word == "fp8":
        _fp8(keys, whole)
        word = "bf16"
    whole.skip("fp8_config")
    if keys.has("mixed_precision"):
        origin = Origin("file", f"{keys.settings.where('mixed_precision')}: mixed_precision")
        if keys.draft.facts.get("amp", ("no",))[0] == "no":
            keys.draft.facts["amp"] = (word, origin)


def _fp8(keys: Keys, whole: Keys) -> None:
    """The recipe of the backend that is named (accelerator.py: fp8_backend, _prepare_te, _prepare_ao)."""
    given, where = Keys(keys.draft, whole.settings.section("fp8_config"), FRAMEWORK), "mixed_precision"
    backend = (given.text("backend") or keys.text("fp8_backend") or "").upper()
    if backend in ("AO", "TORCHAO"):
        keys.put("float8", "tensorwise", where)
        if given.flag("enable_fsdp_float8_all_gather") is not False and whole.has("fsdp_config"):
            put_inner(keys, "fsdp", "float8_all_gather", True, where)
    elif backend == "TE":
        keys.put("float8", "te", where)
        if "true" in str(given.get("override_linear_precision") or keys.get("fp8_override_linear_precision")).lower():
            keys.warn(where, "products that override_linear_precision keeps out of fp8 are counted in it")
    elif backend:
        keys.warn(where, "fp8 is counted as bf16: weights and states in fp8 (MS-AMP) are not modelled")
    keys.draft.facts["fp8"] = backend
    keys.draft.finishers["fp8"] = lambda draft: _beside_half(draft, keys.settings.where(where))


def _beside_half(draft: Draft, where: str) -> None:
    """accelerate makes no recipe where the trainer's own bf16 or fp16 is stronger: torchao's is missed, and
    TransformerEngine's needs none (accelerator.py: __init__). Raises InvalidJob for the first."""
    backend, (amp, why) = draft.facts["fp8"], draft.facts.get("amp", ("no", Origin(DEFAULT, "")))
    own = amp != "no" and not why.text.endswith(": mixed_precision")
    if own and backend in ("AO", "TORCHAO"):
        what = f"fp8 by torchao beside the trainer's own {amp} makes no recipe, and accelerate stops"
        raise InvalidJob(f"{where}: {what}", f"set {amp}: false in the trainer's arguments")
    if own and not backend:
        draft.remarks.append(f"{where}: fp8 does nothing beside the trainer's own {amp}, where no backend is named")
    elif not backend:
        why_not = "fp8 is counted as bf16: accelerate takes torchao where it is installed, else TransformerEngine"
        draft.warn("mixed_precision", where, why_not, "precision")


def _sharding(keys: Keys, over: Keys, kind: str, processes: int) -> None:
    fsdp = _joined(keys, over, "fsdp_config", "fsdp_")
    zero = _joined(keys, over, "deepspeed_config", "")
    keys.skip("fsdp_config", "deepspeed_config")
    if kind == "FSDP":
        read_fsdp(fsdp, LAUNCH)
    elif kind == "DEEPSPEED":
        _deepspeed(zero, keys.draft)
    elif kind == "MEGATRON_LM":
        keys.warn("distributed_type", "Megatron under accelerate is not modelled")
    elif kind in MULTI or (over.flag("multi_gpu") and not kind) or (not kind and processes > 1):
        if processes != 1:  # DeepSpeed or FSDP of the training's own arguments is stronger (TrainingArguments)
            text = f"{keys.settings.where('distributed_type')}: {kind}" if kind else "accelerate launch on several GPUs"
            keys.draft.put("sharding", "ddp", Origin(DEFAULT, text))
    elif kind not in ("NO", ""):
        raise keys.settings.error(
            "distributed_type", f"{kind[:30]!r} is not modelled", "use MULTI_GPU, FSDP, DEEPSPEED"
        )


def _joined(keys: Keys, over: Keys, section: str, prefix: str) -> Keys:
    """A section of the file, with the launcher's options of the same names over it."""
    inner = keys.settings.section(section)
    if isinstance(tried := keys.raw(section), Mapping):
        inner = replace(inner, values=tried)
    names = [key for key in over.settings.values if (prefix and key.startswith(prefix)) or key in ZERO_OPTIONS]
    over.skip(*names)
    if not names or (prefix == "" and not set(names) & ZERO_OPTIONS):
        return Keys(keys.draft, inner, FRAMEWORK)
    taken = {key: over.settings.values[key] for key in names if (key in ZERO_OPTIONS) == (prefix == "")}
    merged = inner.under(over.settings, taken)
    return Keys(keys.draft, merged, FRAMEWORK)


ZERO_OPTIONS = words(
    "zero_stage deepspeed_config_file offload_optimizer_device offload_param_device gradient_accumulation_steps"
)


PLUGIN = words(_PARTS["plugin"])
"""What ``accelerate launch`` takes of ``deepspeed_config`` (accelerate 1.15 commands/launch.py), and no more."""


def _deepspeed(keys: Keys, draft: Draft) -> None:
    """The plugin's settings, or the file that they name."""
    path = keys.text("deepspeed_config_file")
    if path is not None and path.lower() != "none":
        deepspeed.read_named(keys, "deepspeed_config_file", path)
        keys.close({*HARMLESS, *ZERO_OPTIONS})
        return
    found = Keys(draft, keys.settings, FRAMEWORK, ZERO)
    stage = found.whole("zero_stage")
    if stage not in (0, 1, 2, 3):
        raise found.settings.error("zero_stage", f"{stage} is no stage of ZeRO", "use 0, 1, 2 or 3")
    found.put("sharding", f"zero{stage}", "zero_stage")
    steps = found.get("gradient_accumulation_steps")
    said = "gradient_accumulation_steps" in draft.origins  # by the trainer's arguments, which are stronger
    if steps is not None and str(steps).lower() != "auto" and not said:
        found.copy("gradient_accumulation_steps", "gradient_accumulation_steps", "whole")
    for key, inner in (("offload_optimizer_device", "offload_optimizer"), ("offload_param_device", "offload_param")):
        device = (found.text(key) or "none").lower()
        over = inner == "offload_param" and device != "none" and deepspeed.passes_over(found, key, stage)
        if device != "none" and not over:
            value = deepspeed.on_the_host(found, inner, {"device": device}, stage)
            put_inner(found, "deepspeed", inner, value, key)
    put_inner(found, "deepspeed", "own_defaults", True, "zero_stage")
    gathers = "zero3_save_16bit_model"
    if found.flag(gathers) is False and stage == 3:
        put_inner(found, "deepspeed", "stage3_gather_16bit_weights_on_model_save", False, gathers)
    draft.facts.setdefault("deepspeed dtype", ("auto", Origin("file", keys.settings.where("zero_stage"))))
    if found.flag("enable_msamp"):
        found.warn("enable_msamp", "weights and states in fp8 (MS-AMP) are not modelled")
    others = [key for key in keys.settings.values if key not in PLUGIN]
    if others:
        where = keys.settings.where(others[0])
        draft.remarks.append(f"{where}: accelerate has no {', '.join(others)} here and passes over it (a file of "
                             "DeepSpeed's own is named by deepspeed_config_file)")  # fmt: skip
    found.close({*HARMLESS, *others, "msamp_opt_level"})


def _dynamo(keys: Keys, over: Keys) -> None:
    """torch.compile under another name."""
    section = keys.settings.values.get("dynamo_config")
    inner: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    backend = str(over.get("dynamo_backend") or inner.get("dynamo_backend") or keys.get("dynamo_backend") or "no")
    keys.skip("dynamo_config", "dynamo_backend")
    if backend.lower() not in ("no", "none", "eager"):
        keys.put("compile", True, "dynamo_config" if section else "dynamo_backend")
        mode = str(over.get("dynamo_mode") or inner.get("dynamo_mode") or keys.get("dynamo_mode") or "")
        holder = over if over.has("dynamo_mode") else keys
        if mode in ("reduce-overhead", "max-autotune"):
            holder.warn("dynamo_config" if inner.get("dynamo_mode") else "dynamo_mode", "CUDA graphs are not counted")
        if backend.lower() != "inductor":
            at = over if over.has("dynamo_backend") else keys
            at.warn("dynamo_config" if section else "dynamo_backend", f"{backend[:20]} is counted as inductor")


FRAMEWORK = Framework("accelerate", "accelerate", "1.15", recognise, read, files_of, launches=True, writes=LAUNCHING)
