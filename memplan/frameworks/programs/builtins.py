"""Calls of Python's own functions and of those beside it, as far as a program's text holds what they give."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from memplan.frameworks.commands.hydra import put_at
from memplan.frameworks.programs import engines
from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.models import MODEL
from memplan.frameworks.programs.operators import ending
from memplan.frameworks.programs.parsers import listed
from memplan.frameworks.programs.paths import FILES
from memplan.frameworks.programs.values import (
    Function,
    Method,
    Ref,
    Thing,
    Unknown,
    is_plain,
    known,
    overlay,
    plain,
    truth,
)
from memplan.frameworks.shell.reader import scalar
from memplan.tables.trainer import version_key
from memplan.units import words_of


def _version(call: Call) -> Any:
    """``version.parse("4.37.0")``, as what compares like it."""
    value = call.get(0, "version")
    return version_key(value) if isinstance(value, str) else call.unknown()


def _module(call: Call) -> Any:
    """``importlib.import_module(f"pipelines.{name}")``, of the project."""
    name = call.get(0, "name")
    inner = call.run.module(name) if isinstance(name, str) else {}
    return Thing("module", call.place, inner) if inner else call.unknown()


def _default(call: Call) -> Any:
    """``os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "…")``."""
    return call.run.globals.names.setdefault(f"os.environ.{call.get(0, 'key')}", call.get(1, "default"))


def _environment(call: Call) -> Any:
    name, other = call.get(0, "key"), call.get(1, "default")
    if name == "WORLD_SIZE" and call.run.machine.num_gpus:
        return str(call.run.machine.num_gpus)
    said = call.run.globals.names.get(f"os.environ.{name}")
    if said is not None:
        return said
    if len(call.args) > 1 or "default" in call.named or name in ("LOCAL_RANK", "RANK"):
        return other
    whose = f"the environment's {name}"
    return Unknown(whose, call.place, (), whose)


def _number(kind: Callable[[Any], Any]) -> Callable[[Call], Any]:
    def made(call: Call) -> Any:
        value = call.get(0, "value")
        try:
            return kind(plain(value)) if known(value) and is_plain(plain(value)) else call.unknown()
        except (TypeError, ValueError, OverflowError):
            return call.unknown()

    return made


def _of_numbers(kind: Callable[..., Any]) -> Callable[[Call], Any]:
    def made(call: Call) -> Any:
        values = call.args[0] if len(call.args) == 1 and isinstance(call.args[0], list) else call.args
        bound = "model_max_length" if kind is min else "?"  # rows are no longer than the others, whatever it is
        said = [each for each in values if not str(getattr(each, "name", "")).endswith(bound)]
        return kind(said) if said and all(isinstance(each, (int, float)) for each in said) else call.unknown()

    return made


def _getattr(call: Call) -> Any:
    owner, name = call.get(0, "o"), call.get(1, "name")
    if not isinstance(name, str):
        return call.unknown()
    value = call.run.attribute(owner, name, call.node)
    missing = isinstance(value, Method) or (isinstance(value, Ref) and not isinstance(owner, Ref))
    if missing and isinstance(owner, Thing) and len(call.args) > 2 and owner.own is not None:
        return call.args[2]
    return call.unknown() if missing else value


TYPES: dict[str, type] = {
    **{kind.__name__: kind for kind in (dict, list, tuple, str, int, float, bool)},
    **{f"{module}.{name}": dict for module in ("typing", "collections.abc") for name in ("Mapping", "MutableMapping")},
}
DTYPE = re.compile(r"torch\.(b?float\d+|half|double)")


def _isinstance(call: Call) -> Any:
    """Of Python's own values and kinds; of anything else nobody knows."""
    value, kind = call.get(0, "o"), call.get(1, "class")
    several = kind if isinstance(kind, tuple) and not isinstance(kind, Ref) else (kind,)
    kinds = [TYPES.get(each.name) if isinstance(each, Ref) else None for each in several]
    if kind == Ref("torch.dtype") and (isinstance(value, str) or DTYPE.fullmatch(getattr(value, "name", ""))):
        return not isinstance(value, str)
    if (
        None in kinds
        or isinstance(value, (Ref, Method))
        or not (is_plain(value) or isinstance(value, (dict, list, tuple)))
    ):
        return call.unknown()
    return isinstance(value, tuple(each for each in kinds if each))


def _hasattr(call: Call) -> Any:
    owner, name = call.get(0, "o"), call.get(1, "name")
    if isinstance(owner, Thing) and owner.name == "model" and name in MODEL:
        return True
    if isinstance(owner, Thing) and isinstance(name, str) and (owner.own is not None or name in owner.values):
        return name in owner.values or (owner.own is not None and owner.own.method(name) is not None)
    return True if isinstance(owner, Ref) and owner.known else call.unknown()


def _setattr(call: Call) -> None:
    owner, name, value = call.args if len(call.args) == 3 else (None, "", None)
    if isinstance(name, str):
        call.run.put(owner, name, value, call.place)
    elif isinstance(owner, Thing) and owner.name != "model" and not call.run.aside:
        overlay(owner.values, call.unknown(), ending(call.node))


def _mapping(call: Call) -> Any:
    value = call.get(0, "o")
    if call.name == "vars" and isinstance(value, Thing):
        return value.values
    found = value.values if isinstance(value, Thing) else value if isinstance(value, dict) else {}
    if call.args and not isinstance(value, (Thing, dict)):
        found = {"**": call.unknown()}
    return {**found, **call.named}


def _list(call: Call) -> Any:
    value = call.get(0, "o")
    if isinstance(value, Unknown) and value.either:
        return value
    return list(value) if isinstance(value, (list, tuple)) and not isinstance(value, (Ref, Method)) else (
        value if value == "all-linear" else call.unknown() if call.args else [])  # fmt: skip


def _card(call: Call) -> bool:
    call.run.asked_card = True
    return call.run.machine.bf16


def _capability(call: Call) -> tuple[int, int]:
    call.run.asked_card = True
    return call.run.machine.capability


def _properties(call: Call) -> Thing:
    """``torch.cuda.get_device_properties(0)``: what the card says of itself, where it is named."""
    card, place = call.run.machine, call.place
    memory = card.memory or Unknown("the memory of the card", place)
    values = {"total_memory": memory, "major": card.capability[0], "minor": card.capability[1]}
    return Thing("device", place, values, dict.fromkeys(values, place))


def _begin(call: Call) -> Any:
    """``fire.Fire(train)``, ``typer.run(train)``: with the command's options, else with its defaults."""
    start = call.get(0, "component")
    given = {key: listed(value) for key, value in call.run.machine.arguments.items() if isinstance(start, Function)
             and key in [each.arg for each in (*start.node.args.args, *start.node.args.kwonlyargs)]}  # fmt: skip
    return call.run.invoke(start, [], given, call.place) if isinstance(start, Function) else call.unknown()


def _processes(call: Call) -> Any:
    """``notebook_launcher(train, (), num_processes=2)``."""
    start, args, count = call.get(0, "function"), call.get(1, "args", ()), call.get(2, "num_processes")
    if isinstance(count, int):
        call.run.globals.names["?num_processes"] = (count, call.place)
    return (
        call.run.invoke(start, list(args) if isinstance(args, (list, tuple)) else [], {}, call.place)
        if isinstance(start, Function)
        else None
    )


def _replaced(call: Call) -> Any:
    owner = call.get(0, "obj")
    if not isinstance(owner, Thing):
        return call.unknown()
    return Thing(owner.name, owner.place, {**owner.values, **call.named}, {**owner.places, **call.places}, owner.own)


def _quantisation_of(call: Call) -> Any:
    """TRL's ``get_quantization_config(model_args)`` (trl 0.8 to 1.16 trainer/utils.py)."""
    given = call.get(0, "model_args")
    values = given.values if isinstance(given, Thing) else {}
    four, eight = (values.get(key, False) for key in ("load_in_4bit", "load_in_8bit"))
    if not isinstance(given, Thing) or truth(four) is None or truth(eight) is None:
        return call.unknown()
    nested, kind = values.get("use_bnb_nested_quant", False), values.get("bnb_4bit_quant_type", "nf4")
    said = {"load_in_4bit": four, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    named = {"load_in_8bit": True} if eight else said
    return call._replace(args=[], named=named).thing("BitsAndBytesConfig") if four or eight else None


def _plain_config(call: Call) -> Any:
    """``OmegaConf.to_container(cfg)``: a config as mappings."""
    value = call.get(0, "cfg")
    value = value.values if isinstance(value, Thing) and value.own else value
    return value if isinstance(value, (dict, list)) else call.unknown()


def _over_one_another(call: Call) -> dict[str, Any]:
    """``OmegaConf.merge(defaults, cfg)``: of mappings within one another the later one's keys."""
    found: dict[str, Any] = {}
    for each in call.args:
        value = each.values if isinstance(each, Thing) and each.own else each
        for key, inner in value.items() if isinstance(value, dict) else ():
            put_at(found, [key], inner)
        if not isinstance(value, dict):
            overlay(found, call.unknown())
    return found


def _from_command(call: Call) -> dict[str, Any]:
    """``OmegaConf.from_cli()``: ``train.lr=1e-4`` of the command."""
    found: dict[str, Any] = {}
    for word in call.run.known.words:
        name, sign, value = word.text.partition("=")
        if sign and name[:1] != "-":
            put_at(found, name.split("."), scalar(value))
    return found


FUNCTIONS: Mapping[str, Callable[[Call], Any]] = {
    **FILES,
    engines.INITIALISED: engines.initialised,
    "deepspeed.add_config_arguments": engines.arguments,
    **dict.fromkeys(("*.to_container", "omegaconf.OmegaConf.to_object"), _plain_config),
    "omegaconf.OmegaConf.create": lambda call: call.get(0, "obj", {}),
    "omegaconf.OmegaConf.structured": lambda call: call.get(0, "obj"),
    "omegaconf.OmegaConf.merge": _over_one_another,
    "omegaconf.OmegaConf.from_cli": _from_command,
    "os.environ.get": _environment,
    "os.environ.setdefault": _default,
    **dict.fromkeys(("packaging.version.parse", "packaging.version.Version"), _version),
    "os.getenv": _environment,
    **dict.fromkeys(words_of("*.is_bfloat16_supported *.is_bf16_supported *.is_torch_bf16_gpu_available"), _card),
    "*.get_device_capability": _capability,
    "torch.cuda.is_available": lambda call: True,
    "hasattr": _hasattr,
    "isinstance": _isinstance,
    **dict.fromkeys(
        words_of(
            """torch.backends.mps.is_available torch.xpu.is_available *.is_torch_xpu_available
            *.is_torch_npu_available *.is_torch_mps_available *.is_torch_xla_available"""
        ),
        lambda call: False,
    ),
    "*.get_device_properties": _properties,
    "*.get_quantization_config": _quantisation_of,
    "torch.cuda.device_count": lambda call: call.run.machine.num_gpus or call.unknown(),
    "fire.Fire": _begin,
    "typer.run": _begin,
    "*.notebook_launcher": _processes,
    "*.is_adapter_model": lambda call: False,  # alignment-handbook's: a base is counted
    "int": _number(int),
    "float": _number(float),
    "bool": lambda call: call.unknown() if truth(call.get(0, "o")) is None else truth(call.get(0, "o")),
    "len": lambda call: (
        len(call.args[0])
        if call.args and (isinstance(call.args[0], (list, dict, str)) or type(call.args[0]) is tuple)
        else call.unknown()
    ),
    "min": _of_numbers(min),
    "max": _of_numbers(max),
    "round": _number(round),
    "getattr": _getattr,
    "setattr": _setattr,
    **dict.fromkeys(("vars", "dict", "dataclasses.asdict"), _mapping),
    "dataclasses.replace": _replaced,
    **dict.fromkeys(("list", "tuple", "set", "sorted"), _list),
    "*.snapshot_download": lambda call: call.get(0, "repo_id", call.get(0, "model_id")),
    "importlib.import_module": _module,
    "importlib.reload": lambda call: call.get(0, "module"),
    "copy.copy": lambda call: call.get(0, "x"),
    "typing.cast": lambda call: call.get(1, "val"),
}
