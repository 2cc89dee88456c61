"""memplan trace: one job, run on fake tensors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options, output
from memplan.cli.output import Result
from memplan.errors import EXIT_DONE
from memplan.render.progress import Progress
from memplan.spec.reading import JobInput

if TYPE_CHECKING:
    from memplan.report import Report
    from memplan.trace.result import Trace
    from memplan.trace.view import TermRow

HELP = """What two real training steps allocate, without a GPU: the model of transformers itself, on fake tensors.

It needs memplan[trace]: torch, transformers, peft. --format svg draws the steps. --snapshot FILE reads what a real card
wrote (torch.cuda.memory._dump_snapshot) instead, with or without MODEL; nothing in it is run, and no package is needed.

Example: memplan trace llama-3.2-1b --method dpo --compare
"""


def trace(values: Mapping[str, Any]) -> int:
    """Read, trace, write."""
    if values.get("snapshot_"):
        return _snapshot(values)
    from memplan import trace as tracing

    to = output.read_output(values, draws=True, shows=True)
    given = options.read_given(values)
    with Progress("tracing") as progress:
        found = tracing.trace(given, progress.tell)
    compared = _compared(found, given) if values.get("compare") else []
    to.write(_result(found, compared))
    return EXIT_DONE


def _snapshot(values: Mapping[str, Any]) -> int:
    """A real run's snapshot, beside the estimate where a job is given."""
    from memplan.render.snapshot_svg import snapshot_svg
    from memplan.render.snapshot_view import snapshot_blocks
    from memplan.snapshot.explaining import explain
    from memplan.snapshot.reading import read_snapshot

    to = output.read_output(values, draws=True, shows=True)
    job = any(values.get(name) for name in ("target", "total_params", "with_"))
    report = _estimated(values) if job else None
    with Progress("replaying"):
        found = explain(read_snapshot(str(values["snapshot_"])), report)
    to.write(
        Result(
            found.to_dict,
            lambda width: list(snapshot_blocks(found)),
            lambda: _leftovers(found.to_dict()),
            lambda: snapshot_svg(found),
            kind="trace",
        )
    )
    return EXIT_DONE


def _estimated(values: Mapping[str, Any]) -> "Report":
    from memplan.api import estimate

    return estimate(options.read_given(values))


def _leftovers(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table: what only one side has."""
    return [{"side": side, **row} for side in ("unaccounted", "missing") for row in found.get(side, ())]


def _compared(found: "Trace", given: "JobInput") -> "list[TermRow]":
    from memplan.resolve import resolve
    from memplan.trace.view import compare

    return compare(found, resolve(given))


def _result(found: "Trace", compared: "list[TermRow]") -> Result:
    from memplan.trace.result import timeline_svg
    from memplan.trace.view import trace_blocks

    rows = [row.to_dict() for row in compared]

    def data() -> dict[str, Any]:
        return found.to_dict() | ({"compared": rows} if rows else {})

    def lines() -> list[dict[str, Any]]:
        return rows or [phase for phase in found.to_dict()["phases"] if phase.pop("by_category")]

    return Result(data, lambda width: trace_blocks(found, compared), lines, lambda: timeline_svg(found), "trace")
