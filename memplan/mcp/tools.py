"""The tools: what each takes, and what it answers as JSON. No protocol, no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan.errors import UsageError, did_you_mean
from memplan.tables.texts import parts_of, rows_of, told_in

if TYPE_CHECKING:
    from memplan.report import Report
    from memplan.spec.reading import JobInput

Arguments = Mapping[str, Any]
MOST_REJECTED = 5
MOST_PLANS = 20


class Tool(NamedTuple):
    """One tool."""

    name: str
    description: str
    properties: dict[str, Any]
    required: tuple[str, ...]
    work: Callable[[Arguments], dict[str, Any]]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": self.properties,
            "required": list(self.required),
            "additionalProperties": False,
        }


def call(name: str, arguments: Arguments) -> dict[str, Any]:
    """What a tool answers. Raises MemplanError for whatever is wrong with the arguments, or with the job."""
    tool = TOOLS.get(name)
    if tool is None:
        raise UsageError(f"no such tool: {name[:80]!r}", did_you_mean(name, TOOLS))
    for key, value in arguments.items():
        if key not in tool.properties:
            raise UsageError(f"{name} has no argument {key[:80]!r}", did_you_mean(key, tool.properties))
        _check_kind(key, value, tool.properties[key])
    missing = [key for key in tool.required if key not in arguments]
    if missing:
        raise UsageError(
            f"{name}: {missing[0]} is missing", f"give {missing[0]}: {tool.properties[missing[0]]['type']}"
        )
    return tool.work(arguments)


KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "string": (str,),
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
}


def _check_kind(key: str, value: Any, schema: Mapping[str, Any]) -> None:
    kind = schema["type"]
    fits = isinstance(value, KINDS[kind]) and (kind != "integer" or not isinstance(value, bool))
    if fits and kind == "array":
        fits = all(isinstance(item, str) for item in value)
    if not fits:
        of = " of strings" if kind == "array" else ""
        raise UsageError(f"{key} is no {kind}{of}: {str(value)[:80]!r}", f"give {key} as {kind}{of}")


def given_of(arguments: Arguments) -> JobInput:
    """The job of ``file`` under the keys of ``job``. Raises UsageError where neither is there."""
    from memplan.asked import given_job

    return given_job(arguments.get("job") or {}, arguments.get("file"), arguments.get("beside") or ())


def usual_of(arguments: Arguments) -> JobInput:
    """The same, run by the trainer that the command line would take."""
    from memplan.asked import with_usual_trainer

    return with_usual_trainer(given_of(arguments))


def _report(arguments: Arguments) -> Report:
    from memplan.asked import report_of

    return report_of(usual_of(arguments))


def _estimate(arguments: Arguments) -> dict[str, Any]:
    from memplan.render.summary import summary

    report = _report(arguments)
    return report.to_dict() if arguments.get("full") else {**summary(report), "assumptions": list(report.assumptions)}


def _check(arguments: Arguments) -> dict[str, Any]:
    from memplan.frameworks.checks.checking import worst
    from memplan.frameworks.checks.many import check_many

    options, beside = dict(arguments.get("job") or {}), arguments.get("beside") or ()
    found = check_many(arguments["files"], options, beside)
    rows = [each.to_dict() for each in found]
    if not arguments.get("full"):
        rows = [
            {key: value for key, value in row.items() if key != "job" and value not in ("", (), [])} for row in rows
        ]
    return {"exit_code": worst(found), "files": rows}


def _plan(arguments: Arguments) -> dict[str, Any]:
    from memplan.planner import plan
    from memplan.render.plan_view import plan_rows

    top = arguments.get("top", 3)
    if not 1 <= top <= MOST_PLANS:
        raise UsageError(f"top: {top} is no number of plans", f"write a number from 1 to {MOST_PLANS}")
    ask = [arguments["maximize"]] if arguments.get("maximize") else []
    found = plan(usual_of(arguments), arguments.get("allow") or (), top, False, ask)
    data = found.to_dict()
    jobs = {each["name"]: each["job"] for each in data["plans"]}
    rows = [row for row in plan_rows(found) if row["plan"] in jobs]
    return {
        "fits": found.fits,
        "plans": [{**row, "job": jobs[str(row["plan"])]} for row in rows],
        "rejected": data["rejected"][:MOST_REJECTED],
        **{
            key: data[key]
            for key in ("answers", "needed", "instead", "considered", "priced", "assumptions", "warnings")
        },
    }


def _diagnose(arguments: Arguments) -> dict[str, Any]:
    from memplan.asked import diagnosis_of

    of_a_job = arguments.get("job") or arguments.get("file")
    return diagnosis_of(arguments["text"], given_of(arguments) if of_a_job else None).to_dict()


def _explain(arguments: Arguments) -> dict[str, Any]:
    from memplan.render.ledger_view import term_data
    from memplan.tables.terms import find_term

    of_a_job = arguments.get("job") or arguments.get("file")
    return term_data(find_term(arguments["term"]), _report(arguments) if of_a_job else None)


WORK = {"estimate": _estimate, "check": _check, "plan": _plan, "diagnose": _diagnose, "explain": _explain}
SHARED = "a job"
"""Arguments of several tools; the schema of ``estimate`` names every key of ``job`` (``with_job``)."""


def _properties(part: str) -> dict[str, Any]:
    """The schemas of the arguments below a heading of the text beside this module."""
    shared = {} if part == SHARED else _properties(SHARED)
    found = dict[str, Any]()
    for names, (kind, what) in told_in(_PARTS[part]).items():
        if kind:
            items = {"items": {"type": "string"}} if kind == "array" else {}
            found[names.removesuffix("!")] = {"type": kind, **items, "description": what}
        else:
            found |= {name: shared[name] for name in names.split()}
    return found


def _tool(name: str) -> Tool:
    needed = (key.removesuffix("!") for key in told_in(_PARTS[name]) if key.endswith("!"))
    return Tool(name, _DOES[name], _properties(name), tuple(needed), WORK[name])


_PARTS = parts_of(__file__)
_DOES = rows_of(_PARTS["tools"])
TOOLS = {name: _tool(name) for name in _DOES}


def with_job(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a job (``memplan schema job``) in a form that a model's context has room for: keys with their
    kinds, choices and meaning; of what is inside another, the names."""
    inner = {name: list(part.get("properties", {})) for name, part in schema["$defs"].items()}
    kept = {
        key: _short(part, inner)
        for key, part in schema["properties"].items()
        if not str(part.get("description", "")).startswith(("The same as", "Accepted, and without effect"))
    }
    return {"type": "object", "description": "Keys of a job; they go over those of file.", "properties": kept}


def _short(part: Mapping[str, Any], inner: Mapping[str, list[str]]) -> dict[str, Any]:
    kinds = [kind for kind in part.get("anyOf", [part]) if kind.get("type") != "null"]
    names = [name for kind in kinds if "$ref" in kind for name in inner[kind["$ref"].rpartition("/")[2]]]
    text = str(part.get("description", ""))
    head, _, some = text.rstrip(".").partition(": ")
    text = f"{head}." if some and set(some.split(", ")) <= {*names, "…"} else text  # all are named
    default = part.get("default")
    text += f" Keys: {', '.join(names)}." if names and not isinstance(default, dict) else ""  # a default names them too
    found: dict[str, Any] = {"description": text} if text else {}
    choices = [choice for kind in kinds for choice in kind.get("enum", ())]
    typed = ("object" if "$ref" in kind else kind.get("type") for kind in kinds)
    types = list(dict.fromkeys(kind for kind in typed if kind))
    if choices and "string" in types:
        found["examples"] = choices
    if types:
        found["type"] = types[0] if len(types) == 1 else types
    if default not in (None, [], ()):
        found["default"] = default
    return found
