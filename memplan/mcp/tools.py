"""The tools: what each takes, and what it answers as JSON. No protocol, no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from memplan.report import Report
    from memplan.spec.reading import JobInput

Arguments = Mapping[str, Any]
MOST_REJECTED = 5
MOST_PLANS = 20

JOB: dict[str, Any] = {"type": "object", "description": "Keys of a job, as in estimate; they go over those of file."}
"""The schema of ``job``; that of ``estimate`` names every key (``with_job``)."""
FILE: dict[str, Any] = {
    "type": "string",
    "description": "A training config (TRL, transformers, Axolotl, LLaMA-Factory, verl, …), a script or a memplan job.",
}
BESIDE: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Files that say more of the same job: an accelerate config, a DeepSpeed JSON.",
}
OF_A_JOB = {"job": JOB, "file": FILE, "beside": BESIDE}


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


FULL = {"type": "boolean", "description": "The whole report, with every row of the ledger (some 100 kB)."}
LISTED = {"type": "array", "items": {"type": "string"}}
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "estimate",
            "What a training job will use on each GPU: the verdict on its card, peak, meters, phases, and the changes "
            "that make it fit. Sizes are bytes.",
            {**OF_A_JOB, "full": FULL},
            (),
            _estimate,
        ),
        Tool(
            "check",
            "Whether the jobs of training configs fit: an answer for each file (fits: yes, tight, no, unclear, error, "
            "skipped), with what was assumed and what was not understood. job needs a gpu.",
            {
                "files": {**LISTED, "description": "Configs, scripts, or folders of configs."},
                "job": JOB,
                "beside": BESIDE,
                "full": {"type": "boolean", "description": "With each job as it was understood, in memplan's keys."},
            },
            ("files",),
            _check,
        ),
        Tool(
            "plan",
            "The fastest ways to run a job that fit, on the GPUs that it names. What is given stays, all else that "
            "does not change the training is searched. job of each plan holds all its keys.",
            {
                **OF_A_JOB,
                "allow": {**LISTED, "description": "May change the training: lora, qlora, 8bit, offload, shorter."},
                "maximize": {"type": "string", "description": "batch_size, sequence_length or model."},
                "top": {"type": "integer", "description": f"How many plans, at most {MOST_PLANS}; 3 by default."},
            },
            (),
            _plan,
        ),
        Tool(
            "diagnose",
            "What an out-of-memory error says: what asked for how much, in which phase, which tensor it was, and what "
            "to change. With the job behind it the changes are estimated.",
            {"text": {"type": "string", "description": "The error, traceback or log itself."}, **OF_A_JOB},
            ("text",),
            _diagnose,
        ),
        Tool(
            "explain",
            "What a term of a report is, such as optimizer-states or logits: formula, lifetime, what divides it, "
            "source. With a job, its rows.",
            {"term": {"type": "string", "description": "The term."}, **OF_A_JOB},
            ("term",),
            _explain,
        ),
    )
}


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
