"""memplan show: the lists of what memplan knows."""

from collections.abc import Mapping
from typing import Any

from memplan.cli import output
from memplan.cli.output import Result
from memplan.errors import EXIT_DONE, UsageError, did_you_mean
from memplan.render.catalogue import LISTS, list_table

HELP = f"""List what memplan knows: {", ".join(LISTS)}.

Example: memplan show gpus
"""


def show(values: Mapping[str, Any]) -> int:
    """Write one list."""
    what = values.get("what")
    if what is None:
        raise UsageError("show what?", "one of " + ", ".join(LISTS))
    name = what.lower() if what.lower() in LISTS else what.lower() + "s"
    if name not in LISTS:
        hint = "memplan show gpus" if what.lower() in ("card", "cards") else did_you_mean(what, LISTS)
        raise UsageError(f"no list of {what!r}", hint)
    to = output.read_output(values)
    rows = LISTS[name]()
    to.write(Result(lambda: rows, lambda width: list_table(name, rows, width), lambda: rows))
    return EXIT_DONE
