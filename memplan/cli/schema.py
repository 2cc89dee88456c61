"""memplan schema: the JSON Schema of what goes in and of what comes out."""

from collections.abc import Mapping
from typing import Any

from memplan.cli import output
from memplan.cli.output import Result
from memplan.errors import EXIT_DONE, UsageError, did_you_mean
from memplan.render.blocks import Prose

HELP = """The JSON Schema of a job file, of estimate --json (report), compare --json, plan --json or check --json.

Example: memplan schema report
"""
KINDS = ("job", "report", "compare", "plan", "check", "timeline")
"""``timeline`` is what --timeline adds to a report."""


def schema(values: Mapping[str, Any]) -> int:
    """Write one schema: as JSON, unless YAML is asked for."""
    from memplan.cli.schemas import schema_of

    what = values.get("what")
    if what is None:
        raise UsageError("schema of what?", "one of " + ", ".join(KINDS))
    what = {"estimate": "report"}.get(what.lower(), what.lower())
    if what not in KINDS:
        raise UsageError(f"no schema of {what!r}", did_you_mean(what, KINDS))
    to = output.read_output(values, default="json")
    if to.form not in ("json", "yaml"):
        raise UsageError(f"a schema has no form {to.form!r}", "use --format json or yaml")
    found = schema_of(what)
    to.write(Result(lambda: found, lambda width: [Prose(str(found))]))
    return EXIT_DONE
