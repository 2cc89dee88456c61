"""memplan calibrate: a machine's own rates out of measured runs, for --calibration."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options
from memplan.cli.edge import note
from memplan.cli.output import Output, Result, check_place, write_report
from memplan.cli.parameters import Parameter, argument, option
from memplan.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from memplan.cost.fitting import Fitted, Run

HELP = """A machine's own speed out of a few measured runs: compute, host, links, network. For --calibration FILE.

A run is a job with its speed, in a file or typed in; or a trainer's log, with --job. Memory does not feel it.

Example: memplan calibrate train.log --job train.yaml --gpu h100-80gb -o rates.json
"""


def parameters() -> list[Parameter]:
    """RUNs, a speed typed in with its job, and where the file goes."""
    rest = [each for each in options.parameters() if each.name not in ("target", "calibration")]
    return [
        argument("runs", "RUN …", list[str]),
        option("of_job", str, "--job", metavar="MODEL"),
        option("step_seconds", str, "--step-seconds", metavar="S"),
        option("tokens_per_second", str, "--tokens-per-second", metavar="N"),
        *rest,
        option("calibration_to", str, "--output", "-o", metavar="FILE"),
        option("force", bool, "--force"),
        option("json", bool, "--json"),
    ]


def calibrate(values: Mapping[str, Any]) -> int:
    """Read the runs, fit, write the file, and say how far off it was and is."""
    to = values.get("calibration_to")
    if to is not None:
        check_place(to, bool(values.get("force")))
    runs = _runs(values)
    gpu = runs[0].recipe.hardware.gpu
    assert gpu is not None
    others = sorted({run.recipe.hardware.gpu.name for run in runs if run.recipe.hardware.gpu} - {gpu.name})
    if others:
        raise UsageError(f"runs of several cards: {gpu.name}, {', '.join(others)}", "calibrate each card by itself")
    from memplan.cost import card
    from memplan.cost.fitting import fit
    from memplan.render.calibration_view import blocks

    found = fit(runs, gpu.name, card(gpu))
    data = _data(runs, found)
    Output("json" if values.get("json") else "table").write(
        Result(lambda: data, lambda width: list(blocks(runs, found)))
    )
    if to is not None:
        write_report(to, json.dumps(data, indent=1) + "\n", bool(values.get("force")))
        note(f"written: {to}; now: memplan plan MODEL --gpu {gpu.name} --calibration {to}")
    return EXIT_DONE


def _runs(values: Mapping[str, Any]) -> "list[Run]":
    from memplan.timed import PACES, runs_of, timed

    files, paces = values.get("runs") or [], [pace for pace in PACES if values.get(pace) is not None]
    model, keys = options.collect(values)
    named = values.get("of_job") or model
    given = options.read_given({**values, "target": named}) if named is not None or "total_params" in keys else None
    found = [run for path in files for run in runs_of(path, given)]
    if len(paces) > 1:
        raise UsageError(f"--{paces[0].replace('_', '-')} and --{paces[1].replace('_', '-')}: two speeds of one job")
    if paces:
        if given is None:
            raise UsageError("a speed of which job?", "name it: --job llama-3.1-8b --gpu h100-80gb --num-gpus 8")
        found.append(timed("the job", given, paces[0], _number(paces[0], values[paces[0]])))
    if not found:
        raise UsageError("calibrate by which runs?", "memplan calibrate runs.yaml --output rates.json")
    return found


def _number(pace: str, text: str) -> float:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        option = f"--{pace.replace('_', '-')}"
        raise UsageError(f"{option}: {text[:40]!r} is no number", f"write {option} 61000") from None


def _data(runs: "list[Run]", found: "Fitted") -> dict[str, Any]:
    """The file: what is fitted, and each run with what was estimated of it."""
    rows = [
        {"name": run.name, "step_seconds": run.seconds, "error_before": before, "error_after": after}
        for run, before, after in zip(runs, found.before, found.after, strict=True)
    ]
    return {"schema_version": 1, **found.calibration.model_dump(mode="json"), "measured": rows}
