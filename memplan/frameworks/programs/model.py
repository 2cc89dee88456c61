"""The model that a trainer is given: its name, how it is loaded, what is checkpointed and frozen."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from memplan.frameworks.asking import LORA, SEEING
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.commands import processes
from memplan.frameworks.common.image_bounds import IMAGES, fill_packed
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import words
from memplan.frameworks.hugging_face.dialect_vision import SEES
from memplan.frameworks.programs.adapters import ask_loaded, put_adapters, put_upcast
from memplan.frameworks.programs.gathered import MODEL_HARMLESS, Gathered, verb
from memplan.frameworks.programs.models import TRAINERS, UNSLOTH, things
from memplan.frameworks.programs.plans import read_plan
from memplan.frameworks.programs.quantised import NAMED, put_quantisation
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.unsloth import put_defaults, put_unsloth
from memplan.frameworks.programs.values import OPTION, Place, Ref, Thing, Unknown, plain, truth
from memplan.units import words_of

HEADS = re.compile(r"MaskedLM|ImageClassif|CTC|Speech|Audio|Detection|Segmentation")
"""Classes whose head or input is not a language model's."""
SMALL = re.compile(r"SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice")
"""Classes whose head is smaller than a language model's."""
OWN_HEADS = re.compile(r"\w*(?:Classif|ForSequence|Regress|RewardModel)\w*")
"""What the name of a class of the project's own says of its head."""


VISION = re.compile(r"Vision|ImageTextToText|VL|Llava|PaliGemma|Idefics|Mllama|Multimodal")


def put_model(model: Any, trainer: Thing, gathered: Gathered, run: Run, draft: Draft, old: bool) -> None:
    """Everything that the program says of the model into settings, and into the draft where no setting has a name for
    it. ``old``: transformers 4, which loads fp32 where nothing is said."""
    place = trainer.places.get("model", trainer.place)
    found = things(model)
    if isinstance(model, str):
        gathered.add("model_name_or_path", model, place)
    elif not found:
        _unknown(model, trainer, gathered, run, draft)
    elif isinstance(model, Unknown) and any(each is not None and each not in found for each in model.either):
        draft.warn("model", str(place), f"the trainer's model {verb(model)}: one of several is counted", "model")
    thing = found[0] if found else None
    if thing is not None:
        _loading(thing, trainer, gathered, run, draft, old)
    quantised = put_quantisation(thing, gathered, draft)
    asked = "quantization" in draft.given or any(each.asks == "quantization" for each in draft.unread)
    if thing is not None and not (quantised or asked):
        _prepared_whole(thing, gathered)
    config = trainer.values.get("peft_config") or (thing.values.get("peft_config") if thing else None)
    if thing is not None:
        config = _started(config, thing, draft)
    put_adapters(config, trainer, thing, gathered, draft)
    if thing is None:
        return
    _checkpointing(thing, trainer, gathered, draft)
    _images(thing, trainer, gathered, draft)
    if quantised and ("lora" in draft.values or config is not None):
        put_upcast(thing, trainer, draft)
    if config is None:
        _frozen(thing, draft)
    if "adapter" in thing.values:
        ask_loaded(str(thing.places["adapter"]), draft)
    if thing.values["class"] in UNSLOTH:
        standby = str(run.globals.names.get("os.environ.UNSLOTH_VLLM_STANDBY")) == "1"
        put_defaults(trainer, run.imported, gathered)
        put_unsloth(thing, trainer, config, gathered, draft, standby)


def _prepared_whole(thing: Thing, gathered: Gathered) -> None:
    """``prepare_model_for_kbit_training`` of a model of whole weights: it casts all of them to fp32 and checkpoints
    nothing (peft 0.19 utils/other.py)."""
    order = list(thing.values)
    prepared = thing.values.pop("prepared", None)
    if isinstance(prepared, Thing) and "cast" not in order[order.index("prepared") :]:
        gathered.add("dtype", "float32", prepared.place)


def _started(config: Any, thing: Thing, draft: Draft) -> Any:
    """Of adapters that are made, or loaded where a run is resumed, those that are made."""
    resumed = thing.values.get("adapter")
    made = [each for each in config.either if each is not None] if isinstance(config, Unknown) else []
    if not (isinstance(resumed, Unknown) and len(made) == 1):
        return config
    del thing.values["adapter"]
    draft.remarks.append(f"{thing.places['adapter']}: adapters of a run that is resumed are taken for those it makes")
    return made[0]


def _unknown(model: Any, trainer: Thing, gathered: Gathered, run: Run, draft: Draft) -> None:
    """A model that is made where nobody reads."""
    place = trainer.places.get("model", trainer.place)
    either = model.either if isinstance(model, Unknown) else ()
    if either and all(isinstance(each, str) for each in either):
        gathered.add("model_name_or_path", model, place)
        return
    if isinstance(model, Unknown) and model.text.startswith(OPTION):  # a word of its command: TRL loads what it names
        gathered.add("model_name_or_path", model, place)
        return
    own = isinstance(model, Thing) and model.own is not None
    text = (
        f"an object of {model.own.node.name}, the program's own" if own else getattr(model, "text", "not in the text")
    )
    if isinstance(model, Thing) and (other := HEADS.search(model.last)):  # LongformerForMaskedLM(config)
        raise _no_language_model(place, other.group())
    gathered.add("model_name_or_path", Unknown(text, place), place)
    head = OWN_HEADS.search(text) if TRAINERS[trainer.last] != "reward" else None
    if head:
        why = f"{head.group()} is counted as no less than a language model's head and its loss"
        draft.bound("model", str(place), why, "method")
    what = f"the trainer's model is {text}"
    _senses(run, str(place), draft)
    imported = " ".join(run.imported) if own else "peft bitsandbytes"  # by the module that makes it, too
    if "peft_config" not in trainer.values and re.search("peft|unsloth", imported):
        draft.ask("lora", str(place), what, f"{LORA}, or --no-lora")
    if re.search("(?i)bitsandbytes|gptq|quant", imported):
        draft.ask("quantization", str(place), what)
    draft.ask("precision", str(place), what)


SENSES = re.compile(r"(?i)image|vision|visual|video|audio|speech")
"""Words for what a model takes beside text, in the options of a program."""


def _senses(run: Run, where: str, draft: Draft) -> None:
    """A model of the program's own whose command speaks of images: no language model in its place has a tower."""
    said = next((name for name in run.known.arguments if SENSES.search(name)), "")
    if said and "images" not in draft.given:
        draft.ask("images", where, "how many images an example has, and how large")
    if said and not SEES.search(str(draft.options.get("model") or "")):
        why = "the model is the program's own, and what it has for images is not counted"
        draft.warn(said, where, why, "model", SEEING)


def _loading(thing: Thing, trainer: Thing, gathered: Gathered, run: Run, draft: Draft, old: bool) -> None:
    values, unsloth = thing.values, thing.values["class"] in UNSLOTH
    name, arguments = values["model_name_or_path"], trainer.values.get("args")
    if name == PLACEHOLDER and isinstance(arguments, Thing) and arguments.values.get("?command") is False:
        name = Unknown("the option --model_name_or_path of its command", thing.places["model_name_or_path"])
    gathered.add("model_name_or_path", name, thing.places["model_name_or_path"])
    for key in ("_attn_implementation", "attn_implementation", "use_flash_attention_2"):
        if values.get(key) is not None:
            gathered.add(key.lstrip("_"), values[key], thing.places[key])
    dtype = next((key for key in ("cast", "dtype", "torch_dtype") if values.get(key) is not None), "")
    if dtype:
        gathered.add("dtype", values[dtype], thing.places[dtype])
    elif unsloth:
        gathered.add("dtype", "bfloat16" if run.known.bf16 else "float16", thing.place)
    else:
        whole = not _asks_quantised(thing)
        gathered.add("dtype", "float32" if old and whole else "auto", thing.place)
        if whole and not old and not draft.facts["transformers"]:
            draft.remarks.append(
                f"{thing.place}: no dtype: the checkpoint's, as transformers 5 loads it; until 4.57 fp32"
            )
    for key in ("device_map", "?device"):  # a Trainer moves what is loaded on the CPU to the card
        if "'mps'" in f"{values.get(key)!r}" and not isinstance(values[key], Unknown):
            draft.remarks.append(f"{thing.places[key]}: the program runs on mps: it is counted as on the card")
    _class(thing, trainer, draft)
    read_plan(thing, draft)
    for key in values:
        if key not in READ and key not in MODEL_HARMLESS and key[:1] not in "*?" and truth(values[key]) is not False:
            draft.warn(key, str(thing.places[key]))
    if values.get("**") is not None:
        draft.warn("**", str(thing.places.get("**", thing.place)), "more arguments than the text holds", "quantisation")
    if (
        plain(values.get("device_map")) in ("auto", "balanced", "sequential")
        and int(draft.options.get("num_gpus") or 1) > 1
    ):
        uneven = values["device_map"] == "sequential" or trainer.values.get("ref_model")
        uneven = uneven or not _alike(values.get("max_memory"), int(draft.options["num_gpus"]))
        uneven = uneven or isinstance(run.globals.names.get("os.environ.CUDA_VISIBLE_DEVICES"), str)
        why = processes.SPREAD.replace("evenly ", "") if uneven else processes.SPREAD
        processes.divided(draft, "device_map", str(thing.places["device_map"]), why)


def _alike(caps: Any, gpus: int) -> bool:
    """Whether ``max_memory`` is the same of every card, or none: ``{i: "80GB" for i in range(n)}``."""
    if isinstance(caps, dict):
        return len(caps) == gpus and len({str(each) for each in caps.values()}) == 1
    return caps is None or bool(ALIKE.fullmatch(getattr(caps, "text", "")))


ALIKE = re.compile(r"\{(\w+): ((?!\b\1\b).)+ for \1 in .+\}")
PLACEHOLDER = "facebook/opt-125m"
"""The default of Alpaca's ModelArguments, and of all that was copied from them: nobody trains it."""
READ = frozenset(
    words_of(
        """model_name_or_path attn_implementation _attn_implementation use_flash_attention_2 dtype torch_dtype cast
        quantization_config load_in_4bit load_in_8bit load_in_16bit load_in_fp8 full_finetuning max_seq_length
        peft_config prepared checkpointing bnb_4bit_compute_dtype bnb_4bit_quant_type bnb_4bit_use_double_quant
        bnb_4bit_quant_storage generation_config checkpointing_kwargs frozen partly_frozen adapter compile
        use_gradient_checkpointing is_parallelizable model_parallel train upcast tp_plan tp_size distributed_config"""
    )
)
"""Arguments and changes of a model that are read."""


def _asks_quantised(thing: Thing) -> bool:
    """Whether the weights come in few bits, by an argument or a checkpoint's name: the rest loads as halves."""
    name = str(thing.values.get("model_name_or_path")).lower()
    asked = any(thing.values.get(key) for key in ("quantization_config", "load_in_4bit", "load_in_8bit"))
    return asked or any(word in name for word, _ in NAMED)


def _class(thing: Thing, trainer: Thing, draft: Draft) -> None:
    said = thing.values["class"]
    name = str(next(iter(said.either), "its class") if isinstance(said, Unknown) else said)
    method = TRAINERS[trainer.last]
    if "." in name or not re.search(r"Model|For|LMHead|Unsloth", name):
        draft.warn(
            name.rpartition(".")[2],
            str(thing.place),
            "a class of the project's own, counted as its checkpoint's",
            "model",
        )
    auto = thing.values.get("auto_model")
    full = f"{name} {auto.last if isinstance(auto, Ref) else ''}"
    draft.facts["encodes"] = "Seq2Seq" in full
    if head := HEADS.search(full):
        raise _no_language_model(thing.place, head.group())
    small = SMALL.search(full)
    if small and not (method == "reward" or ("SequenceClassification" in name and method == "ppo")):
        why = f"a head for {small.group()} is counted as no less than the language model's and its loss"
        draft.bound("model", str(thing.place), why, "method")
        draft.finishers["head"] = _without_head
    if thing.values.get("compile"):
        draft.put("compile", True, Origin(FILE, f"{thing.places['compile']}: torch.compile"))


def _no_language_model(place: Place, head: str) -> NotKnown:
    hint = "memplan counts language models, their rewards and their preferences"
    return NotKnown(f"{place}: a head for {head} is not modelled", hint)


HEADS_OF_CLASSES = words("score classifier classification_head qa_outputs")


def _without_head(draft: Draft) -> None:
    """A head for classes among the modules that are trained whole is counted as the language model's."""
    lora = draft.values.get("lora")
    if isinstance(lora, dict) and lora.get("modules_to_save"):
        lora["modules_to_save"] = [name for name in lora["modules_to_save"] if name not in HEADS_OF_CLASSES]


def _images(thing: Thing, trainer: Thing, gathered: Gathered, draft: Draft) -> None:
    """Rows that the trainer does not cut, of images and text: as long as the data makes them."""
    name, kwargs = str(thing.values["class"]), gathered.values.get("dataset_kwargs")
    uncut = isinstance(kwargs, Mapping) and bool(kwargs.get("skip_prepare_dataset")) and name not in UNSLOTH
    sees = VISION.search(name) is not None
    unsaid = not any(key in gathered.places for key in ("max_length", "max_seq_length", "max_prompt_length"))
    if uncut or (sees and unsaid and name not in UNSLOTH):
        draft.ask(
            "sequence_length", str(trainer.place), "no argument cuts the data, images among it: it is as long as it is"
        )
    if sees:
        draft.finishers.setdefault(IMAGES, partial(fill_packed, str(thing.place), "images", False))


def _checkpointing(thing: Thing, trainer: Thing, gathered: Gathered, draft: Draft) -> None:
    """Checkpointing that the program turns on at the model, whatever the arguments say."""
    prepared, on, place = (
        thing.values.get("prepared"),
        thing.values.get("checkpointing"),
        thing.places.get("checkpointing"),
    )
    kwargs = thing.values.get("checkpointing_kwargs")
    if isinstance(prepared, Thing) and on is None:
        on, place = prepared.values.get("use_gradient_checkpointing", prepared.values.get("*1", True)), prepared.place
        kwargs = prepared.values.get("gradient_checkpointing_kwargs", kwargs)
    if on is not None and on is not False and place is not None:
        gathered.add("gradient_checkpointing", on, place)
        if isinstance(kwargs, dict):
            gathered.add("gradient_checkpointing_kwargs", kwargs, place, over=False)


def _frozen(thing: Thing, draft: Draft) -> None:
    """Parameters that the program freezes itself, without adapters."""
    for key in ("partly_frozen", "frozen"):
        if key in thing.values:
            why = "which parameters are trained is not followed: all are counted"
            draft.bound("requires_grad", str(thing.places[key]), why, "freezing")
            return
