"""Calls about paths and files: what they come to as text, and configs that lie beside a program."""

import posixpath
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.operators import under_unknown
from memplan.frameworks.programs.values import Thing, is_plain, known, plain
from memplan.tables.peft_fields import ADAPTER
from memplan.units import words_of


def _text(call: Call) -> Any:
    value = call.get(0, "object")
    if isinstance(value, Thing) and value.last in ("Path", "PurePath"):
        value = value.values.get("*0")
    return str(plain(value)) if is_plain(plain(value)) else call.unknown()


def _folder(call: Call) -> Any:
    value = _text(call)
    return posixpath.dirname(value) or "." if isinstance(value, str) else value


def _path(call: Call) -> Any:
    parts = [_text(call._replace(args=[each])) for each in call.args]
    if not all(isinstance(each, str) for each in parts):
        return under_unknown(parts[-1]) or call.unknown()
    return "/".join(parts)


def _searched(call: Call) -> None:
    """``sys.path.append("../rewards")``, ``sys.path.insert(0, folder)``: modules are looked for there too."""
    name = _text(call._replace(args=call.args[-1:]))
    call.run.files.added += [name] if isinstance(name, str) else []


def _file(call: Call) -> Any:
    """``open(path)``, ``Path(path).open()``: a file whose path the text holds."""
    name = _text(call)
    return Thing("file", call.place, {"path": name}) if isinstance(name, str) else call.unknown()


def _loaded(call: Call) -> Any:
    """``yaml.safe_load(open("config.yaml"))``: what the config holds, where it lies beside the program."""
    source = call.get(0, "stream", call.get(0, "fp"))
    if isinstance(source, Thing) and source.name == "json.dumps" and known(source.values.get("*0")):
        return deepcopy(plain(source.values["*0"]))  # json.loads(json.dumps(DEFAULTS)): a copy
    name = source.values.get("path", source.values.get("*0")) if isinstance(source, Thing) else source
    document = call.run.files.data(name) if isinstance(name, str) else None
    return dict(document.settings.values) if document is not None else call.unknown()


def _exists(call: Call) -> Any:
    """``Path("config.yaml").exists()``: whether a config lies beside the program; of anything else nobody knows."""
    name = _text(call._replace(args=[call.owner]) if call.owner is not None else call)
    return True if isinstance(name, str) and call.run.files.has(name) else call.unknown()


def folder_of(name: Any) -> str:
    """A folder's name without what it may be written with; empty for none."""
    text = plain(name) if known(name) else ""
    return posixpath.normpath(text) if isinstance(text, str) and text else ""


def saved_adapter(call: Call, folder: Any) -> Thing | None:
    """The LoraConfig that PEFT saved in a folder, where it lies here: adapter_config.json."""
    name = folder_of(folder)
    document = call.run.files.data(f"{name}/{ADAPTER}") if name else None
    values = dict(document.settings.values) if document is not None else {}
    return Thing("peft.LoraConfig", call.place, values) if values.get("peft_type") == "LORA" else None


FILES: Mapping[str, Callable[[Call], Any]] = {
    "os.path.join": _path,
    **dict.fromkeys(
        ("Path", "pathlib.Path"), lambda call: call._replace(args=[_path(call)], named={}).thing("pathlib.Path")
    ),
    "os.path.dirname": _folder,
    "os.path.realpath": _text,
    **dict.fromkeys(("os.path.exists", "os.path.isfile"), _exists),
    "os.path.expanduser": _text,
    "os.path.abspath": _text,
    **dict.fromkeys(("sys.path.append", "sys.path.insert"), _searched),
    "str": _text,
    "open": _file,
    **dict.fromkeys(
        words_of(
            """yaml.safe_load yaml.load yaml.full_load json.load json.loads OmegaConf.load omegaconf.OmegaConf.load
            toml.load tomllib.load"""
        ),
        _loaded,
    ),
}


OF_PATHS: Mapping[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("exists", "is_file"), _exists),
    **dict.fromkeys(("expanduser", "resolve", "absolute", "as_posix"), lambda call: call.owner),
    **dict.fromkeys(("open", "read_text", "read"), lambda call: call.owner),
}
