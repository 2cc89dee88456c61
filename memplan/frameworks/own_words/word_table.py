"""How frameworks name and write what a job's key says: words to ask a reader with (``own_words``), of no framework in
particular. What a reader makes of them decides."""

import json
from collections.abc import Mapping
from typing import Any

from memplan.frameworks.project.shipped import ZERO
from memplan.tables.texts import parts_of, rows_of

_PARTS = parts_of(__file__)

NAMES: Mapping[str, str] = rows_of(_PARTS["names"])
"""By key of the job, how names of keys begin or go on that speak of it, the plainest first."""


def _zero(stage: int) -> dict[str, Any]:
    """A config of DeepSpeed's whose sizes transformers fills in; without those it refuses to start."""
    auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    return {"zero_optimization": {"stage": stage}, "bf16": {"enabled": "auto"}, **auto}


def _said(part: str) -> dict[tuple[str, str], tuple[Any, ...]]:
    """By a job's key and its value, what files hold."""
    rows = ((name.partition(" "), text) for name, text in rows_of(_PARTS[part]).items())
    return {(key, value): tuple(json.loads(text)) for (key, _, value), text in rows}


VALUES: Mapping[tuple[str, str], tuple[Any, ...]] = {
    **_said("written"),
    **{("sharding", f"zero{n}"): (n, f"zero{n}", f"zero_{n}", _zero(n)) for n in range(1, 4)},
}
"""How frameworks write a value of the job where they do not write it as memplan does."""

TOGETHER: Mapping[tuple[str, str], tuple[Mapping[str, Any], ...]] = _said("together")
"""Keys that say a value of the job only together, or before others, the first one of those that the reader looks for; a
mapping's value is empty here. What a file's list has stays; ``{name}`` is the last part of the name that it has."""


def values_of(key: str, value: Any, title: str) -> tuple[Any, ...]:
    """How a file of a framework may write a value of the job's key, the plainest first."""
    if isinstance(value, Mapping):
        plain = (item for item in value.values() if isinstance(item, (int, float, str, bool)))
        own = tuple(word for item in plain for word in VALUES.get((key, str(item)), (item,)))
        if "sleep" in value:
            return (value["sleep"] != "none", *map(int, filter(str.isdecimal, own)), *own)
        return (True, "lora", *own) if key == "lora" else (*own, True, False)
    if isinstance(value, (list, tuple)):
        return (*_shipped(title, offloads=True), True, "cpu", {"device": "cpu"})
    if key == "sharding" and str(value).startswith("zero"):
        return (*_shipped(title, offloads=False), *VALUES.get((key, str(value)), ()))
    return VALUES.get((key, str(value)), (value, str(value)) if not isinstance(value, str) else (value, True))


def offloading(sharding: str, title: str) -> tuple[Any, ...]:
    """What says of a sharding that states wait on the host too, or can say it."""
    sections = (word for word in VALUES.get(("sharding", sharding), ()) if isinstance(word, Mapping))
    return (*_shipped(title, offloads=True), *sections)


def _shipped(title: str, *, offloads: bool) -> list[str]:
    """DeepSpeed configs that come with a framework."""
    return [name for name, (whose, _) in ZERO.items() if whose == title and ("offload" in name) is offloads]
