"""The callback itself: estimate before the first step, judge, measure after some, compare."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from memplan import __version__
from memplan.api import estimate
from memplan.callback import meters
from memplan.callback.live import job_of
from memplan.errors import EXIT_DOES_NOT_FIT, MemplanError, UsageError, printable
from memplan.files import write_whole
from memplan.measurement import Measurement, estimated_of
from memplan.measurement import job_of as resolved_job
from memplan.report import Report
from memplan.units import format_bytes


class WillNotFit(MemplanError):
    """The run was stopped before its first step: the estimate is above what the card has."""

    exit_code = EXIT_DOES_NOT_FIT


def say(text: str) -> None:
    """Where the callback's lines go unless told otherwise: stderr, where progress bars are."""
    print(printable(text), file=sys.stderr, flush=True)


class MemoryCallback(TrainerCallback):
    """Estimates before the first step, measures after some, compares.

    sequence_length  tokens per sequence; from the arguments' max_length or max_seq_length when not given.
    gpu              card or size; the process's own CUDA device when not given, and no verdict without one.
    on_no            ``stop`` raises WillNotFit when the run will not fit, ``warn`` only says so.
    after_steps      optimizer steps until the measurement; 2 at least, since states exist from the second on.
    file             where the measurement goes, one file per run; None writes none.
    job              any further key of a memplan job (method, padded, completion_length, …): it goes before what is
                     read from the model and the arguments.

    A run that memplan cannot describe is trained all the same, and the reason is logged."""

    def __init__(
        self,
        sequence_length: int | None = None,
        gpu: str | None = None,
        on_no: str = "stop",
        after_steps: int = 3,
        file: str | Path | None = "memplan-measurement.json",
        log: Callable[[str], None] = say,
        **job: Any,
    ) -> None:
        if on_no not in ("stop", "warn"):
            raise UsageError(f"on_no: unknown value {on_no!r}", "known: stop, warn")
        if after_steps < 2:
            raise UsageError(f"after_steps: {after_steps} is before the steady state", "2 or more")
        self.given = {**job, **({"sequence_length": sequence_length} if sequence_length else {})}
        self.gpu, self.on_no, self.after_steps, self.log = gpu, on_no, after_steps, log
        self.file = Path(file) if file is not None else None
        self.report: Report | None = None
        self.measured: dict[str, int] | None = None
        self._steps = 0
        self._done = False

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Estimate, log, and judge. Raises WillNotFit on every rank alike."""
        self._steps, self._done, self.report = 0, False, None
        try:
            gpu = self.gpu or meters.local_card()
            given = {**self.given, "gpu": gpu} if gpu else self.given
            self.report = estimate(job_of(model, args, given))
        except MemplanError as error:
            self._say(state, f"memplan: no estimate: {error.message}" + (f" ({error.hint})" if error.hint else ""))
        else:
            for line in _summary(self.report):
                self._say(state, line)
            self._judge(state, self.report)
        meters.reset()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After some steps, measure."""
        self._steps += 1
        if self._steps == self.after_steps:
            self._finish(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A run of fewer steps is measured at its end."""
        self._finish(state)

    def _judge(self, state: Any, report: Report) -> None:
        if report.verdict is None or report.verdict.fits == "yes":
            return
        if report.verdict.fits == "tight":
            self._say(state, f"memplan: tight on {report.verdict.gpu}: an allocator's worse day may run out of memory")
            return
        missing = format_bytes(report.verdict.missing_bytes)
        message = f"this run will not fit {report.verdict.gpu}: short by {missing} at {report.per_gpu.peak_instant}"
        titles = [remedy.title for remedy in report.remedies[:3]]
        hint = "what would help: " + "; ".join(titles) if titles else "no single change that memplan knows makes it fit"
        if self.on_no == "stop":
            raise WillNotFit(f"{message} ({hint})", hint)
        self._say(state, f"memplan: {message} ({hint})")

    def _finish(self, state: Any) -> None:
        """Measure once; log and write from the first process."""
        if self._done:
            return
        self._done = True
        self.measured = meters.measure()
        if not state.is_world_process_zero:
            return
        for line in _comparison(self.report, self.measured):
            self.log(line)
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.measurement(), indent=1, sort_keys=True) + "\n"
            write_whole(str(self.file), text, force=True)

    def measurement(self) -> dict[str, Any]:
        """What the file holds, as of ``memplan measure``: resolved job, estimate, what was measured and on what."""
        return Measurement(
            job=resolved_job(self.report) if self.report else {},
            measured=dict(self.measured or {}),
            meter="torch.cuda.max_memory_allocated since training began",
            estimated=estimated_of(self.report) if self.report else {},
            out_of_memory=None,
            ranks=[],
            steps=self._steps,
            weights="the run's own",
            largest_batch_size=None,
            hardware=meters.hardware(),
            versions=meters.libraries(),
            source=f"memplan {__version__}, MemoryCallback in a training run",
        ).to_dict()

    def _say(self, state: Any, line: str) -> None:
        if state.is_world_process_zero:
            self.log(line)


def _summary(report: Report) -> list[str]:
    """Three lines: what, how much, whether it fits."""
    gpu, params = report.per_gpu, report.model.params
    lines = [
        f"memplan: {report.model.name}, {report.job['method']}, {params.trainable:,} of {params.total:,} parameters "
        f"trained: {format_bytes(gpu.allocated_bytes)} allocated at {gpu.peak_instant}, "
        f"{format_bytes(gpu.reserved_bytes.expected)} reserved, {format_bytes(gpu.device_bytes.expected)} on the device"
    ]
    if report.verdict:
        usable = format_bytes(report.verdict.usable_bytes)
        lines.append(f"memplan: fits {report.verdict.gpu} ({usable} usable): {report.verdict.fits}")
    return lines


def _comparison(report: Report | None, measured: dict[str, int] | None) -> list[str]:
    """Estimated beside measured, by meter."""
    if measured is None:
        return ["memplan: nothing measured: this process has no CUDA device"]
    if report is None:
        return [f"memplan: {meter} measured {format_bytes(size)}" for meter, size in measured.items()]
    gpu = report.per_gpu
    estimated = {
        "allocated_bytes": gpu.allocated_bytes,
        "reserved_bytes": gpu.reserved_bytes.expected,
        "device_bytes": gpu.device_bytes.expected,
    }
    return [
        f"memplan: {meter.removesuffix('_bytes'):9} estimated {format_bytes(estimated[meter])}, "
        f"measured {format_bytes(size)} ({(estimated[meter] - size) / size:+.1%})"
        for meter, size in measured.items()
    ]
