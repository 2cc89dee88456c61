"""Methods of Python's own values: texts, lists and mappings of a program."""

from typing import Any

from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.operators import joined, open_
from memplan.frameworks.programs.values import LEFT_OUT, Thing, is_plain, known, overlay

TEXT = ("lower", "upper", "strip", "rstrip", "lstrip", "replace", "split", "startswith", "endswith")
"""Methods of texts that are worked out."""


def as_mapping(owner: Any) -> dict[str, Any] | None:
    """``training_args.to_dict()``: every argument, those that were left out at transformers' own defaults; None where
    its command fills it, which is not here."""
    if not isinstance(owner, Thing) or owner.values.get("?command") is False:
        return None
    unsaid = LEFT_OUT if owner.last.endswith("TrainingArguments") else {}
    return {**unsaid, **{key: value for key, value in owner.values.items() if key[:1] not in "?*" or key == "**"}}


def of_plain(call: Call) -> Any:
    """Methods of Python's own values."""
    owner, name, args = call.owner, call.name, call.args
    doubtful = bool(call.run.loops or call.run.doubts)
    if isinstance(owner, dict):
        return _of_mapping(owner, name, call, doubtful)
    if isinstance(owner, list):
        if name in ("append", "extend", "add", "insert"):
            value = call.unknown() if doubtful else args[-1] if args else None
            owner += value if name == "extend" and isinstance(value, list) else [value]
            return None
        return call.unknown()
    if name in TEXT and known(args) and known(call.named) and not (name.endswith("with") and open_(owner)):
        try:
            return getattr(owner, name)(*args, **call.named)
        except (TypeError, ValueError):
            return call.unknown()
    if name == "format" and known(args) and known(call.named) and len(owner) < 2000:
        return (
            owner.replace("{}", "%s", len(args)) % tuple(args)
            if owner.count("{}") == len(args) and "%" not in owner
            else call.unknown()
        )
    return call.unknown()


def _of_mapping(owner: dict[Any, Any], name: str, call: Call, doubtful: bool) -> Any:
    key, other = call.get(0, "key"), call.get(1, "default")
    if name in ("get", "pop", "setdefault") and is_plain(key):
        found = call.unknown() if f"?{key}" in owner or ("**" in owner and key not in owner) else owner.get(key, other)
        if name == "pop" and not doubtful:
            owner.pop(key, None)
        return found
    if name == "update" and key is not None and not isinstance(key, dict):
        overlay(owner, call.unknown())
        return None
    if name == "update" and not doubtful:
        owner |= {**(key or {}), **call.named}
        return None
    if name == "update":
        more = {**(key or {}), **call.named}
        text = f"depends on {call.run.doubts[-1]}" if call.run.doubts else "made in a loop"
        owner |= {each: joined([owner.get(each), value], text, call.place) for each, value in more.items()}
        return None
    if name == "copy":
        return dict(owner)
    views = {"items": list(owner.items()), "keys": list(owner), "values": list(owner.values())}
    return (
        [tuple(each) if isinstance(each, tuple) else each for each in views[name]] if name in views else call.unknown()
    )
