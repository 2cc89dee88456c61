"""XTuner's configs of Python in mmengine's style, and ``xtuner train CONFIG --deepspeed deepspeed_zero2``.

A config is gone through without being run, and says the model, its adapters and the data; the command says DeepSpeed
and, by NPROC_PER_NODE, the GPUs. Without DeepSpeed PEFT's preparation casts what is not quantised of a base under
adapters to fp32; DeepSpeed casts everything to half. Source: InternLM/xtuner 0.1.23 model/sft.py, dpo.py, orpo.py,
reward.py, tools/train.py, entry_point.py, dataset/huggingface.py, configs/deepspeed/."""

import re
from typing import Any

from memplan.frameworks import deepspeed
from memplan.frameworks.asking import MODEL
from memplan.frameworks.base import ASSUMED, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands import processes
from memplan.frameworks.commands.launch import Launch
from memplan.frameworks.common.optimizer_classes import found_class, put_class
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import Document, is_template, words
from memplan.frameworks.own_words.names import OTHERS, lora_targets, module_names
from memplan.frameworks.project.shipped import shipped
from memplan.frameworks.xtuner.source import last, of_document, starts, told

METHODS = {"SupervisedFinetune": "sft", "DPO": "dpo", "ORPO": "orpo", "RewardModel": "reward"}
"""``model.type`` -> method."""
OLDER = re.compile(r"baichuan|chatglm|/qwen-|internlm-|starcoder(?!2)|minicpm|falcon|bloom|gpt")
"""Models of which flash-attn decides neither the dtype nor, for some, the kernel (``_prepare_for_flash_attn``)."""
LLM, LORA = "model.llm.", "model.lora."
DATASET = "train_dataloader.dataset."
HALVES = {"float16": "fp16", "bfloat16": "bf16", "half": "fp16"}
DEFAULTS: dict[str, Any] = {
    "train_dataloader.batch_size": 1,
    "optim_wrapper.accumulative_counts": 1,
    "model.use_activation_checkpointing": True,
    "sequence_parallel_size": 1,
}
HARMLESS_OF_MODEL = words(
    """model.type model.use_varlen_attn model.tokenizer model.beta model.label_smoothing model.loss_type model.lora.type
    model.lora.task_type model.lora.inference_mode model.llm.trust_remote_code model.llm.type model.llm.torch_dtype
    model.llm.low_cpu_mem_usage model.llm.use_cache model.loss_weight model.penalty_type model.penalty_weight
    model.llm.device_map model.reward_token_id model.num_labels model.data_preprocessor model.tokenizer.type"""
)


def recognise(document: Document) -> tuple[str, ...]:
    """A config that takes its model of XTuner; ``xtuner train``, or its ``tools/train.py`` with such a config."""
    if document.form == "shell":
        return tuple(launch.program for launch in starts(document))[:1]
    return ("xtuner",) if told(document) else ()


def read(document: Document, draft: Draft) -> None:
    """One training."""
    given = of_document(document, draft)
    keys = Keys(draft, given, FRAMEWORK, DEFAULTS)
    draft.put("trainer", "xtuner", Origin(FILE, f"{given.path}: XTuner's settings"))
    launch: Launch | None = draft.facts.get("launch")
    method = _method(keys)
    _model(keys)
    keys.put("batch_size", keys.whole("train_dataloader.batch_size"), "train_dataloader.batch_size")
    counts = keys.whole("optim_wrapper.accumulative_counts")
    keys.put("gradient_accumulation_steps", counts, "optim_wrapper.accumulative_counts")
    _length(keys)
    adapted = _adapters(keys)
    quantised = _quantisation(keys)
    _processes(keys, launch)
    sharded = _deepspeed(keys)
    _dtypes(keys, adapted, sharded)
    if quantised and sharded:
        keys.put("kbit_upcast", False)
    on = keys.flag("model.use_activation_checkpointing")
    keys.put("gradient_checkpointing", "full" if on else "none", "model.use_activation_checkpointing")
    _optimizer(keys)
    _reference(keys, method)
    keys.skip(*(key for key in keys.settings.values if not key.startswith("model.")))
    keys.close(HARMLESS_OF_MODEL | {key for key in keys.settings.values if key.startswith("model.tokenizer.")})


def _method(keys: Keys) -> str:
    """Of the model's class; another class is a model with images, or a project's own."""
    name = last(keys.get("model.type"))
    method = METHODS.get(name)
    if method is None:
        what = f"model.type: {name[:60] or 'nothing'} is not modelled: it has parts of its own"
        raise NotKnown(f"{keys.settings.where('model')}: {what}", "write the job in memplan's keys")
    if method == "dpo" and str(keys.get("model.loss_type") or "sigmoid") == "ipo":
        method = "ipo"
    keys.put("method", method, "model.type")
    return method


def _model(keys: Keys) -> None:
    """The language model, and the kernel that flash-attn, where it is installed, has it take."""
    at = f"{LLM}pretrained_model_name_or_path"
    if "model" not in keys.draft.given:
        if not keys.has(at) or is_template(keys.get(at)):
            what = str(keys.get(at) or "nothing names it")[:60]
            raise NotKnown(f"{keys.settings.where(at)}: model is not known: {what}", MODEL)
        keys.copy("model", at)
    keys.skip(at)
    said = str(keys.get(f"{LLM}attn_implementation") or "")
    kernel = {"flash_attention_2": "flash", "sdpa": "sdpa", "eager": "eager"}.get(said)
    if kernel:
        keys.put("attention", kernel, f"{LLM}attn_implementation")
    elif said:
        keys.warn(f"{LLM}attn_implementation", "attention is counted as flash's", "attention")
    else:
        keys.assume("attention", "flash", "XTuner takes flash-attn where it is installed")
        older = OLDER.search(str(keys.draft.values.get("model")).lower())
        if older and "attention" not in keys.draft.given:
            where, why = keys.settings.where(at), "which kernel XTuner has this model take is not known"
            keys.draft.warn(at, where, why, "attention", "add --attention, such as --attention flash")
    for name in (f"{LLM}rope_scaling", "model.max_position_embeddings"):
        keys.skip(name)


def _length(keys: Keys) -> None:
    """What samples are packed or cut to."""
    at = next((key for key in (f"{DATASET}max_length", "max_length") if keys.has(key)), "")
    inner = [key for key in keys.settings.values if key.startswith(DATASET) and key.endswith(".max_length")]
    found = {keys.settings.values[key] for key in inner if not is_template(keys.settings.values[key])}
    at = at or (inner[0] if inner else "")
    if "sequence_length" in keys.draft.given:
        return
    if not at:
        keys.draft.ask("sequence_length", keys.settings.where("train_dataloader"), "no max_length is there")
    elif len(found) > 1:
        longest = max(int(each) for each in found if str(each).isdigit())
        keys.draft.put(
            "sequence_length", longest, Origin(FILE, f"{keys.settings.where(inner[0])}: the longest max_length")
        )
    else:
        keys.copy("sequence_length", at, "whole")
    if (keys.whole("sequence_parallel_size") or 1) > 1:
        keys.warn("sequence_parallel_size", "every GPU is counted with whole sequences", "parallelism")


def _adapters(keys: Keys) -> bool:
    """LoRA of PEFT; all linears where it names no modules."""
    parts = [key for key in keys.settings.values if key.startswith(LORA)]
    keys.skip("model.peft_model")
    if not parts:
        return False
    names = keys.get(f"{LORA}target_modules")
    words_of = module_names(names) if isinstance(names, str) else tuple(str(name) for name in names or ())
    targets = lora_targets(words_of) if words_of else "all-linear"
    lora = {"r": keys.whole(f"{LORA}r", 8), "targets": targets, "dropout": keys.number(f"{LORA}lora_dropout") or 0.0}
    keys.put("lora", {**lora, "alpha": keys.number(f"{LORA}lora_alpha")}, f"{LORA}r")
    for name in ("modules_to_save", "use_dora", "bias", "layers_to_transform", "rank_pattern"):
        if keys.is_on(f"{LORA}{name}"):
            keys.warn(f"{LORA}{name}", "adapters are counted without it", "adapters")
        keys.skip(f"{LORA}{name}")
    if last(keys.get(f"{LORA}type")) not in ("LoraConfig", ""):
        keys.warn(f"{LORA}type", "adapters are counted as LoRA", "adapters")
    return True


def _quantisation(keys: Keys) -> bool:
    """bitsandbytes' 4 or 8 bits of the base."""
    at = f"{LLM}quantization_config."
    parts = [key for key in keys.settings.values if key.startswith(at)]
    keys.skip(*parts, f"{LLM}quantization_config")
    if not parts:
        return False
    four, eight = keys.flag(f"{at}load_in_4bit"), keys.flag(f"{at}load_in_8bit")
    kind = str(keys.get(f"{at}bnb_4bit_quant_type") or "fp4")
    double = "-double" if keys.flag(f"{at}bnb_4bit_use_double_quant") and kind == "nf4" else ""
    if not (four or eight) or last(keys.get(f"{at}type")) not in ("BitsAndBytesConfig", ""):
        keys.draft.warn(at[:-1], keys.settings.where(at[:-1]), "the base is counted as it is", "quantisation")
        return False
    keys.put("quantization", f"{kind}{double}" if four else "int8", f"{at}load_in_4bit", f"{at}load_in_8bit")
    return True


def _processes(keys: Keys, launch: Launch | None) -> None:
    """NPROC_PER_NODE × NNODES, one without them; Slurm's tasks."""
    if launch is None:
        processes.expect(keys.draft)
        return
    found = processes.count_of(launch)
    if found is None and {"NPROC_PER_NODE", "NNODES"} & launch.command.environment.keys():
        found = processes.of_variables(launch, True)
    if found is None and keys.get("launcher") == "slurm":
        found = processes.Count(None, None, "--launcher slurm", launch.where)
    if found is not None:
        processes.put(found, keys.draft)
    elif int(keys.draft.options.get("num_gpus") or 1) > 1:
        keys.draft.remarks.append(f"{launch.where}: without NPROC_PER_NODE it trains on one GPU, whatever there is")
    else:
        origin = Origin(FILE, f"{launch.where}: xtuner train without NPROC_PER_NODE")
        keys.draft.put("num_gpus", 1, origin)


def _deepspeed(keys: Keys) -> bool:
    """``--deepspeed`` by the name of a config of XTuner's, or a file; a strategy within the config; else DDP."""
    draft, name = keys.draft, keys.text("deepspeed")
    inner = [key for key in keys.settings.values if key.startswith("strategy.")]
    keys.skip(*inner)
    if name:
        own = shipped(f"xtuner/{name.removesuffix('.json').rpartition('/')[2]}.json")
        if own is not None and not ("/" in name or name.endswith(".json")):
            deepspeed.read(own, draft)
        else:
            deepspeed.read_named(keys, "deepspeed", name)
        return True
    if inner:
        at = keys.settings.where("strategy")
        draft.warn("strategy", at, "the config's own strategy is not followed: states are counted whole", "parallelism")
        return False
    if "sharding" in draft.given or "zero_stage" in draft.given:
        return str(draft.options.get("sharding", "zero")).startswith("zero")
    several = int(draft.now("num_gpus") or 1) > 1
    why = "no --deepspeed is there: the command that starts it may have one"
    kind = Origin(ASSUMED, why)
    draft.put("sharding", "ddp" if several else "none", kind)
    if "launch" not in draft.facts:
        keys.remark("counted without DeepSpeed; check the command, or add --zero-stage")
    return False


def _dtypes(keys: Keys, adapted: bool, sharded: bool) -> None:
    """Under DeepSpeed bf16 with fp32 master weights; else fp32 under adapters, half where flash-attn loads it so."""
    amp = "Amp" in last(keys.get("optim_wrapper.type"))
    half = HALVES.get(last(keys.get("optim_wrapper.dtype")), "fp16")
    stored = HALVES.get(last(keys.get(f"{LLM}torch_dtype")), "")
    older = OLDER.search(str(keys.draft.values.get("model")).lower()) is not None
    flash = keys.draft.values.get("attention") == "flash" and not older
    keys.skip("optim_wrapper.type", "optim_wrapper.dtype")
    if sharded:
        keys.assume("dtype", "bf16", "XTuner's DeepSpeed configs are auto: bf16 where the card has it")
    elif adapted or not (flash or stored):
        keys.put("precision", f"{half}-amp" if amp else "fp32", "optim_wrapper.dtype")
    else:
        # flash-attn has XTuner load in bf16 where the card has it, whatever the config says
        keys.put("precision", "bf16" if flash else stored, f"{LLM}torch_dtype")
        keys.put("autocast", amp, "optim_wrapper.type")


def _optimizer(keys: Keys) -> None:
    """A class of torch's or of bitsandbytes'."""
    at = "optim_wrapper.optimizer.type"
    name = str(keys.get(at) or "AdamW")
    put_class(keys, at, name, {}, "torch.optim" if found_class(name) else "bitsandbytes.optim")


def _reference(keys: Keys, method: str) -> None:
    """DPO's: a copy, or the adapters switched off."""
    others = [key for key in keys.settings.values if key.startswith("model.ref_llm.")]
    keys.skip(*others, "model.ref_llm")
    if others and method in ("dpo", "ipo"):
        keys.put("reference", "resident", others[0])
    if method in ("dpo", "ipo", "orpo", "reward") and keys.flag("model.use_varlen_attn"):
        why = "pairs that are packed into one sequence are counted one by one"
        keys.warn("model.use_varlen_attn", why, "lengths")


FRAMEWORK = Framework("xtuner", "XTuner", "0.1.23", recognise, read, trainer="xtuner", extends=(*OTHERS, "python"))
