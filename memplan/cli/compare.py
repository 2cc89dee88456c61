"""memplan compare: one job under several strategies."""

import inspect
from collections.abc import Mapping
from typing import Any

from memplan.cli import options, output
from memplan.cli.edge import warn
from memplan.cli.output import Result
from memplan.cli.parameters import option
from memplan.errors import EXIT_DONE
from memplan.render.progress import spinner

HELP = """The same job under several strategies, ranked by memory, with a recommendation.

Example: memplan compare llama-3.1-8b --method simpo --num-gpus 4 --gpu a100-80gb
"""


def parameters() -> list[inspect.Parameter]:
    """MODEL, the options of a job, a file of strategies, and where the result goes."""
    strategies = option("strategies", str, "--strategies", metavar="FILE")
    return [*options.parameters(), strategies, *output.parameters()]


def compare(values: Mapping[str, Any]) -> int:
    """Price every strategy and write the ranking."""
    from memplan.api import compare as compare_job
    from memplan.render.compare_view import compare_blocks, compare_rows

    to = output.read_output(values)
    with spinner("reading the model's config"):
        comparison = compare_job(options.read_given(values), values.get("strategies"))
    to.write(
        Result(comparison.to_dict, lambda width: compare_blocks(comparison, width), lambda: compare_rows(comparison))
    )
    for text in dict.fromkeys(text for row in comparison.rows for text in row.report.warnings):
        warn(text)
    return EXIT_DONE
