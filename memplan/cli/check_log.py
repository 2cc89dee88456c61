"""memplan check --log: what an engine or a trainer printed of memory, beside the estimate of its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options
from memplan.cli.edge import warn
from memplan.cli.output import print_text
from memplan.errors import EXIT_DOES_NOT_FIT, EXIT_DONE, MemplanError, UsageError, printable_json
from memplan.spec.reading import JobInput, read_job

if TYPE_CHECKING:
    from memplan.logs.reading import Log
    from memplan.report import Report


def check_log(values: Mapping[str, Any], form: str) -> int:
    """Read, estimate, compare, write; the exit code is 1 where the log shows that memory was not enough."""
    from memplan.logs.beside import compared
    from memplan.logs.reading import read_log
    from memplan.render import data, text
    from memplan.render.log_view import log_blocks

    if form == "github":
        raise UsageError("--log has no form github", "use --format text or json")
    log = read_log(str(values["log"]))
    report, warnings = _report(log, values)
    found = compared(log, report, warnings)
    if form == "json":
        print_text(printable_json(data.to_json(found.to_dict())), False)
    else:
        width = text.screen_width()
        print_text(text.screen_text(list(log_blocks(found)), width))
        for each in found.warnings:
            warn(each)
    return EXIT_DOES_NOT_FIT if found.died else EXIT_DONE


def _report(log: Log, values: Mapping[str, Any]) -> tuple[Report | None, tuple[str, ...]]:
    """The report of the job that is named, or of the one that the log tells of; None, and why, where there is none."""
    from memplan.api import estimate

    files = values.get("files") or []
    if len(files) > 1:
        raise UsageError("--log stands beside one job", "name one MODEL, job or config")
    if files:
        return estimate(options.read_given({**values, "target": files[0]})), ()
    try:
        return estimate(of_log(log, values)), ()
    except MemplanError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return None, (f"not estimated: {error.message}{hint}",)


def of_log(log: Log, values: Mapping[str, Any]) -> JobInput:
    """The job of the log under the options; a key of these wins."""
    from memplan.logs.jobs import job_keys

    model, keys = options.collect(values)
    keys |= {"model": model} if model is not None else {}
    return read_job(job_keys(log, keys))
