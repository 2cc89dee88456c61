"""What calls of a program come to, by what is called: a function of its own, a method, a name of a library."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from memplan.frameworks.commands.hydra import composed, put_at
from memplan.frameworks.commands.launch import Launch
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.programs import changes, loops
from memplan.frameworks.programs import models as python_models
from memplan.frameworks.programs.builtins import FUNCTIONS
from memplan.frameworks.programs.call import Call, forwarded
from memplan.frameworks.programs.operators import written
from memplan.frameworks.programs.parsers import PARSER, PARSERS, options
from memplan.frameworks.programs.paths import OF_PATHS
from memplan.frameworks.programs.plain_values import as_mapping, of_plain
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Class, Frame, Function, Method, Place, Ref, Thing, Unknown, truth
from memplan.frameworks.shell.reader import Command, Word

assigned, element = changes.assigned, changes.element
CONFIGS = ("megatron.bridge.",)
"""Libraries whose objects hold others: what is set within them, and what their methods make, is kept."""
VALIDATES = ("model_validate", "parse_obj")
"""pydantic's methods that make an object of a mapping."""
ALL_LINEAR = re.compile(r"(find|get)_(all_)?(linear|target)_?(layers?|modules?|names?)?\w*|find_all_linear\w*")
"""Names of functions that collect the model's linears for LoRA: QLoRA's ``find_all_linear_names`` and its copies."""

OF_ADAPTER = re.compile(r"_?is_(a_)?(peft_|lora_)?adapter(_(model|path|checkpoint|dir|repo))?")
"""Functions that ask whether a name is an adapter's: alignment-handbook's ``is_adapter_model`` and its kind."""


def function(run: Run, callee: Function, args: list[Any], named: dict[str, Any], place: Place) -> Any:
    """A function of the program."""
    copied = OF_ADAPTER.fullmatch(callee.node.name)  # a base is counted
    if copied or ALL_LINEAR.fullmatch(callee.node.name):
        run.done.add(id(callee.node))
        return False if copied else "all-linear"
    owner, name = callee.bound, callee.node.name
    if isinstance(owner, Thing) and owner.last in PARSERS and name in PARSER:  # a copy of H4's
        return PARSER[name](Call(run, args, named, {}, place, callee.node, owner, name))
    return run.invoke(callee, args, named, place)


def bind(run: Run, callee: Function, frame: Frame, args: list[Any], named: dict[str, Any]) -> None:
    """Parameters to what they are given, else to their defaults, else to nobody knows what."""
    given, values = callee.node.args, list(args) if callee.bound is None else [callee.bound, *args]
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    defaults: dict[str, ast.expr | None] = dict(zip(names[::-1], given.defaults[::-1], strict=False))
    defaults |= {each.arg: value for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
    declared = options(run, callee)
    config = hydra_config(run, callee) if not values and not named else None
    declared |= {names[0]: config} if config is not None and names else {}
    for name in (*names, *(each.arg for each in given.kwonlyargs)):
        if values and name in names:
            frame.names[name] = values.pop(0)
        elif name in named:
            frame.names[name] = named[name]
        elif "**" in named:
            frame.names[name] = named["**"]
        elif name in declared:
            frame.names[name] = declared[name]
        elif name in defaults:
            frame.names[name] = default(run, run.evaluate(defaults[name], callee.frame))
        else:
            whose = f"{name}, a parameter of {callee.node.name}()"
            frame.names[name] = Unknown(whose, Place(callee.path, callee.node.lineno), (), whose)
    if isinstance(callee.bound, Thing) and callee.bound.own:
        frame.names["super"] = Super(callee.bound, callee.node)
    if given.vararg:
        frame.names[given.vararg.arg] = tuple(values)
    if given.kwarg:
        frame.names[given.kwarg.arg] = {key: value for key, value in named.items() if key not in frame.names}


class Super(NamedTuple):
    """``super()`` in a method."""

    thing: Thing
    method: ast.AST


def _defining(own: Class | None, method: ast.AST) -> Class | None:
    """The class, of an object's and those above it, that this method stands in."""
    if own is None or any(each.node is method for each in own.methods.values()):
        return own
    above = (_defining(base, method) for base in own.bases if isinstance(base, Class))
    return next((each for each in above if each), None)


def _above(call: Call) -> Any:
    """``super().__init__(model)``: the method of a class above; what makes an object without one is its values."""
    thing, own = call.owner.thing, _defining(call.owner.thing.own, call.owner.method)
    bases = [base for base in own.bases if isinstance(base, Class)] if own else []
    found = next((each for each in (base.method(call.name) for base in bases) if each), None)
    if found is not None:
        return call.run.invoke(found.on(thing), call.args, call.named, call.place)
    if call.name != "__init__":
        return call.unknown()
    names = [name for base in bases for name in base.all_fields()] or [f"*{number}" for number in range(len(call.args))]
    for key, value in (*zip(names, call.args, strict=False), *call.named.items()):
        if key != "**" and key not in thing.values:
            thing.set(key, value, call.places.get(key, call.place))
    return None


def default(run: Run, value: Any) -> Any:
    """``field(default=8)``, ``typer.Option(8)``, ``Field(8)``: 8."""
    if not isinstance(value, Thing) or value.last not in ("field", "Option", "Argument", "Field"):
        return value
    for key in ("default", "*0"):
        if key in value.values and value.values[key] is not Ellipsis:
            return value.values[key]
    factory = value.values.get("default_factory")
    if isinstance(factory, Thing) and factory.name == "lambda":
        return factory.values["result"]
    if isinstance(factory, Ref) and factory.name in ("list", "dict"):
        return [] if factory.name == "list" else {}
    if isinstance(factory, Class):
        return run.made(factory, [], {}, {}, value.place)
    return Unknown("a field that has no default", value.place)


def is_trainer(own: Class) -> bool:
    """Whether a class of the program is a trainer with a change."""
    return own.root is not None and own.root.last in python_models.TRAINERS


def one_of(callee: Any) -> Any:
    """Of trainers that a condition chooses among, all with changes of one: that with the changes, which may train
    otherwise; anything else as it is."""
    several = callee.either if isinstance(callee, Unknown) else ()
    roots = [each.root if isinstance(each, Class) else each for each in several]
    names = {each.last for each in roots if isinstance(each, Ref)}
    if not several or len(names) != 1 or not names <= python_models.TRAINERS.keys():
        return callee
    return next((each for each in several if isinstance(each, Class)), several[0])


def constructed(run: Run, thing: Thing, args: list[Any], named: dict[str, Any], places: dict[str, Place]) -> Thing:
    """An object of a class of the program: of a trainer's, it is one."""
    if thing.own is not None and thing.own.root is not None:
        for number, value in enumerate(args):
            thing.set(f"*{number}", value, thing.place)
        for key, value in named.items():
            thing.set(key, value, places.get(key, thing.place))
        python_models.note_trainer(run, thing)
    run.things.append(thing)
    return thing


def library(
    run: Run,
    callee: Any,
    args: list[Any],
    named: dict[str, Any],
    places: dict[str, Place],
    place: Place,
    node: ast.Call,
) -> Any:
    """A call of what the program does not define."""
    _note_length(run, callee, named, places, node)
    run.functions += [each for each in (*args, *named.values()) if isinstance(each, Function) and each.bound]
    if isinstance(callee, Super):
        return callee
    if isinstance(callee, Method):
        call = Call(run, args, named, places, place, node, callee.owner, callee.name)
        changes.called(call)
        loops.noted(call, None)
        return _above(call) if isinstance(callee.owner, Super) else _method(call)
    if not isinstance(callee, Ref):
        call = Call(run, args, named, places, place, node, callee)
        loops.noted(call, callee)
        return forwarded(call, callee)
    if callee.name.startswith("deepspeed."):
        run.sharded = run.sharded or place
    call = Call(run, args, named, places, place, node, name=callee.name)
    if callee.name in ("sys.exit", "exit", "quit"):
        return Ref("sys.exit()")
    work = FUNCTIONS.get(callee.name) or (FUNCTIONS.get(f"*.{callee.last}") if callee.known else None)
    if work is not None:
        return work(call)
    if args and any(args[0] is each for each in run.trainers):
        return args[0]  # Unsloth's train_on_responses_only(trainer)
    made = python_models.made(call, callee) if not callee.name.startswith(CONFIGS) else None
    if made is None:
        changes.called(call)
    if made is not None or not (callee.known or "_attn_with_flash" in callee.last):
        return call.unknown() if made is None else made
    run.things.append(call.thing(callee.name))
    return run.things[-1]


def _note_length(run: Run, callee: Any, named: dict[str, Any], places: dict[str, Place], node: ast.Call) -> None:
    """``tokenizer(text, truncation=True, max_length=512)``."""
    cuts = "max_length" in named and ("truncation" in named or "padding" in named)
    cuts = cuts and truth(named.get("truncation", True)) is not False
    if cuts and not (isinstance(callee, Ref) and "." in callee.name and callee.known):
        texts = {each.arg: written(each.value) for each in node.keywords}
        run.lengths.append((named["max_length"], places["max_length"], texts.get("max_length", "")))
    if "model_max_length" in named:
        run.lengths.append((named["model_max_length"], places["model_max_length"], ""))


def part(owner: Any) -> Any:
    """``config.train`` of a config that a library made: an object of its own, once something is put into it."""
    if not isinstance(owner, Method):
        return owner
    whole = part(owner.owner)
    if not isinstance(whole, Thing) or not whole.name.startswith(CONFIGS):
        return owner
    if owner.name not in whole.values:
        whole.set(owner.name, Thing(f"{whole.name}.{owner.name}", owner.place, depth=whole.depth), owner.place)
    return whole.values[owner.name]


def _method(call: Call) -> Any:
    owner = call.owner
    if call.name == "map":
        call.run.mapped.append(call)
    if isinstance(owner, Thing) and owner.name.startswith(CONFIGS):
        made = call.thing(f"{owner.name}.{call.name}")
        made.set("?self", owner, call.place)
        return made
    if call.name in ("is_bf16_supported", "get_device_capability"):
        return FUNCTIONS[f"*.{call.name}"](call)
    if isinstance(owner, Thing) and owner.last in ("Path", "file") and call.name in OF_PATHS:
        return OF_PATHS[call.name](call)
    if isinstance(owner, Thing) and call.name in PARSER and owner.last in PARSERS:
        return PARSER[call.name](call)
    if isinstance(owner, Class) and call.name in VALIDATES and len(call.args) == 1 and isinstance(call.args[0], dict):
        return call.run.made(owner, [], call.args[0], {}, call.place)
    if isinstance(owner, Class) and (loads := owner.inherited(call.name)):
        return python_models.made(call, loads)
    if isinstance(owner, (str, dict, list)):
        return of_plain(call)
    if call.name == "to_dict" and (found := as_mapping(owner)) is not None:
        return found
    return python_models.method(call)


NAMED = ("config_path", "config_name")


def hydra_config(run: Run, callee: Function) -> dict[str, Any] | None:
    """What ``@hydra.main(config_path="conf", config_name="train")`` hands its function, under the command's overrides;
    None without it, or where the config is not here."""
    calls = (each for each in callee.node.decorator_list if isinstance(each, ast.Call))
    main = next((each for each in calls if ast.unparse(each.func) == "hydra.main"), None)
    if main is None:
        return None
    path, options = run.files.path, Settings(run.files.path, {})
    said = {word.arg: run.evaluate(word.value, callee.frame) for word in main.keywords}
    words = [Word(f"--{key}={said[key]}", main.lineno) for key in NAMED if isinstance(said.get(key), str)]
    command = Command((), {}, main.lineno)
    launch = Launch("", options, posixpath.basename(path), (*words, *run.known.words), command, path)
    found = composed(Document(path, "shell", options), launch)
    if found is None:
        return None
    first = callee.node.args.args[0].annotation if callee.node.args.args else None
    schema = run.evaluate(first, callee.frame) if isinstance(first, ast.Name) else None
    values = _as_mapping(run.made(schema, [], {}, {}, run.place(main))) if isinstance(schema, Class) else {}
    for key, value in _as_known(found.settings.values, Place(path, main.lineno)).items():
        put_at(values, [key], value)
    return values


def _as_mapping(value: Any) -> Any:
    """A structured config's defaults as mappings."""
    if isinstance(value, Thing) and value.own is not None:
        return {key: _as_mapping(inner) for key, inner in value.values.items() if key[:1] not in "*?"}
    return value


def _as_known(value: Any, place: Place) -> Any:
    """A config's values; what its resolvers and the command would put in is nobody's."""
    if isinstance(value, Mapping):
        return {key: _as_known(inner, place) for key, inner in value.items()}
    if isinstance(value, str) and ("${" in value or value == "???"):
        return Unknown(value, place)
    return value
