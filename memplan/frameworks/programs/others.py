"""Models beside the trainer's that a program has on its card while it trains: a judge that a reward function asks, a
teacher of a loss of its own."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from memplan.frameworks.asking import beside as hint_beside
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.common.checkpoints import holds_fp32
from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Function, Place, Ref, Thing, Unknown, plain, truth
from memplan.units import words_of

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
BITS = ("quantization_config", "load_in_4bit", "load_in_8bit")
OF_CARD = {"device": "cuda"}
LOADS = {"SentenceTransformer": "model_name_or_path", "CrossEncoder": "model_name_or_path", "pipeline": "model",
         "LLM": "model"}  # fmt: skip
"""Classes and functions of sentence-transformers, transformers and vLLM that put a model on the card themselves where
nothing says otherwise (sentence-transformers 5.1 SentenceTransformer.py: get_device_name; transformers 5.2
pipelines/base.py: accelerator; vllm 0.12 entrypoints/llm.py), and the argument that names it."""


GIVEN = frozenset(
    words_of("model args policy ref_model ref_policy teacher_model reward_model reward_funcs value_model judge")
)
"""Arguments of trainers whose models are read elsewhere, or are the trained one."""


def alive(run: Run, trainer: Thing) -> list[Thing]:
    """The models on the card that the program, its module, what the trainer is given or the functions that are under
    way name where it trains."""
    given = [each for value in trainer.values.values() for each in (value if type(value) is list else (value,))]
    todo = [run.frame, *(each.frame for each in given if isinstance(each, Function))]
    frames = [run.globals, *run.modules.values()]
    while todo:
        frame = todo.pop()
        frames.append(frame)
        todo += [each for each in (frame.outer, frame.caller) if each is not None and each not in frames]
    named = [value for names in frames for value in names.names.values()]
    objects = [each.bound if isinstance(each, Function) else each for each in given]
    more = {each.place: replace(each, values=OF_CARD | each.values)
            for key, value in trainer.values.items() if key not in GIVEN for each in models_of(value)}  # fmt: skip
    found = {each.place: each for value in (*named, *objects) for each in models_of(value)} | more
    beside = [each for each in found.values() if _on_card(each) and each.depth <= len(run.doubts)]
    return beside + [each for each in _asked_for(run, trainer) if each.place not in found]


def _asked_for(run: Run, trainer: Thing) -> list[Thing]:
    """Models that a reward function loads when it is first called."""
    rewards, before = trainer.values.get("reward_funcs"), len(run.things)
    run.aside = True
    for each in rewards if type(rewards) is list else [rewards]:
        if isinstance(each, Function) and id(each.node) not in run.done:
            run.invoke(each, [], {}, trainer.place)
    run.aside = False
    made = [each for each in run.things[before:] if each.name == "model"]
    return [each for each in made if _on_card(replace(each, values=OF_CARD | each.values))]


def put_on_card(call: Call, callee: Ref) -> Any:
    """``SentenceTransformer("BAAI/bge-m3")``: a model on the card, but where it is given one that is there;
    ``copy.deepcopy(model)``: another model, where the first one is. None for anything else."""
    if callee.name == "copy.deepcopy":
        return _copied(call.get(0, "x"), call.place)
    if callee.last not in LOADS or not (callee.known or callee.name.startswith(("sentence_transformers.", "vllm."))):
        return None
    model, name = call.thing("model"), call.get(1 if callee.last == "pipeline" else 0, LOADS[callee.last])
    if isinstance(name, Thing):
        return call.unknown()
    model.set("class", callee.last, call.place)
    model.set("model_name_or_path", name, call.place)
    return model


def _copied(value: Any, place: Place) -> Any:
    """A copy of a model, or of a module of the program's own with those within it; anything else as it is."""
    if not (isinstance(value, Thing) and any(models_of(value))):
        return value
    inner = {key: _copied(each, place) for key, each in value.values.items()} if value.own else dict(value.values)
    return replace(value, place=place, values=inner)


def models_of(value: Any) -> Iterator[Thing]:
    """A model, or those that an object of the program's own has."""
    inner = value.values.values() if isinstance(value, Thing) and value.own and value.name != "model" else (value,)
    yield from (each for each in inner if isinstance(each, Thing) and each.name == "model")


def _on_card(model: Thing) -> bool:
    """Whether a model is moved to the card, or loaded to it, as Unsloth's are and those of few bits."""
    named = ("?device", "device_map", "device")
    device = next((model.values[key] for key in named if model.values.get(key) is not None), None)
    whole = device.get("") if isinstance(device, dict) and list(device) == [""] else device
    if device is not None:
        return not str(plain(whole)).startswith(("cpu", "meta", "False", "-1"))
    class_ = str(model.values.get("class"))
    return class_.startswith("Fast") or class_ in LOADS or _of_few_bits(model)


def put_others(trainer: Thing, old: bool, draft: Draft) -> None:
    """Those that the trainer is not given, whole on each card, as models that score, and what its loss asks. One that
    nobody knows is asked for. ``old``: transformers 4, which loads fp32 by default, as 5 does what is fp32."""
    own = set(_places({key: value for key, value in trainer.values.items() if key in GIVEN or key[:1] == "*"}))
    asked = {each.place: each for each in trainer.values.get("?asked", ())}
    beside = (each for each in trainer.values.get("?beside", ()) if each.place not in own | asked.keys())
    model = trainer.values.get("model")
    first = next((each.values.get("model_name_or_path") for each in models_of(model)), model)
    for model in [*asked.values(), *beside]:
        name, where = model.values.get("model_name_or_path"), str(model.place)
        if (cls := model.values["class"]) in LOADS:
            what = f"puts {name} on the card" if isinstance(name, str) else "puts a model on the card"
            hint = f"add --without {cls}, if what is free holds it"
            draft.warn(cls, where, f"{what}, beside the one that is trained", "model", hint)
            continue
        name = draft.said.get("model") if _written(name) == _written(first) else name
        role = "teacher" if model.place in asked else "reward"
        if not isinstance(name, str):
            if "extra_models" not in draft.given:
                draft.warn("model", where, "a second model on the card is not known", "model", hint_beside(role))
            continue
        dtypes = (str(plain(model.values[key])) for key in ("cast", "dtype", "torch_dtype") if key in model.values)
        precision = next((DTYPES[each] for each in dtypes if each in DTYPES), "")
        precision = precision or ("fp32" if old or holds_fp32({"model": name}) else "bf16")
        row = {"role": role, "model": name, "precision": precision}
        if _of_few_bits(model):
            row["precision"] = "bf16"
            draft.bound("model", where, "a second model of few bits on the card is counted in bf16", "quantisation")
        draft.values["extra_models"] = [*draft.values.get("extra_models", ()), row]
        draft.origins.setdefault("extra_models", Origin(FILE, f"{where}: a second model on the card"))


def _of_few_bits(model: Thing) -> bool:
    """Whether it is loaded so; Unsloth does that unless it is told (models/loader.py: load_in_4bit)."""
    fast = str(model.values.get("class")).startswith("Fast") and "load_in_4bit" not in model.values
    return fast or any(truth(model.values.get(key)) for key in BITS)


def _written(name: Any) -> str:
    """A model's name, or what it is read from: an option names the model that is trained, and its copies."""
    return str(getattr(name, "text", name))


def _places(value: Any, depth: int = 0) -> Iterator[Place]:
    """Where the models were made that a trainer is given, by whatever argument."""
    if isinstance(value, Thing) and value.name == "model":
        yield value.place
    inner: Any = ()
    if isinstance(value, Unknown):
        inner = value.either
    elif isinstance(value, dict):
        inner = [each for key, each in value.items() if key != "?beside"]
    elif type(value) in (list, tuple):
        inner = value
    for each in inner if depth < 4 else ():
        yield from _places(each, depth + 1)
