"""A job with widgets in a notebook: fields of the form that ``memplan web`` has, and the answer as they change.

    from memplan.widgets import widgets
    widgets({"model": "llama-3.1-8b", "method": "dpo", "gpu": "t4"})

Needs ipywidgets, which notebooks most often have."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from memplan.errors import MemplanError, UsageError
from memplan.web.fields import form


def widgets(job: Mapping[str, Any] | None = None) -> Any:
    """The form, filled with a job, above its answer. Keys that the form has no field for stay as they are.

    Raises UsageError where ipywidgets is missing."""
    try:
        import ipywidgets as ipw
    except ImportError:
        raise UsageError("ipywidgets is not installed", "pip install ipywidgets") from None

    job, answer, controls = dict(job or {}), ipw.HTML(), {}
    groups = form()["groups"]
    for field in (field for group in groups for field in group["fields"]):
        controls[field["key"]] = _control(ipw, field, _at(job, field["key"]))

    def draw(_: object = None) -> None:
        answer.value = _answer(_job(job, {key: each.value for key, each in controls.items()}))

    for each in controls.values():
        each.observe(draw, "value")
    boxes = [ipw.VBox([controls[field["key"]] for field in group["fields"]]) for group in groups]
    sections = ipw.Accordion(boxes, titles=[group["title"] for group in groups], selected_index=0)
    draw()
    return ipw.VBox([sections, answer])


def _control(ipw: Any, field: Mapping[str, Any], value: Any) -> Any:
    """The widget of a field. A text is taken when it is left, not at each key."""
    looks = {"description": field["label"], "style": {"description_width": "10em"}}
    if field["kind"] == "flag":
        return ipw.Checkbox(value=value is True, **looks)
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if field["kind"] == "choice":
        known = [(shown, name) for name, shown in field["choices"]]
        own = [] if text in ("", *(name for _, name in known)) else [(text, text)]
        return ipw.Dropdown(options=[("not said", ""), *known, *own], value=text, **looks)
    return ipw.Text(value=text, placeholder=field["first"], continuous_update=False, **looks)


def _at(job: Mapping[str, Any], key: str) -> Any:
    """A value of a job; ``lora.r`` is ``r`` of ``lora``."""
    found: Any = job
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _job(job: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The job with what the widgets hold; what they leave empty is not said."""
    found: dict[str, Any] = json.loads(json.dumps(job))
    for key, value in values.items():
        *path, last = key.split(".")
        inner, beside = found, value in ("", False)
        for part in path:
            if beside and not isinstance(inner.get(part), dict):
                break
            inner = inner.setdefault(part, {}) if isinstance(inner.get(part, {}), dict) else inner
        else:
            inner.pop(last, None)
            if not beside:
                inner[last] = _valued(value)
    return found


def _valued(value: Any) -> Any:
    """A number as a number; a name as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _answer(job: Mapping[str, Any]) -> str:
    """The page of the estimate, or why there is none."""
    from memplan.api import estimate

    if not job.get("model"):
        return "Name a model."
    try:
        return str(estimate(job)._repr_html_())
    except MemplanError as error:
        return f"<b>error:</b> {escape(error.message)}<br><b>hint:</b> {escape(error.hint)}"
