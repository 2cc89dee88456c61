"""memplan check: one line a file, and an exit code for hooks, prologues and CI."""

import json
from collections.abc import Mapping
from typing import Any

from memplan.cli import options
from memplan.cli.edge import one_line, warn
from memplan.cli.parameters import Parameter, argument, option
from memplan.errors import UsageError, did_you_mean
from memplan.lang import said

HELP = """Whether the jobs of training configs fit: one line a file; exit code 0 if all fit, 1 if one does not,
2 if one cannot be read or is unclear.

FILE is a config of a framework (TRL, transformers, …), a script, or a memplan job. Files that say how they run go
with --with. Example: memplan check train.yaml --with zero3.yaml --gpu h100-80gb --num-gpus 8

With --log FILE what vLLM, SGLang or a trainer printed of memory stands beside the estimate, term by term; of the job
named, or of the one that the log tells of. Example: memplan check --log vllm.log --gpu h100-80gb
"""
FORMS = ("text", "github", "json")


def parameters() -> list[Parameter]:
    """FILEs, the options of a job, and the form of the answer."""
    rest = [parameter for parameter in options.parameters() if parameter.name != "target"]
    return [
        argument("files", "FILE …", list[str]),
        *rest,
        option("json", bool, "--json"),
        option("form", str, "--format", metavar="FORM"),
        option("log", str, "--log", metavar="FILE"),
    ]


def check(values: Mapping[str, Any]) -> int:
    """Read, estimate and judge each file; write a line for each."""
    from memplan.cli.output import print_text
    from memplan.frameworks.checking import check_all, github_lines, worst

    files, form = values.get("files") or [], (values.get("form") or "text").lower()
    if form not in FORMS:
        raise UsageError(f"--format: unknown form {form!r}", did_you_mean(form, FORMS))
    form = "json" if values.get("json") else form
    if values.get("log") is not None:
        from memplan.cli.check_log import check_log

        return check_log(values, form)
    if not files:
        raise UsageError("check which files?", "name one or more training configs")
    model, keys = options.collect(values)
    keys |= {"model": model} if model is not None else {}
    beside, framework = values.get("with_") or (), values.get("framework") or ""
    found = [each for path in files for each in check_all(path, keys, beside, framework)]
    if form == "json":
        print_text(json.dumps([each.to_dict() for each in found], indent=2) + "\n")
    elif form == "github":
        print_text("".join(f"{line}\n" for line in github_lines(found)))
    else:
        print_text("".join(_text(each) for each in found))
        for text in dict.fromkeys(text for each in found for text in each.warnings):
            warn(text)
    return worst(found)


def _text(each: Any) -> str:
    """The answer, and below it what it assumes."""
    at_line = each.fits in ("error", "unclear") and each.line > 1
    place = each.name or (f"{each.file}:{each.line}" if at_line else each.file)
    word = "error: " if each.fits == "error" else "skipped: " if each.fits == "skipped" else ""
    text = said(f"{word}{each.text}{f'; {each.hint}' if each.hint else ''}")
    answer = one_line(f"{place}: {text}")
    assumed = one_line(said(f"assumed: {', '.join(each.assumed)}"))
    return f"{answer}\n  {assumed}\n" if each.assumed else f"{answer}\n"
