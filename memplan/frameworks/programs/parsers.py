"""Parsers of a program's options: argparse, click and Hugging Face's, with the values where nobody gives any."""

import ast
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from memplan.frameworks.hugging_face.arguments import FIELDS
from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.files import DATA
from memplan.frameworks.programs.paths import FILES
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import (
    Class,
    Function,
    Place,
    Ref,
    Thing,
    Unknown,
    is_open,
    plain,
    truth,
    unknown_option,
)
from memplan.frameworks.shell.reader import options_of, scalar

NOWHERE: Mapping[str, Place] = MappingProxyType({})


def options(run: Run, callee: Function) -> dict[str, Any]:
    """What decorators ask for: ``@click.option("--lora-r", default=8)``, given where the program is started or not."""
    given, found = run.known.arguments, dict[str, Any]()
    for each in callee.node.decorator_list:
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "option":
            flags = [flag.value for flag in each.args if isinstance(flag, ast.Constant) and isinstance(flag.value, str)]
            value = next((word.value for word in each.keywords if word.arg == "default"), None)
            keys = [flag.lstrip("-").replace("-", "_") for flag in flags]
            name = next((flag for flag in flags if not flag.startswith("-")), keys[-1] if keys else "")
            said = next((key for key in (name, *keys) if key in given), None)
            if said is not None or value is not None:
                found[name] = run.evaluate(value, callee.frame) if said is None else given[said]
    return found


def listed(value: Any) -> Any:
    """``--lora_target_modules '[q_proj,v_proj]'`` as python-fire takes it: a list of words (fire/parser.py)."""
    if not (isinstance(value, str) and value[:1] == "[" and value[-1:] == "]"):
        return value
    return [scalar(each.strip(" '\"")) for each in value[1:-1].split(",") if each.strip()]


PARSERS = ("ArgumentParser", "ArgParser", "HfArgumentParser", "TrlParser", "H4ArgumentParser")


def _argument(call: Call) -> None:
    """``parser.add_argument("--lora_r", default=8)``."""
    flags = [each for each in call.args if isinstance(each, str)]
    name = call.named.get("dest") or next((each for each in flags if each.startswith("--")), flags[0] if flags else "")
    name = str(name).lstrip("-").replace("-", "_")
    arguments, action = call.run.known.arguments, plain(call.named.get("action"))
    value = call.named.get("default")
    if "default" not in call.named and action in ("store_true", "store_false"):
        value = action == "store_false" or (call.run.hopeful and DO_TRAIN.fullmatch(name) is not None)
    elif "default" not in call.named and (truth(call.named.get("required")) or not flags[:1] or flags[0][:1] != "-"):
        value = unknown_option(name, call.place)
    if flags[:1] and flags[0][:1] != "-":
        value = _positional(call, value)
    said = next((key for key in (name, *(each.lstrip("-") for each in flags)) if key in arguments), name)
    where = call.run.known.places.get(said, call.places.get("default", call.place))
    value, type_ = arguments.get(said, value), call.named.get("type")
    if isinstance(type_, Ref) and type_.last == "Path" and isinstance(value, str):
        value = Thing("pathlib.Path", where, {"*0": value})
    call.owner.set(name, value, where)


def _positional(call: Call, value: Any) -> Any:
    """The next of the command's words before its options, or all that are left."""
    loose, place = options_of(call.run.known.words)[2], call.owner.values.get("?loose", 0)
    words = [scalar(word.text) for word in loose[place:]]
    several = call.named.get("nargs") in ("*", "+")
    call.owner.values["?loose"] = len(loose) if several else place + 1
    return (words if several else words[0]) if words else value


DO_TRAIN = re.compile(r"(do_|run_)?(train(ing)?|fine_?tun(e|ing)|sft|dpo|grpo)")
"""Switches without which a program that has a trainer trains nothing."""
TRAINS = re.compile(r"(?i)train|tun(e|ing)|sft|dpo|grpo|fit")
"""Words for a training among a program's commands."""


def _command(call: Call) -> Thing:
    """``subparsers.add_parser("train")``: of the command's own word, or else of one that trains, the whole program's
    options; of any other word options that nobody asks for."""
    words, class_ = [word.text for word in options_of(call.run.known.words)[2][:1]], call.owner.values.get("?class")
    name = class_.name if isinstance(class_, Ref) else "argparse.ArgumentParser"
    if call.get(0, "name") not in words and (words or not TRAINS.search(str(call.get(0, "name")))):
        return Thing(name, call.place)
    call.owner.values["?loose"] = len(words)
    if "dataclass_types" in call.named:
        call.owner.set("dataclass_types", call.named["dataclass_types"], call.place)
    return Thing(name, call.place, call.owner.values, call.owner.places)


def _commands(call: Call) -> Any:
    call.owner.values["?class"] = call.named.get("parser_class")
    return call.owner


def _whole(name: str, names: Collection[str]) -> str:
    """The option that a shortened name begins, where it begins one alone: ``--max_seq_len`` of ``max_seq_length``."""
    found = [each for each in names if each.startswith(name)] if name not in names else []
    return found[0] if len(found) == 1 else name


def _arguments_of(call: Call) -> Thing:
    owner, known = call.owner, call.run.known
    for short in known.arguments.keys() - owner.values.keys():
        if (name := _whole(short, owner.values)) != short and name not in known.arguments:
            owner.set(name, known.arguments[short], known.places.get(short, call.place))
    return Thing("arguments", call.place, dict(owner.values), dict(owner.places))


def _of_file(call: Call) -> Any:
    """``parser.parse_yaml_file(args.config)``: one of each, as the file fills it."""
    name = FILES["str"](call._replace(args=[*call.args, *call.named.values()][:1]))
    if not isinstance(name, str):
        return _instances(call)
    found = call.run.files.data(name)
    if found is None:  # what it says nobody knows
        return _instances(call, {})
    values = found.settings.values
    return _instances(call, values, {key: Place(found.path, found.settings.lines.get(key, 1)) for key in values})


def _plain(each: object) -> bool:
    """Whether all names of its options are known: a class of the program's own, or transformers' arguments."""
    root = each.root if isinstance(each, Class) else each
    return root is None or (isinstance(root, Ref) and root.last.endswith("TrainingArguments"))


def _instances(call: Call, given: Mapping[str, Any] | None = None, at: Mapping[str, Place] = NOWHERE) -> Any:
    """``HfArgumentParser((ModelArguments, TrainingArguments))``: one of each, as the command fills it, or ``given``."""
    known_places = call.run.known.places if given is None else at
    classes = call.owner.values.get("*0", call.owner.values.get("dataclass_types"))
    several = list(classes) if isinstance(classes, (list, tuple)) and not isinstance(classes, Ref) else [classes]
    left, run = dict(call.run.known.arguments if given is None else given), call.run
    if given is None and all(map(_plain, several)):
        names = {*FIELDS, *(name for each in several if isinstance(each, Class) for name in each.all_fields())}
        left = {_whole(name, names): value for name, value in left.items()}
        known_places = {_whole(name, names): place for name, place in known_places.items()}
    taken = {name for each in several if isinstance(each, Class) for name in each.all_fields() if name in left}
    found: list[Any] = []
    for each in several:
        mine = {name: left[name] for name in left if not isinstance(each, Class) or name in each.all_fields() or (
            each.root is not None and name not in taken)}  # fmt: skip
        places = {name: known_places[name] for name in mine if name in known_places}
        if isinstance(each, Class):
            made = run.made(each, [], mine, places, call.place)
            made.values["?command"] = bool(left)
            refused = _refused(each)
            for name in [name for name in each.all_fields() if name not in mine and (
                is_open(made.values[name]) or (made.values[name] in (None, "") and name in refused))]:  # fmt: skip
                made.values[name] = unknown_option(name, made.places[name])
            found.append(made)
        else:
            rest = {name: value for name, value in mine.items() if name not in taken}
            name = each.name if isinstance(each, Ref) else "arguments"
            unsaid = UNSAID if name.endswith("ModelConfig") and left and "config" not in left else {}
            filled = {**unsaid, **rest, "?command": bool(left)}
            found.append(Thing(name, call.place, filled, places) if isinstance(each, Ref) else call.unknown())
    rest = {key: value for key, value in call.owner.values.items() if key[:1] not in "*?" and key != "dataclass_types"}
    return (*found, Thing("arguments", call.place, rest)) if rest else tuple(found)


REFUSES = re.compile(r"not self\.(\w+)|self\.(\w+) is None")


def _refused(own: Class) -> set[str]:
    """Fields whose absence its ``__post_init__`` is an error for: ``if self.config_path is None: raise``."""
    after = own.method("__post_init__")
    tests = (each for each in ast.walk(after.node) if isinstance(each, ast.If) and isinstance(each.body[0], ast.Raise)
             ) if after else ()  # fmt: skip
    found = (REFUSES.fullmatch(ast.unparse(each.test)) for each in tests)
    return {match[1] or match[2] for match in found if match}


UNSAID = {
    "attn_implementation": None, "load_in_4bit": False, "load_in_8bit": False, "use_peft": False,
    "trust_remote_code": False, "model_revision": "main", "torch_dtype": None, "dtype": "float32",
}  # fmt: skip
"""Defaults of TRL's ModelConfig that no version changed (model_config.py, 0.9 to 1.16; ``dtype`` since 0.24 in the
place of ``torch_dtype``)."""


def _of_config(call: Call) -> Any:
    """``TrlParser.parse_args_and_config()``: the command's options over what the file of its ``--config`` says; of
    ``H4ArgumentParser.parse()`` the one that stands first."""
    given, places = call.run.known.arguments, call.run.known.places
    first = [word.text for word in options_of(call.run.known.words)[2][:1] if word.text.endswith(DATA)]
    name = given.get("config", first[0] if first else None)
    found = call.run.files.data(name) if isinstance(name, str) else None
    if found is None and isinstance(name, str):
        lost = Unknown(f"{name[:80]}, which is not here", call.place)
        return _instances(call, {**given, "config": name, "**": lost}, places)
    if found is None:
        return _instances(call)
    values = {key: value for key, value in found.settings.values.items() if key != "env"}
    at = {key: Place(found.path, found.settings.lines.get(key, 1)) for key in values}
    options = {key: value for key, value in given.items() if key != "config"}
    return _instances(call, {**values, **options}, {**at, **{key: places[key] for key in options if key in places}})


def _one_of(call: Call) -> Any:
    return _instances(call) if call.owner.last not in ("ArgumentParser", "ArgParser") else _arguments_of(call)


_OF: Mapping[str, Callable[[Call], Any]] = {
    "parse_args_into_dataclasses": _instances, "parse_args_and_config": _of_config,
}  # fmt: skip
PARSER: Mapping[str, Callable[[Call], Any]] = {
    "add_argument": _argument,
    "add_subparsers": _commands,
    "add_parser": _command,
    "add_argument_group": lambda call: call.owner,
    "add_mutually_exclusive_group": lambda call: call.owner,
    "set_defaults": lambda call: [call.owner.set(key, value, call.place) for key, value in call.named.items()] and None,
    "parse_args": _one_of,
    "parse_known_args": lambda call: (_one_of(call), []),
    **dict.fromkeys(
        ("parse_args_into_dataclasses", "parse_args_and_config"),
        lambda call: (
            (*_OF[call.name](call), []) if call.named.get("return_remaining_strings") else _OF[call.name](call)
        ),
    ),
    "parse_yaml_file": _of_file,
    "parse_json_file": _of_file,
    "parse_yaml_and_args": _instances,
    "parse": lambda call: found[0] if len(found := _of_config(call)) == 1 else found,
}
