"""What a program changes behind its settings: parts and the config of its model, methods that stand in a library's
place, weights that are trained beside adapters, callbacks that run the model. What it does is not followed; that it is
there is said, and nothing fits until somebody says that it takes nothing."""

import ast
import builtins
import re
from collections.abc import Iterator
from typing import Any

from memplan.frameworks.base import Draft
from memplan.frameworks.common.checkpoints import family_of
from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.model import READ
from memplan.frameworks.programs.models import MODEL, SAVES, TRAINERS, root_model, things
from memplan.frameworks.programs.operators import written
from memplan.frameworks.programs.others import BITS
from memplan.frameworks.programs.own_losses import PARTS
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import (
    Class,
    Function,
    Method,
    Place,
    Ref,
    Thing,
    Unknown,
    overlay,
    plain,
    root_of,
    truth,
)
from memplan.frameworks.project.own_copies import warn_copy_of_trl
from memplan.tables.texts import words_by_part

NONE = words_by_part(__file__)
STEPS = ("step", "training_step")
MARK = "?changed "
"""How a change is kept among a model's or a trainer's values, before its name: why it may take more."""
ASIDE = re.compile(
    r"(?i)^(get|num|is|has|find|del|hash|verify|free)_|print|count|log|watch|show|display|save|push|export|eval|test|generat"
    r"|predict|infer|scor|summar|report|check|inspect|plot|sampl|chat|seed|describe|compar|tokeni|collat|callback|pipeline"
    r"|data|stream|metric|params|parameters|state|memory|time|profil|info|clean|empty|copy|upload|track|monitor|benchmark"
)
"""How methods are called that look at a model, or use it, and leave it as it is."""
LOOKS = re.compile(
    r"_*(?![A-Z])(?i:(?:maybe_|safe_|merge_and_|lora_|run_|unwrap_model_for_)*(?:print|count|log|watch|show|display|save|push"
    r"|export|eval(?:uat(?:e|or|ion))?|test|generat(?:e|ion)|predict(?:ion)?|infer(?:ence)?|scor(?:e|ing)|summar(?:y|i[sz]e)"
    r"|report|check|inspect|plot|sample|chat|seed|describe|compare|tokeni[sz]e|collate|profile|clean|upload|track|monitor"
    r"|benchmark|num|is|has|del(?:ete)?|hash|verify|free|release|validate|compute|calculate|estimate|measure|analy[sz]e"
    r"|visuali[sz]e|demo|freeze(?!\w*except)))(?=_|[A-Z]|$)\w*"
    r"|_*(?:get|find|list|collect|extract)_\w*(?:param|size|count|num|memory|device|dtype|type|name|module|layer|block|norm"
    r"|head|linear|label|class|cls|regex|target|key|ind(?:ex|ices)|info|stat|metric|flop|dim|dict|data|loader|collator|token"
    r"|score|ppl|perplexity|loss|rate|result|output|embed|logit|tower|encoder|decoder|backbone|config|policy|depth)\w*"
    r"|_*(?:set|load|restore|convert)_\w*(?:state_dict|weights?|checkpoint)\w*|\w*(?:checkpointing|chat_template)"
    r"|[A-Z]\w*(?:Dataset|Collator|Loader|Evaluator|Generator|Pipeline|Logger|Tokenizer|Metrics|Config|Counter|Sampler)"
)
"""The same of functions and classes that are not here: their first words, or what they get."""
SETS = re.compile(
    r"(?i)^_?(save|load|log|print|warn|show|push|init|reset|create_model_card|get_\w*(sampler|dataloader)|is_\w*available"
    r"|check_torch_load|__)"
)
"""Methods whose place another may take."""
RESTING = ("frozen", "partly_frozen", "peft_config", "adapter", "quantization_config", "load_in_4bit", "load_in_8bit")
"""What a model of which some weights rest has."""
PATCHED = ("transformers", "trl", "peft", "torch", "accelerate", "bitsandbytes", "unsloth", "optimum", "deepspeed")
RUNS = re.compile(r"\bmodel\(|\.generate\(|from_pretrained\(|\bpipeline\(|\.(evaluate|predict)\(|\bLLM\(|requires_grad")
"""What a callback does with a model that a step has not."""
OF_ADAPTERS = re.compile(r"(?i)lora|adapter")
HOOK = re.compile(r"register_(full_)?(forward|backward)_(pre_)?hook")
"""Methods that give a module another function to run; ``make_inputs_require_grad`` is PEFT's own."""
KERNELS = ("torch.backends.cuda.enable_flash_sdp", "torch.backends.cuda.enable_mem_efficient_sdp")


def assigned(run: Run, owner: Any, name: str, value: Any, place: Place) -> None:
    """``owner.name = value``, of a model, a part of one, one of its parameters, a trainer or a library."""
    if name == "requires_grad":
        _freeze(run, owner, value, place)
    elif isinstance(owner, Thing) and owner.name == "parameter" and name == "data":
        _cast(owner.values["of"], value, place)
    elif (
        isinstance(owner, Ref)
        and owner.name.partition(".")[0] in PATCHED
        and _callable(value)
        and not SETS.search(name)
    ):
        run.things.append(Thing("replaced", place, {"name": f"{owner.last}.{name}"}))
    elif isinstance(owner, Thing) and owner.last in TRAINERS and name in PARTS and _callable(value):
        owner.set(f"{MARK}{name}", "a method of the program's own is in its place", place)
    elif name[:1] != "?" and (model := root_model(owner)) is not None:
        _part(model, owner, name, value, place)


def _part(model: Thing, owner: Any, name: str, value: Any, place: Place) -> None:
    """``model.lm_head = …``, ``model.config.output_hidden_states = True``."""
    path = [name]
    while isinstance(owner, Method):
        path, owner = [owner.name, *path], owner.owner
    harmless = NONE["config"] if path[0] == "config" else NONE["model"] | READ
    if path[0] == "generation_config" or name in harmless or value is None or truth(value) is False:
        return
    if path[0] == "each" and not _callable(value):
        return  # a module's own number or name
    model.set(f"{MARK}{'.'.join(path)}", "a part of the program's own is in its place", place)


def _callable(value: Any) -> bool:
    """Whether a value may be called."""
    return isinstance(value, (Function, Class, Method)) or (isinstance(value, Ref) and "." in value.name) or (
        isinstance(value, Thing) and value.last in ("lambda", "partial", "MethodType", "wraps")
    )  # fmt: skip


def _cast(model: Thing, value: Any, place: Place) -> None:
    """``param.data = param.data.to(torch.float32)``."""
    if isinstance(value, (Unknown, Method, Ref)) and re.search(
        r"float32|float\(\)", str(getattr(value, "text", value))
    ):
        model.set(f"{MARK}data", "a cast of the program's own is made of some weights", place)


def _freeze(run: Run, owner: Any, value: Any, place: Place) -> None:
    """``parameter.requires_grad = False`` in a loop over a model's parameters; True beside adapters trains more, and of
    a model of which nothing rests what is trained anyway."""
    parameter = isinstance(owner, Thing) and owner.name == "parameter"
    model = owner.values["of"] if parameter else root_model(owner)
    on = value is True or (isinstance(value, Unknown) and value.either == (None, True))  # ``if "lora" in name:``
    if model is None or (on and not any(map(model.values.get, RESTING))):
        named = model is not None and family_of({"model": model.values.get("model_name_or_path")})
        if model is not None and not named and OF_ADAPTERS.search(" ".join(run.doubts)):
            model.set("adapter", "?", place)  # a folder's, which from_pretrained loads with them
        return
    whole = parameter and value is False and not owner.values["part"] and len(run.doubts) <= owner.depth
    model.set("frozen" if whole else "partly_frozen", True, place)
    if value is not False:
        trained(run, model, place)


def element(run: Run, value: Any, node: ast.AST) -> Any:
    """What a loop goes through, one of it."""
    if isinstance(value, Thing) and value.name == "parameters":
        one = Thing("parameter", value.place, dict(value.values), depth=len(run.doubts))
        return (Unknown("a parameter's name", value.place), one) if value.values["named"] else one
    if isinstance(value, Thing) and value.name == "modules":
        part = Method(value.values["of"], "each", value.place)
        return (Unknown("a module's name", value.place), part) if value.values["named"] else part
    if root_model(value) is not None:
        return Method(value, "each", run.place(node))
    return Unknown(f"each of {written(node)}", run.place(node), (), root_of(value))


def trained(run: Run, model: Thing, place: Place) -> None:
    """Weights that are trained beside adapters, but the adapters themselves (``if "lora" in name``)."""
    if model.values.get("peft_config") is not None and not OF_ADAPTERS.search(" ".join(run.doubts)):
        model.set(f"{MARK}requires_grad", "a choice of the program's own is trained beside the adapters", place)


def called(call: Call) -> None:
    """A method of a model that is not known, or a function that is not here and is given one: it may do anything."""
    name, owner = call.name.rpartition(".")[2], call.owner
    if isinstance(owner, Thing) and owner.last in TRAINERS and name == "add_callback" and call.args:
        before = owner.values.get("callbacks")
        owner.set("callbacks", [*(before if type(before) is list else []), call.args[0]], call.place)
    if isinstance(owner, Thing) and owner.last in TRAINERS and name == "train":
        if any(isinstance(each, Thing) and each.last == "autocast" for each in call.run.within) and not _mixed(owner):
            owner.set(f"{MARK}autocast", "an autocast of the program's own is around it", call.place)
    elif isinstance(owner, Thing) and name in STEPS and TRAINERS.get(owner.last, "ppo") != "ppo":
        owner.set(f"{MARK}{name}", "the program takes the trainer's steps itself", call.place)
    elif isinstance(owner, Thing) and name.startswith("set_") and owner.last.endswith(("Arguments", "Config")):
        overlay(owner.values, call.unknown())  # TrainingArguments.set_training(batch_size=64)
    if name == "requires_grad_" and call.get(0, "requires_grad", True) is not False and root_model(owner):
        trained(call.run, root_model(owner), call.place)  # type: ignore[arg-type]
    if (
        HOOK.fullmatch(name)
        and call.args
        and "require" not in str(getattr(getattr(call.args[0], "node", ""), "name", ""))
    ):
        call.run.things.append(Thing("replaced", call.place, {"name": name}))
    looks = LOOKS.fullmatch(name) if owner is None else ASIDE.search(name)
    if call.run.aside or looks or name in NONE["methods"]:
        return
    if owner is not None:
        known = name in MODEL or name in SAVES
        found = [owner] if isinstance(owner, Thing) and owner.name == "model" and not known else []
    else:
        aside = hasattr(builtins, call.name) or call.name.startswith("wandb.")
        given = () if aside else (*call.args, *call.named.values())
        found = (
            [each for value in given for each in things(value)] if name[:1].islower() or not _of_library(call) else []
        )
    for each in found:
        each.set(f"{MARK}{name}", "what it does to the model is of the program's own", call.place)


def _mixed(trainer: Thing) -> bool:
    """Whether the trainer's own arguments run it under autocast."""
    arguments = trainer.values.get("args")
    return isinstance(arguments, Thing) and any(truth(arguments.values.get(key)) for key in ("bf16", "fp16"))


def _of_library(call: Call) -> bool:
    """Whether a function or class is of a library that is known: its objects take little."""
    return Ref(call.name).known


def put_changes(trainer: Thing, found: list[Thing], run: Run, draft: Draft) -> None:
    """All that was changed, as keys that nobody understands."""
    config = found[0].values.get("config") if found else None
    holders = [*found[:1], trainer]
    for each in holders:
        for key, why in each.values.items():
            if key.startswith(MARK):  # of a branch that nobody can decide the change is one of two
                said = why if isinstance(why, str) else next(one for one in why.either if isinstance(one, str))
                draft.warn(key.removeprefix(MARK), str(each.places[key]), said, "model")
    if found and str(found[0].values["class"]).endswith("WithValueHead"):
        why = "its logits in fp32 and all hidden states that it keeps are not modelled"
        draft.warn(found[0].values["class"], str(found[0].places["class"]), why, "loss")
    warn_copy_of_trl(run.start.partition(", cell ")[0], TRAINERS[trainer.last], draft)
    if found and "upcast" in found[0].values and draft.values.get("quantization", "none") == "none":
        why = "a cast of the program's own is made of some weights"
        draft.warn("float32", str(found[0].places["upcast"]), why, "precision")
    for each in run.things:
        if each.name == "replaced":
            draft.warn(each.values["name"], str(each.place), "a method of the program's own is in its place", "model")
    if isinstance(config, Thing):
        for key in (each for each in config.values if each not in NONE["config"]):
            if key[:1] not in "*?" and truth(config.values[key]) is not False and config.values[key] is not None:
                why = "a value of the program's own is in the model's config"
                draft.warn(f"config.{key}", str(config.places[key]), why, "model")
    asked = trainer.values.get("?asked", ())
    reference = [each for each in things(trainer.values.get("ref_model")) if each not in asked]
    if found and reference and _stored(reference[0]) != _stored(found[0]):
        why = "a reference of the program's own is loaded otherwise than the model, as which it is counted"
        draft.warn(
            "ref_model", str(trainer.places["ref_model"]), why, "model", "add --without ref_model, if it is the same"
        )
    for name, place in _callbacks(trainer):
        draft.warn(name, str(place), "a callback of the program's own is given the model", "model")
    off = next((each for each in run.things if each.name in KERNELS and each.values.get("*0") is False), None)
    if off is not None and "attention" not in draft.given:
        what = f"{off.last} is off: attention makes whole scores where no other kernel takes them"
        draft.ask("attention", str(off.place), what, "add --attention eager")


def _callbacks(trainer: Thing) -> Iterator[tuple[str, Place]]:
    """Callbacks of the program's own that run a model, or load one."""
    given = trainer.values.get("callbacks")
    for each in given if type(given) is list else ():
        own = each.own if isinstance(each, Thing) else each if isinstance(each, Class) else None
        if own is not None and RUNS.search(ast.unparse(own.node)):
            yield own.node.name, Place(own.path, own.node.lineno)


def _stored(model: Thing) -> tuple[Any, ...]:
    """What a model's weights take by: which they are, their dtype and bits; of an unknown name nothing."""
    values = model.values
    dtype = next((plain(values[key]) for key in ("cast", "dtype", "torch_dtype") if values.get(key) is not None), None)
    name = values.get("model_name_or_path")
    return (name if isinstance(name, str) else "", str(dtype), any(truth(values.get(key)) for key in BITS))
