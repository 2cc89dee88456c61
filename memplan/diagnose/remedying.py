"""Changes for a job that died: those with which it fits, where the estimate says that it does not; where it says that
it fits, those that free what the run must have held beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memplan.api import estimate
from memplan.diagnose.causes import others
from memplan.diagnose.messages import Message
from memplan.report import Remedy, Report
from memplan.spec.reading import JobInput, with_changes
from memplan.units import MiB, format_bytes

OF_THE_STEP = ("forward", "loss", "backward", "reduce", "optimizer", "start", "load", "unknown")
"""Moments that a job's own settings decide; elsewhere the change is one of saving, of evaluation, of the engine."""
LARGEST_MARGIN = 0.9


def job_remedies(given: JobInput, report: Report, message: Message, phase: str) -> tuple[Sequence[Remedy], str]:
    """The changes, and in words what they are held against where that is more than the estimate."""
    verdict = report.verdict
    if verdict is None or verdict.fits != "yes":
        return report.remedies, ""
    elsewhere = others(message) or 0
    if message.place != "card" or phase not in OF_THE_STEP or elsewhere > max(256 * MiB, verdict.headroom_bytes):
        return (), ""
    least = message.allocated.bytes + message.requested.low if message.allocated and message.requested else 0
    beyond = max(0, verdict.headroom_bytes, least - report.per_gpu.allocated_range.high)
    margin = min(LARGEST_MARGIN, given.job.margin + beyond / verdict.usable_bytes)
    again = estimate(with_changes(given, {"margin": margin}))
    words = (
        f"The estimate fits, and the run did not: it held {format_bytes(beyond)} more at least, "
        "which these changes free beside the margin."
    )
    return again.remedies, words if again.remedies else ""


def as_said(report: Report, longer: dict[str, int], needed: int) -> tuple[Remedy, ...]:
    """The batch that the job says, where the size tells of a longer one and the job's own fits. ``needed``: bytes of
    the device with the longer one."""
    if report.verdict is None or report.verdict.fits != "yes":
        return ()
    changes = {key: report.job[key] for key in longer}
    gpu = report.per_gpu
    length = changes.get("sequence_length")
    title = f"samples cut at the job's {length:,} tokens" if length else f"batch size {changes['batch_size']}, as told"
    cost = "data" if length else "nothing"
    return (
        Remedy(
            title, changes, cost, needed - gpu.device_bytes.expected, gpu.device_bytes.expected, gpu.allocated_bytes,
            report.verdict.fits, host_bytes_per_node=report.host.bytes_per_node,
        ),
    )  # fmt: skip


def first_of(own: Sequence[Remedy], more: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Both lists as one, no set of changes twice."""
    return (*own, *(replace(each) for each in more if all(each.changes != other.changes for other in own)))
