"""Models and trainers of libraries, as the calls of a program make and change them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memplan.frameworks.programs import lightning
from memplan.frameworks.programs.beside import saved_model
from memplan.frameworks.programs.call import Call, name_by_position
from memplan.frameworks.programs.others import alive, models_of, put_on_card
from memplan.frameworks.programs.paths import folder_of, saved_adapter
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import MODEL as MADE
from memplan.frameworks.programs.values import Function, Method, Place, Ref, Thing, Unknown, truth
from memplan.units import pairs_of

UNSLOTH = ("FastLanguageModel", "FastVisionModel", "FastModel", "FastLlamaModel", "FastMistralModel", "FastQwen2Model")
_OTHERS = "Tokenizer TokenizerFast Processor Config Extractor Dataset Pipeline Collator Scheduler"
NO_MODELS = tuple(_OTHERS.split())
"""How classes end whose ``from_pretrained`` loads no model."""
TRAINERS: Mapping[str, str] = {
    **pairs_of(
        """SFTTrainer=sft UnslothTrainer=sft DPOTrainer=dpo KTOTrainer=kto ORPOTrainer=orpo CPOTrainer=cpo
        RewardTrainer=reward GRPOTrainer=grpo RLOOTrainer=rloo PPOTrainer=ppo PPOv2Trainer=ppo RLOOv2Trainer=rloo
        OnlineDPOTrainer=online-dpo GKDTrainer=distill Trainer=transformers Seq2SeqTrainer=transformers"""
    ),
    **{f"{name}Trainer": name.lower() for name in ("XPO", "NashMD", "BCO", "PRM", "Gold", "SDFT", "MiniLLM", "TPO")},
    **{f"{name}Trainer": name.lower() for name in ("DDPO", "AlignProp", "IterativeSFT")},
}
"""A trainer's class -> the method that it trains by."""
PACKAGES = ("trl", "transformers", "unsloth", "peft", "optimum")
SAVES = ("save_model", "save_pretrained", "save_pretrained_merged")
MODULES = ("named_modules", "modules", "children", "named_children")
SHARDS = "FullyShardedDataParallel"
RETURNS_FIRST = (
    "prepare_model_for_kbit_training", "prepare_model_for_int8_training", "get_peft_model", "compile", "DataParallel",
    "DistributedDataParallel", SHARDS, "for_training", "for_inference", "setup_chat_format", "inject_adapter_in_model",
    "patch_peft_model", "prepare_model_for_training", "PeftModel", "PeftModelForCausalLM",
)  # fmt: skip


def made(call: Call, callee: Ref) -> Any:
    """A model, a trainer, or the model that a function was given; None for anything else."""
    owner, _, last = callee.name.rpartition(".")
    cls = owner.rpartition(".")[2]
    if last in ("from_pretrained", "from_config", "from_pretrained_with_config") and not cls.endswith(NO_MODELS):
        return _model(call, Ref(owner), last)
    package = callee.name.partition(".")[0]
    if package == "transformers" and MADE.search(last) and call.args:
        return _model(call, callee, "from_config")  # GPT2LMHeadModel(config)
    if (
        last in TRAINERS
        and (callee.known or package in PACKAGES)
        and (package != "unsloth" or last == "UnslothTrainer")
    ):
        return note_trainer(call.run, call.thing(callee.name))
    if (other := put_on_card(call, callee) or lightning.made(call, callee)) is not None:
        return other
    if last in RETURNS_FIRST and callee.known:
        return _changed(call, last, unsloth=cls in UNSLOTH)
    if last == "add_new_tokens" and things(model := call.get(0, "model")):
        model.set("new_tokens", True, call.place)
    return call.get(0, "model") if last == "create_reference_model" else None


def _model(call: Call, cls: Ref, how: str) -> Any:
    """``AutoModelForCausalLM.from_pretrained("…", dtype=torch.bfloat16)``."""
    if cls.last in ("PeftModel", "PeftModelForCausalLM"):
        return _adapted(call)
    model = call.thing("model")
    keys = ("*0", "model_name", "pretrained_model_name_or_path", "model_name_or_path")
    name = next((model.values.pop(key) for key in keys if model.values.get(key) is not None), None)
    if things(name):  # TRL's AutoModelForCausalLMWithValueHead around a model that is there
        for each in things(name):
            each.set("class", cls.last, call.place)
        return name
    if how == "from_config":
        name = _of_config(name if name is not None else model.values.get("config"), call)
    saved = saved_adapter(call, name)
    if saved is not None:
        goes_on = cls.last in UNSLOTH or truth(call.named.get("is_trainable")) is True
        model.set("peft_config" if goes_on else "adapter", saved if goes_on else name, call.place)
        name = saved.values.get("base_model_name_or_path")
    elif cls.last.startswith("AutoPeft"):
        name = Unknown(f"the base model of the adapter {name if isinstance(name, str) else ''}".strip(), call.place)
    found = saved_model(call, name)
    if found is not None:
        name = _again(model, *found, unsloth=cls.last in UNSLOTH, place=call.place)
    model.set("class", cls.last if cls.known else cls.name, call.place)
    model.set("model_name_or_path", name, call.places.get("model_name", call.place))
    return (model, Unknown("the tokenizer", call.place)) if cls.last in UNSLOTH else model


def _again(model: Thing, before: Thing, adapters: Any, unsloth: bool, place: Place) -> Any:
    """The name of a model that the program itself has saved, with its adapters where it goes on with them."""
    if adapters is not None:
        model.set("peft_config" if unsloth else "adapter", adapters if unsloth else "?", place)
    return before.values.get("model_name_or_path")


def _save(call: Call) -> Any:
    """``trainer.save_model("out")``, ``model.save_pretrained("out")``: what is loaded from there later is this."""
    owner = call.owner
    of_trainer = owner.name != "model"
    found = things(owner.values.get("model")) if of_trainer else [owner]
    folder = call.get(0, "output_dir" if of_trainer else "save_directory")
    arguments = owner.values.get("args")
    if folder is None and of_trainer and isinstance(arguments, Thing):
        folder = arguments.values.get("output_dir", arguments.values.get("*0"))
    if len(found) == 1 and folder_of(folder):
        config = owner.values.get("peft_config") or found[0].values.get("peft_config")
        whole = "merged" in call.name and str(call.get(2, "save_method", "")) != "lora"
        call.run.saved[folder_of(folder)] = (found[0], None if whole else config)
    return call.unknown()


def _of_config(config: Any, call: Call) -> Any:
    """The name that a config is loaded by, where nothing in it is changed."""
    if (
        isinstance(config, Thing)
        and config.last == "from_pretrained"
        and set(config.values) <= {"*0", "trust_remote_code"}
    ):
        return config.values.get("*0")
    return Unknown("a config that the program makes", call.place)


def _adapted(call: Call) -> Any:
    """``PeftModel.from_pretrained(model, "adapter")``: adapters of a rank that the text holds where it saves them."""
    model, name = call.get(0, "model"), call.get(1, "model_id") or "?"
    config = (saved_model(call, name) or (None, None))[1] or saved_adapter(call, name)
    trains = config is not None and truth(call.named.get("is_trainable")) is True
    for each in things(model):
        call.run.put(each, "peft_config" if trains else "adapter", config if trains else name, call.place)
    return model


def things(model: Any) -> list[Thing]:
    """The models that a value may be."""
    several = model.either if isinstance(model, Unknown) else (model,)
    return [each for each in several if isinstance(each, Thing) and each.name == "model"]


def _changed(call: Call, name: str, unsloth: bool) -> Any:
    """A function that changes a model and gives it back."""
    model = call.get(0, "model")
    model = as_it_is(model) if name == "compile" else model  # another object: a trainer may have the first
    for each in things(model):
        if name in ("get_peft_model", "inject_adapter_in_model") or name.startswith("PeftModel"):
            config = call._replace(args=[]).thing("unsloth.get_peft_model") if unsloth else call.get(1, "peft_config")
            call.run.put(each, "peft_config", config, call.place)
        elif name.startswith("prepare_model_for"):
            call.run.put(each, "prepared", call._replace(args=[]).thing(name), call.place)
        elif name == "compile":
            call.run.put(each, "compile", True, call.place)
        elif name == SHARDS:
            call.run.things.append(call._replace(args=[], named={}).thing(name))
    return (model, Unknown("the tokenizer", call.place)) if name == "setup_chat_format" else model


def note_trainer(run: Run, thing: Thing) -> Thing:
    """Remember a trainer that is made; once for each place."""
    if thing.last in TRAINERS and not run.aside and not any(each.place == thing.place for each in run.trainers):
        name_by_position(thing)
        begin = thing.values.get("model_init")
        if "model" not in thing.values and isinstance(begin, Function):
            thing.set("model", run.invoke(begin, [], {}, thing.place), thing.place)
        thing.set("?doubts", tuple(run.doubts), thing.place)
        run.trainers.append(thing)
    return thing


def method(call: Call) -> Any:
    """A method of a library's object."""
    owner, name = call.owner, call.name
    work = MODEL.get(name) if isinstance(owner, Thing) and owner.name == "model" else None
    if work is not None:
        return work(call)
    if isinstance(owner, Thing) and owner.own and owner.last not in TRAINERS and name in WHOLE:  # a module
        for inner in models_of(owner):
            MODEL[name](call._replace(owner=inner))
        return owner
    if name in SAVES and isinstance(owner, Thing) and (owner.name == "model" or owner.last in TRAINERS):
        return _save(call)
    if isinstance(owner, Thing) and owner.last in TRAINERS:
        if name == "train":
            owner.set("?trained", True, call.place)
            owner.set("?beside", alive(call.run, owner), call.place)
            if "model" in owner.values:  # whatever becomes of it afterwards
                owner.values["model"] = as_it_is(owner.values["model"])
        elif name in ("evaluate", "predict") and not call.run.aside:
            owner.set(f"?{name}", True, call.place)
        return call.unknown()
    if getattr(owner, "last", "") == "Accelerator" and name in ("prepare", "unwrap_model", "prepare_model"):
        return tuple(call.args) if len(call.args) > 1 else call.get(0, "model")
    root = root_model(owner)
    if root is not None:
        return _of_part(call, root)
    return call.unknown()


def as_it_is(model: Any) -> Any:
    """A model as it is now."""
    if isinstance(model, Unknown) and model.either:
        return replace(model, either=tuple(map(as_it_is, model.either)))
    if not (isinstance(model, Thing) and model.name == "model"):
        return model
    return replace(model, values=dict(model.values), places=dict(model.places))


def root_model(owner: Any) -> Thing | None:
    """The model that ``model.model.layers`` is of."""
    for _ in range(20):
        if not isinstance(owner, Method):
            break
        owner = owner.owner
    return owner if isinstance(owner, Thing) and owner.name == "model" else None


def _of_part(call: Call, root: Thing) -> Any:
    """Methods of a part of a model: its parameters, and whether they are trained."""
    if call.name in ("parameters", "named_parameters"):
        return _parameters(call, root, part=True)
    if call.name in MODULES:
        return _parameters(call, root, part=True, of="modules")
    if call.name == "requires_grad_":
        root.set("partly_frozen", True, call.place)
    whole = call.name == "float" or any(isinstance(each, Ref) and each.last == "float32" for each in call.args)
    if whole and call.name in ("to", "float", "type"):
        root.set("upcast", True, call.place)
    return call.unknown()


def _parameters(call: Call, root: Thing, part: bool, of: str = "parameters") -> Thing:
    values = {"of": root, "named": call.name.startswith("named"), "part": part}
    return Thing(of, call.place, values, depth=len(call.run.doubts))


def _put(key: str, value: Any) -> Callable[[Call], Any]:
    def work(call: Call) -> Any:
        call.run.put(call.owner, key, value, call.place)
        return call.owner

    return work


def _checkpointing(call: Call) -> None:
    call.run.put(call.owner, "checkpointing", True, call.place)
    kwargs = call.get(0, "gradient_checkpointing_kwargs")
    if isinstance(kwargs, dict):
        call.run.put(call.owner, "checkpointing_kwargs", kwargs, call.place)


def _to(call: Call) -> Any:
    """``model.to(torch.bfloat16)``, ``model.to("cuda")``."""
    for value in (*call.args, call.named.get("dtype")):
        if value is not None:
            of_dtype = isinstance(value, Ref) and value.last in ("bfloat16", "float16", "half", "float32")
            call.run.put(call.owner, "cast" if of_dtype else "?device", value, call.place)
    return call.owner


def _merged(call: Call) -> Any:
    """Adapters are merged into the weights: what a trainer had of them before stays."""
    values = {key: value for key, value in call.owner.values.items() if key not in ("adapter", "peft_config")}
    return replace(call.owner, values=values, places=dict(call.owner.places))


def _add_adapter(call: Call) -> None:
    config = call.get(0, "adapter_config")
    config = config if isinstance(config, Thing) else call.get(1, "peft_config", config)
    call.run.put(call.owner, "peft_config", config, call.place)


def _requires_grad(call: Call) -> Any:
    call.owner.set("frozen" if call.get(0, "requires_grad", True) is False else "partly_frozen", True, call.place)
    return call.owner


WHOLE = ("to", "half", "float", "bfloat16", "cuda", "cpu", "train", "eval")
"""Methods that a module hands on to those within it."""
MODEL: Mapping[str, Callable[[Call], Any]] = {
    "gradient_checkpointing_enable": _checkpointing,
    "gradient_checkpointing_disable": _put("checkpointing", False),
    "to": _to,
    "half": _put("cast", "float16"),
    "float": _put("cast", "float32"),
    "bfloat16": _put("cast", "bfloat16"),
    **{device: _put("?device", device) for device in ("cuda", "npu", "xpu", "cpu")},
    **dict.fromkeys(("train", "eval", "enable_input_require_grads"), lambda call: call.owner),
    "merge_and_unload": _merged,
    "unload": _merged,
    "add_adapter": _add_adapter,
    "requires_grad_": _requires_grad,
    **dict.fromkeys(
        ("modules", "named_modules", "children", "named_children"), lambda call: _of_part(call, call.owner)
    ),
    "parameters": lambda call: _parameters(call, call.owner, part=False),
    "named_parameters": lambda call: _parameters(call, call.owner, part=False),
}
