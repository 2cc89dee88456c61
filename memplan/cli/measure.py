"""memplan measure: one job, run on the devices of this machine."""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options, output
from memplan.cli.edge import warn
from memplan.cli.output import Result
from memplan.errors import EXIT_DONE, MemplanError, UsageError
from memplan.render.progress import Progress

if TYPE_CHECKING:
    from memplan.measurement import Measurement

HELP = """The step of a job on real devices: what torch, its allocator and the driver count, beside the estimate.

It needs memplan[trace], and runs on one GPU, on several under torchrun or accelerate launch, or on the CPU.

Example: memplan measure llama-3.2-1b --method dpo --output dpo.json
"""


PATIENCE = 5.0
"""Seconds that the others wait before they fail too."""


def measure(values: Mapping[str, Any]) -> int:
    """Read, run, write. Under torchrun only the first process writes, prints and complains."""
    from memplan.trace.world import read_world

    world = read_world()
    try:
        return _measure(values)
    except MemplanError as error:
        if world.is_rank_zero:
            raise
        # The launcher ends all processes when the first has failed: that must be the one that complains.
        time.sleep(PATIENCE)
        return error.exit_code


def _measure(values: Mapping[str, Any]) -> int:
    from memplan.trace.measure import measure as run

    to = output.read_output(values, shows=True)
    if to.path is not None and to.form == "table":
        to = to._replace(form="json")
    snapshot = _snapshot(values)
    with Progress("measuring") as progress:
        found = run(
            options.read_given(values),
            steps=3 if values.get("steps") is None else int(values["steps"]),
            weights=values.get("weights"),
            snapshot=snapshot,
            find_max=bool(values.get("find_max")),
            cpu=bool(values.get("cpu")),
            progress=lambda text: _tell(text, progress),
        )
    if found is not None:
        to.write(_result(found))
    return EXIT_DONE


def _tell(text: str, progress: Progress) -> None:
    """How far it is, on a terminal; that it runs on a CPU, anywhere."""
    from memplan.trace.measure import ON_CPU

    progress.tell(text)
    if text == ON_CPU:
        warn(text)


def _snapshot(values: Mapping[str, Any]) -> str | None:
    """Where the snapshot goes, refused before any work is done."""
    path = values.get("snapshot")
    if path is not None and os.path.exists(path) and not values.get("force"):
        raise UsageError(f"--snapshot {path} exists already", "add --force to overwrite it, or name another file")
    return path


def _result(found: "Measurement") -> Result:
    from memplan.trace.view import blocks, rows

    return Result(found.to_dict, lambda width: blocks(found), lambda: rows(found), kind="measure")
