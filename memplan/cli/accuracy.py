"""memplan accuracy: how far estimates are from truth."""

from collections.abc import Mapping
from typing import Any

from memplan.cli import output
from memplan.cli.edge import warn
from memplan.cli.output import Result
from memplan.errors import EXIT_DOES_NOT_FIT, EXIT_DONE

HELP = """How far estimates are from truth: measured training steps, by family, method, sharding, meter and phase.

Example: memplan accuracy --check
"""


def accuracy(values: Mapping[str, Any]) -> int:
    """Estimate every row, write the tables, and say what is out of bounds."""
    from memplan.accuracy import accuracy as hold_against
    from memplan.render.accuracy_svg import accuracy_svg
    from memplan.render.accuracy_view import accuracy_blocks, accuracy_rows

    to = output.read_output(values, draws=True)
    found = hold_against(values.get("paths") or ())
    missed = found.missed_bounds() if values.get("check") else []

    def drawing() -> str:
        return accuracy_svg(found)

    to.write(Result(found.to_dict, lambda width: accuracy_blocks(found), lambda: accuracy_rows(found), drawing))
    for line in missed:
        warn(line)
    return EXIT_DOES_NOT_FIT if missed else EXIT_DONE
