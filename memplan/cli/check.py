"""memplan check: one line a file, and an exit code for hooks, prologues and CI."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from memplan.cli import options
from memplan.cli.edge import one_line, warn
from memplan.cli.output import check_place, page_place, print_text, write_report
from memplan.errors import UsageError, did_you_mean, printable_json
from memplan.lang import said

if TYPE_CHECKING:
    from memplan.frameworks.checks.checking import Checked

HELP = """Whether the jobs of training configs fit: one line a file; exit code 0 if all fit, 1 if one does not,
2 if one cannot be read or is unclear.

FILE is a config of a framework (TRL, transformers, …), a script, a memplan job, or a folder of them; --with names files
that say how they run. Example: memplan check train.yaml --with zero3.yaml --gpu h100-80gb

With --log FILE what vLLM, SGLang or a trainer printed of memory stands beside the estimate, term by term, of the job
named or of the one that the log tells of. Example: memplan check --log vllm.log --gpu h100-80gb
"""
FORMS = ("text", "github", "json", "markdown", "junit", "sarif", "html")
ENDINGS = {".json": "json", ".md": "markdown", ".xml": "junit", ".sarif": "sarif", ".html": "html"}
"""What the name of a file to write says."""


def check(values: Mapping[str, Any]) -> int:
    """Read, estimate and judge each file; write a line for each, and the reports that are asked for."""
    from memplan.frameworks.checks.checking import worst
    from memplan.frameworks.checks.many import check_many, cores
    from memplan.render.progress import Bar

    files, form = values.get("files") or [], (values.get("form") or "text").lower()
    form = {"md": "markdown"}.get(form, form)
    if form not in FORMS:
        raise UsageError(f"--format: unknown form {form!r}", did_you_mean(form, FORMS))
    form = "json" if values.get("json") else form
    if values.get("log") is not None:
        from memplan.cli.check_log import check_log

        if values.get("html") is not None or form == "html":
            raise UsageError("--log has no page", "leave --html out, or name the config in place of the log")
        return check_log(values, form)
    if not files:
        raise UsageError("check which files?", "name one or more training configs, or their folder")
    reports = {path: _form_of(path) for path in values.get("reports") or ()}
    for path in reports:
        check_place(path, bool(values.get("force")))
    page = page_place({**values, "output": None})
    reports |= {page: "html"} if page is not None else {}
    model, keys = options.collect(values)
    keys |= {"model": model} if model is not None else {}
    beside, framework, others = values.get("with_") or (), values.get("framework") or "", not values.get("skip_others")
    quiet = form == "text" and bool(values.get("quiet"))
    work = partial(check_many, files, keys, beside, framework, others, not quiet, cores())
    with Bar(threaded=False) as bar:  # processes are forked meanwhile
        found = work(True if values.get("play") else None, tell=bar)
    for path, its_form in reports.items():
        write_report(path, written(found, its_form), bool(values.get("force")))
    text = written([each for each in found if each.exit_code] if quiet else found, form, quiet)
    if form == "text" and sys.stdout is not None and sys.stdout.isatty():
        from memplan.render.text import fitted, screen_width

        text = fitted(text, screen_width())
    print_text(text)
    if form == "text" and not quiet:
        for text in dict.fromkeys(text for each in found for text in each.warnings):
            warn(text)
    return worst(found)


def _form_of(path: str) -> str:
    """The form that a file's name says."""
    form = ENDINGS.get(os.path.splitext(path)[1].lower())
    if form is None:
        raise UsageError(f"--output {path}: its ending says no form", "end it in " + ", ".join(ENDINGS))
    return form


def written(found: Sequence["Checked"], form: str, quiet: bool = False) -> str:
    """The answers in one of the forms."""
    if form == "text":
        return "".join(_text(each, quiet) for each in found)
    if form == "json":
        from memplan.render.data import to_json

        return printable_json(to_json([each.to_dict() for each in found]))
    if form == "html":
        from memplan.page import dressed, page

        return page("check", dressed([each.to_dict() for each in found]), written(found, "text"))
    from memplan.render import check_forms

    return check_forms.FORMS[form](found)


def _text(each: "Checked", quiet: bool) -> str:
    """The answer, and below it what it assumes."""
    at_line = each.fits in ("error", "unclear") and each.line > 1
    place = each.name or (f"{each.file}:{each.line}" if at_line else each.file)
    word = "error: " if each.fits == "error" else "skipped: " if each.fits == "skipped" else ""
    answer = one_line(f"{place}: {said(f'{word}{each.text}')}", said(each.hint))
    below = [said(f"assumed: {', '.join(map(said, each.assumed))}")] if each.assumed else []
    below += [said(f"fits with {each.remedy}:"), *(f"  {line}" for line in each.write)] if each.remedy else []
    return "".join(f"{line}\n" for line in (answer, *(() if quiet else (_indented(text) for text in below))))


def _indented(text: str) -> str:
    """A line below an answer."""
    return f"  {' ' * (len(text) - len(text.lstrip()))}{one_line(text.lstrip())}"
