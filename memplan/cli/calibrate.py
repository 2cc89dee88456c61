"""memplan calibrate: a machine's own rates out of measured runs, for --calibration."""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options
from memplan.cli.edge import note
from memplan.cli.output import Output, Result, check_place, write_report
from memplan.errors import EXIT_DONE, UsageError
from memplan.spec.gpu import Calibration, EngineConstants

if TYPE_CHECKING:
    from memplan.cost.fitting import Fitted, Run
    from memplan.generated import Engine
    from memplan.logs.reading import Log

HELP = """A machine's own speed out of a few measured runs: compute, host, links, network. For --calibration FILE.

A run is a job with its speed, in a file or typed in; or a trainer's log, with --job. Memory does not feel it. The start
log of an engine (vLLM, with --gpu) tells its own constants: profile run, graphs, what lies outside PyTorch.

Example: memplan calibrate train.log --job train.yaml --gpu h100-80gb -o rates.json
"""


def calibrate(values: Mapping[str, Any]) -> int:
    """Read the runs, fit, write the file, and say how far off it was and is."""
    to = values.get("calibration_to")
    if to is not None:
        check_place(to, bool(values.get("force")))
    starts = _starts(values)
    if starts:
        values = {**values, "runs": [path for path in values["runs"] if path not in {log.path for log, _ in starts}]}
        if not values["runs"] and values.get("step_seconds") is None and values.get("tokens_per_second") is None:
            return _engine_alone(starts, values)
    runs = _runs(values)
    gpu = runs[0].recipe.hardware.gpu
    assert gpu is not None
    others = sorted({run.recipe.hardware.gpu.name for run in runs if run.recipe.hardware.gpu} - {gpu.name})
    if others:
        raise UsageError(f"runs of several cards: {gpu.name}, {', '.join(others)}", "calibrate each card by itself")
    from memplan.cost import card
    from memplan.cost.fitting import fit
    from memplan.render.accuracy_view import blocks

    found = fit(runs, gpu.name, card(gpu))
    if starts:
        found = found._replace(calibration=found.calibration.but(engine=_constants(starts)))
    data = _data(runs, found)
    return _told(values, data, blocks(runs, found), f"plan MODEL --gpu {gpu.name}")


def _told(values: Mapping[str, Any], data: dict[str, Any], rows: Iterable[Any], use: str) -> int:
    """The calibration shown and, where it is asked for, written, with the command that takes it."""
    Output("json" if values.get("json") else "table").write(Result(lambda: data, lambda width: list(rows)))
    if (to := values.get("calibration_to")) is not None:
        write_report(to, json.dumps(data, indent=1) + "\n", bool(values.get("force")))
        note(f"written: {to}; now: memplan {use} --calibration {to}")
    return EXIT_DONE


def _starts(values: Mapping[str, Any]) -> "list[tuple[Log, Engine]]":
    """The start logs of engines among the files, with what is expected of each on the card that is named."""
    from memplan.api import estimate
    from memplan.cli.check_log import of_log
    from memplan.logs.reading import read_log

    found = []
    for path in values.get("runs") or []:
        if str(path).endswith((".yaml", ".yml", ".json", ".jsonl", ".csv")):
            continue
        try:
            log = read_log(str(path))
        except UsageError:  # a trainer's log says nothing of memory; that there is none, its own reading says
            continue
        if log.engine:
            engine = estimate(of_log(log, values)).engine
            found += [(log, engine)] if engine is not None else []
    return found


def _constants(starts: "list[tuple[Log, Engine]]") -> "EngineConstants":
    from memplan.logs.jobs import constants

    return constants(starts)


def _engine_alone(starts: "list[tuple[Log, Engine]]", values: Mapping[str, Any]) -> int:
    """A file without speeds."""
    from memplan.gpus import find_gpu
    from memplan.render.accuracy_view import engine_blocks

    if values.get("gpu") is None:
        raise UsageError("calibrate which card?", "name it, such as --gpu h100-80gb")
    found = Calibration(gpu=find_gpu(str(values["gpu"])).name, runs=0, engine=_constants(starts))
    data = {"schema_version": 1, **found.model_dump(mode="json")}
    return _told(values, data, engine_blocks(found), f"estimate MODEL --method generate --gpu {found.gpu}")


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
