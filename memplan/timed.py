"""Measured steps: files of runs, and what trainers print of their pace.

A run is a job with one of ``PACES``. In a log the pace is the median of the later half of what the trainer says: the
first steps compile, load and warm up."""

import json
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memplan.cost import examples_per_step
from memplan.cost.fitting import Run
from memplan.errors import InvalidJob, UsageError
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job
from memplan.spec.recipe import Recipe
from memplan.yaml_lines import fields_of, read_yaml

PACES = ("step_seconds", "tokens_per_second", "tokens_per_second_per_gpu", "examples_per_second")
"""Seconds of an optimizer step; tokens that enter the model, of all GPUs or of one; examples (a pair is one) of all."""
HINT = "write runs: [{job: {model: …, gpu: …}, tokens_per_second: 61000}, …]"
MOST_BYTES = 1 << 28


class Spoken(NamedTuple):
    """How a trainer says its pace."""

    pace: str
    pattern: re.Pattern[str]
    scale: float = 1.0
    inverse: bool = False


NUMBER = r"([\d,]+(?:\.\d+)?(?:e[+-]?\d+)?)"
SPOKEN: tuple[Spoken, ...] = (
    # Megatron-LM, training/training.py: training_log
    Spoken("step_seconds", re.compile(rf"elapsed time per iteration \(ms\): {NUMBER}"), 1e-3),
    # torchtitan, components/metrics.py: tokens of one device
    Spoken("tokens_per_second_per_gpu", re.compile(rf"\btps: {NUMBER}")),
    # torchtune, recipes: log_dict
    Spoken("tokens_per_second_per_gpu", re.compile(rf"\btokens_per_second_per_gpu[:=] ?{NUMBER}")),
    # NeMo, utils/exp_manager.py: TimingCallback
    Spoken("step_seconds", re.compile(rf"\btrain_step_timing in s[:=] ?{NUMBER}")),
    # transformers, trainer_utils.py: speed_metrics, at the end of a run
    Spoken("examples_per_second", re.compile(rf"train_samples_per_second['\"]?\s*[:=]\s*['\"]?{NUMBER}")),
    # tqdm, beside transformers' steps: the last resort, as it is smoothed
    Spoken("step_seconds", re.compile(rf"\d+/\d+ \[[\d:]+<[\d:]+, +{NUMBER}s/it\b")),
    Spoken("step_seconds", re.compile(rf"\d+/\d+ \[[\d:]+<[\d:]+, +{NUMBER}it/s\b"), 1.0, True),
)
"""In the order of trust: of a log the first that says anything counts."""


def runs_of(path: str, given: JobInput | None) -> list[Run]:
    """The runs of a file: its own jobs', or those of a log of the job that is ``given``. Raises UsageError."""
    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise UsageError(f"{path} is too large for a log of runs", "cut out the part with steps")
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (OSError, ValueError):
        raise UsageError(f"no such file: {path[:200]!r}", "name a file of runs, or a trainer's log") from None
    rows = _rows(path, text)
    if rows is not None:
        return [_of_row(path, number, row) for number, row in enumerate(rows, start=1)]
    if given is None:
        raise UsageError(f"{path} is a log: of which job?", "name it: --model, --gpu, --num-gpus, … or --job job.yaml")
    pace, value = _spoken(path, text)
    return [timed(path, given, pace, value)]


def timed(name: str, given: JobInput, pace: str, value: float) -> Run:
    """A job at a pace. Raises InvalidJob where it names no card."""
    if not (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")):
        raise InvalidJob(f"{name}: {pace}: {value!r} is no pace", "write a number above 0")
    recipe = resolve(given)
    if recipe.hardware.gpu is None:
        raise InvalidJob(f"{name}: a speed is that of a card", "add gpu, such as h100-80gb")
    return Run(name, recipe, _seconds(recipe, pace, float(value)))


def _seconds(recipe: Recipe, pace: str, value: float) -> float:
    """Of an optimizer step."""
    if pace == "step_seconds":
        return value
    examples = examples_per_step(recipe)
    if pace == "examples_per_second":
        return examples / value
    tokens = recipe.rows // recipe.batch.size * examples * recipe.batch.sequence_length
    cards = recipe.parallel.world if pace == "tokens_per_second_per_gpu" else 1
    return tokens / cards / value


def _rows(path: str, text: str) -> Sequence[Any] | None:
    """The runs of a file that is JSON, lines of it, or YAML; None of a log."""
    start = text.lstrip()[:1]
    if path.lower().endswith((".yaml", ".yml")):
        found: Any = dict(fields_of(read_yaml(Path(path), "runs"), Path(path), "the file").values)
    elif start not in ("{", "["):
        return None
    else:
        try:
            found = json.loads(text)
        except ValueError:
            try:
                found = [json.loads(line) for line in text.splitlines() if line.strip()]
            except ValueError:
                return None
    rows = found.get("runs", [found]) if isinstance(found, dict) else found
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path} holds no runs", HINT)
    return rows


def _of_row(path: str, number: int, row: Any) -> Run:
    name = f"{path}:{number}"
    if not isinstance(row, dict) or not isinstance(row.get("job"), dict):
        raise UsageError(f"{name} has no job", HINT)
    measured = row.get("measured")
    said: Mapping[str, Any] = {**(measured if isinstance(measured, dict) else {}), **row}
    paces = [pace for pace in PACES if said.get(pace) is not None]
    if len(paces) != 1:
        which = " and ".join(paces) if paces else "no pace"
        raise UsageError(f"{name} says {which}", f"give one of {', '.join(PACES)}")
    return timed(str(row.get("id", name)), read_job(row["job"]), paces[0], said[paces[0]])


def _spoken(path: str, text: str) -> tuple[str, float]:
    """What a log says of its pace: the middle of the later half."""
    for each in SPOKEN:
        found = [float(number.replace(",", "")) for number in each.pattern.findall(text)]
        found = [number for number in found if number > 0][len(found) // 2 :] or found[-1:]
        if found and statistics.median(found) > 0:
            middle = statistics.median(found)
            return each.pace, 1 / middle if each.inverse else each.scale * middle
    raise UsageError(f"{path} says nothing of its pace", "give it: --step-seconds 1.25, or --tokens-per-second 61000")
