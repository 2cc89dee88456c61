"""open-instruct: its programs in a command, behind ``mason.py`` too, or a YAML file of their arguments.

They train in loops of their own on accelerate, GRPO's on DeepSpeed: names, defaults and DeepSpeed's settings that come
with it are in ``open_instruct_keys``, with where they were read."""

import re
from dataclasses import replace

from memplan.errors import InvalidJob
from memplan.frameworks import deepspeed
from memplan.frameworks.base import ASSUMED, DEFAULT, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.open_instruct import keys as table
from memplan.frameworks.open_instruct.grpo import read_grpo
from memplan.frameworks.open_instruct.launch import program_of, trainings, with_config
from memplan.frameworks.project.shipped import shipped
from memplan.frameworks.transformers import only_launch, read_launcher


def recognise(document: Document) -> tuple[str, ...]:
    """Its programs in a command; keys of its own in a file."""
    if document.form == "shell":
        return tuple(launch.program for launch in trainings(document))[:1]
    own = tuple(key for key in document.settings.values if key in table.MARKS)
    return own if document.form in ("yaml", "json") and "model_name_or_path" in document.keys else ()


def read(document: Document, draft: Draft) -> None:
    """A file of arguments, or the one training that a script starts."""
    if document.form != "shell":
        settings = _in_new_names(document.settings)
        program = _program_of_file(settings, draft)
        read_arguments(settings, draft, program, document.path)
        if table.METHODS[program] not in table.ONLINE:
            _as_shipped(draft, document.path)
        return
    launch = only_launch(list(trainings(document)))
    program = program_of(launch.program)
    if program not in table.METHODS:
        raise InvalidJob(
            f"{launch.where}: open-instruct's {program}.py is not modelled", f"modelled: {', '.join(table.METHODS)}"
        )
    read_arguments(_in_new_names(with_config(launch, draft)), draft, program, f"{launch.where}: {launch.program}")
    if table.METHODS[program] in table.ONLINE:
        return  # Ray starts the learners
    read_launcher(launch, draft)
    if "quantization" in draft.values and draft.facts.get("amp", ("no",))[0] == "no":
        why = "not said: a quantised model then runs in fp32 around flash attention in bf16, and bf16 is counted"
        if "precision" not in draft.given:
            draft.ask("precision", launch.where, why)
        draft.facts["amp"] = ("bf16", Origin(ASSUMED, why))


def _program_of_file(settings: Settings, draft: Draft) -> str:
    """Whose arguments a file holds: DPO's by its own keys, else by the path; it is asked for where nothing says it."""
    keys = {key for key, value in settings.values.items() if value is not None}
    words = set(re.split(r"[^a-z0-9]+", settings.path.lower()))
    method = str(draft.options.get("method") or "")
    if keys & set(table.OF_GRPO) or method == "grpo":
        return "grpo_fast"
    if keys & set(table.OF_DPO) or method in ("dpo", "simpo") or (not method and words & {"dpo", "simpo"}):
        return "dpo_tune_cache"
    if method == "reward" or (not method and "max_token_length" in keys):
        return "reward_modeling"
    if not (method or words & {"sft", "finetune"} or "num_train_epochs" in keys):
        draft.ask("method", settings.path, "nothing says which of open-instruct's programs reads it")
    return "finetune"


def _in_new_names(settings: Settings) -> Settings:
    """Older arguments by their names of today."""
    values = {table.OLD_NAMES.get(key, key): value for key, value in settings.values.items()}
    return replace(
        settings, values=values, lines={table.OLD_NAMES.get(key, key): line for key, line in settings.lines.items()}
    )


def read_arguments(settings: Settings, draft: Draft, program: str, where: str) -> None:
    """The arguments of one program."""
    keys, method = Keys(draft, settings, FRAMEWORK, table.DEFAULTS[program]), table.METHODS[program]
    draft.put("trainer", "transformers" if method == "sft" else "pytorch", Origin(FILE, where))
    keys.copy("model", "model_name_or_path")
    if keys.has("model_revision") and keys.text("model_revision") != "main":
        keys.copy("revision", "model_revision")
    keys.skip("model_revision")
    keys.copy("batch_size", "per_device_train_batch_size", "whole")
    _attention(keys, program)
    draft.facts["load"] = (
        {"bfloat16": "bf16"}.get(str(keys.defaults["torch_dtype"]), "auto"),
        Origin(DEFAULT, f"{FRAMEWORK.label}: from_pretrained(dtype={keys.defaults['torch_dtype']})"),
    )
    keys.skip("torch_dtype", "model_dtype")
    if method in table.ONLINE:
        draft.put("method", method, Origin(FILE, where))
        read_grpo(keys, program)
    else:
        _offline(keys, program, method, where)
    keys.warn_on(table.NOT_MODELLED, "1")
    keys.close(table.HARMLESS)
    draft.finishers["precision"] = hf_precision.settle


def _attention(keys: Keys, program: str) -> None:
    """Flash attention where it is installed, but for reward models; sdpa needs a mask of padding, or of packed rows."""
    name = keys.text("attn_implementation") or ("flash" if keys.flag("use_flash_attn") else "sdpa")
    flash, masked = "flash" in name, program in ("reward_modeling", "grpo_fast") or bool(keys.flag("packing"))
    keys.put("attention", "flash" if flash else "sdpa", "attn_implementation", "use_flash_attn")
    if masked and not flash:
        keys.put("padded", True, "packing", "use_flash_attn")


def _offline(keys: Keys, program: str, method: str, where: str) -> None:
    """SFT, DPO and reward models: batches of a data set."""
    keys.copy("gradient_accumulation_steps", "gradient_accumulation_steps", "whole")
    _loss(keys, program, method, where)
    _checkpointing(keys, program)
    length = "max_token_length" if program == "reward_modeling" else "max_seq_length"
    if keys.get(length) is not None:
        keys.copy("sequence_length", length, "whole")
    else:
        keys.draft.ask("sequence_length", where, "without max_seq_length nothing is cut")
    keys.skip(length)
    if program != "reward_modeling":
        _adapters(keys)
    _optimizer(keys, method)
    keys.put_on("use_liger_kernel", "kernels", "liger")
    keys.put_on("load_balancing_loss", "router_aux_loss", True)
    keys.put_on("sync_each_batch", "sync_each_batch", True)
    if keys.whole("zero_stage") is not None:
        _own_zero(keys)
    keys.skip("zero_stage", "offload_optimizer", "offload_param", "zero_hpz_partition_size")


def _loss(keys: Keys, program: str, method: str, where: str) -> None:
    """finetune.py takes the model's own loss; DPO's programs a log-softmax of all logits in fp32."""
    name = keys.text("loss_type") if method == "dpo" else None
    keys.draft.put("method", "simpo" if name == "simpo" else method, Origin(FILE, where))
    if (keys.text("reduce_loss") or "mean") != "mean":
        keys.warn("reduce_loss", "a summed loss stands beside the model's own, which alone is counted", decides="loss")
    if method != "dpo":
        return
    keys.put("loss_head", "log-softmax")
    keys.put("logits_dtype", "fp32")
    if name not in ("dpo", "dpo_norm", "simpo"):
        keys.warn("loss_type", f"{str(name)[:20]} is counted as dpo", decides="loss")
    if name != "simpo":
        own = "adapter" if keys.flag("use_lora") else "resident"  # dpo_tune.py: disable_adapter()
        keys.put("reference", "precomputed" if program == "dpo_tune_cache" else own)
    if not keys.flag("concatenated_forward"):
        keys.put("pair_pass", "two-forward", "concatenated_forward")


def _checkpointing(keys: Keys, program: str) -> None:
    """dpo_tune_cache.py leaves a model with adapters alone, unless its base is quantised."""
    budget = keys.number("activation_memory_budget")
    name = "gradient_checkpointing" if budget is None else "activation_memory_budget"
    on = bool(keys.flag("gradient_checkpointing")) or (budget is not None and budget < 1)
    if on and program.startswith("dpo") and keys.flag("use_lora") and not keys.flag("use_qlora"):
        keys.remark(f"{program}.py does not checkpoint beside LoRA", name)
        on = False
    keys.put("gradient_checkpointing", "full" if on else "none", name)
    keys.skip("gradient_checkpointing", "activation_memory_budget")


def _adapters(keys: Keys) -> None:
    """``use_lora``, with the seven projections of a layer; ``use_qlora`` quantises the base."""
    names = ("lora_rank", "lora_alpha", "lora_dropout")
    if keys.flag("use_lora"):
        rank, alpha, dropout = keys.whole(names[0]), keys.number(names[1]), keys.number(names[2])
        keys.put("lora", {"r": rank, "alpha": alpha, "dropout": dropout, "targets": table.TARGETS}, "use_lora")
    if keys.flag("use_qlora"):
        keys.put("quantization", "nf4-double", "use_qlora")
        if not keys.flag("use_lora"):
            keys.warn("use_qlora", "without use_lora nothing of a quantised model is trained", decides="adapters")
    keys.skip(*names)


def _optimizer(keys: Keys, method: str) -> None:
    """torch's AdamW, fused; bitsandbytes' paged one where the base is quantised, of 8 bits if asked."""
    key = next((key for key in ("use_qlora", "dpo_use_paged_optimizer") if keys.flag(key)), "")
    small = keys.flag("use_8bit_optimizer")
    if key:
        keys.put("optimizer", "paged-adamw-8bit" if small else "paged-adamw", key)
    elif method != "sft" and keys.flag("fused_optimizer"):
        keys.put("optimizer_impl", "fused", "fused_optimizer")
    elif keys.has("fused_optimizer") and not keys.flag("fused_optimizer"):
        keys.put("optimizer_impl", "loop", "fused_optimizer")  # fused=False is not None: nor is foreach then
    if keys.has("optimizer_type") and keys.text("optimizer_type") != "adamw":
        keys.warn("optimizer_type", "is counted as adamw", decides="optimizer")
    keys.skip("use_8bit_optimizer", "dpo_use_paged_optimizer", "fused_optimizer", "optimizer_kwargs")


def _own_zero(keys: Keys) -> None:
    """``--zero_stage`` of dpo_tune_cache.py (build_deepspeed_config)."""
    stage = keys.whole("zero_stage")
    values = _config(table.STAGE_3 if stage == 3 else table.STAGE_2).values
    zero = {**values["zero_optimization"], "stage": stage}
    zero |= {key: {"device": "cpu"} for key in ("offload_optimizer", "offload_param") if keys.flag(key)}
    if stage == 3:
        zero["zero_hpz_partition_size"] = keys.whole("zero_hpz_partition_size", 8)
    where = keys.settings.where("zero_stage")
    deepspeed.read_settings(Settings(where, {**values, "zero_optimization": zero}), keys.draft)


def _config(name: str) -> Settings:
    """DeepSpeed's config that open-instruct ships under this name."""
    found = shipped(name)
    assert found is not None, name
    return found.settings


def _as_shipped(draft: Draft, path: str) -> None:
    """A file of arguments says nothing of GPUs; on several it is launched with ZeRO-3 by the scripts beside it."""
    if not {"num_gpus", "cluster"} & draft.given:
        draft.ask("num_gpus", path, "a file of arguments has no launcher")

    def finish(draft: Draft) -> None:
        several = int(draft.now("num_gpus") or 1) > 1
        said = {"sharding", "zero_stage"} & (draft.given | draft.values.keys())
        why = Origin(ASSUMED, f"open-instruct's own scripts launch its files with {table.STAGE_3} and bf16")
        if several and not said and "quantization" not in draft.values:
            deepspeed.read_settings(_config(table.STAGE_3), draft)
            draft.origins["sharding"] = why
        draft.facts.setdefault("amp", ("bf16", why))

    draft.finishers["open-instruct"] = finish
    draft.finishers["precision"] = draft.finishers.pop("precision")


FRAMEWORK = Framework("open-instruct", "open-instruct", "August 2026", recognise, read, extends=("trl", "transformers"))
