"""What the form asks for: keys of a job, their choices, and under which heading each stands."""

from typing import Any, NamedTuple

from memplan.gpus import gpu_names
from memplan.lang import LANGUAGES
from memplan.page.dressing import own_words
from memplan.presets import model_names
from memplan.spec.job import Job
from memplan.spec.lora import Lora
from memplan.spec.rollout import ENGINES, Rollout
from memplan.tables.choices import CHOICES
from memplan.tables.methods import METHODS
from memplan.tables.texts import parts_of, rows_of


class Field(NamedTuple):
    """One key of a job."""

    key: str
    """As in a job; ``lora.r`` is ``r`` of ``lora``."""
    label: str
    kind: str = "number"
    """text, number, choice or flag."""
    first: str = ""
    """What stands in an empty field, where memplan has no default."""


GROUPS = {
    title: [Field(key, *said.split(" | ")) for key, said in rows_of(text).items()]
    for title, text in parts_of(__file__).items()
}
OF_ENGINES = {"rollout.engine": ENGINES}
TITLES = {"method": {name: f"{name}: {method.title}" for name, method in METHODS.items()}}


def form() -> dict[str, Any]:
    """The whole form as JSON."""
    groups = [
        {
            "title": title,
            "fields": [field._asdict() | {"choices": _choices(field), "first": _first(field)} for field in fields],
        }
        for title, fields in GROUPS.items()
    ]
    own = {name: own_words(name) for name in LANGUAGES}
    return {"groups": groups, "listed": {"model": model_names(), "gpu": gpu_names()}, "languages": own}


INNER: dict[str, Any] = {"": Job, "lora": Lora, "rollout": Rollout}


def _first(field: Field) -> str:
    """What stands in an empty field: an example, or the job's default."""
    owner, _, key = field.key.rpartition(".")
    known = INNER[owner].model_fields if owner in INNER else {}
    default = known[key].default if key in known else None
    return field.first or (str(default) if isinstance(default, (int, float, str)) else "")


def _choices(field: Field) -> list[list[str]]:
    """(value, what is shown) of each."""
    names = (OF_ENGINES | CHOICES).get(field.key, ()) if field.kind == "choice" else ()
    return [[name, TITLES.get(field.key, {}).get(name, name)] for name in names]
