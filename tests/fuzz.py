"""Jobs, configs and files drawn at random from all that the schema admits, and what must hold of each of them.

A small share runs with the tests (``test_fuzz.py``). The rest: ``python tests/fuzz.py --jobs 100000 --files 10000``,
in parts with ``--seed`` and ``--minutes``; there a case may also take no more than 2 s and 300 MiB.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import framework_cases
from any_jobs import MODELS, MORE, ONE_GPU, SHARED, step_peak

from memplan.arch import parse_config
from memplan.cli.schemas import job_schema
from memplan.engine.build import build_ledger
from memplan.errors import MemplanError
from memplan.frameworks.checks.checking import check_file
from memplan.presets import model_names, model_preset, presets_dir
from memplan.report import Report
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.reading import read_job

SECONDS, MIB = 2.0, 300
"""What one case may take."""
SCHEMA = job_schema()
PLACES = ("model", "revision", "gpu", "cluster", "total_params", "images")
"""Keys whose values are names of what is elsewhere, or ask for a model that sees."""
OFTEN = [key for key in (*ONE_GPU, *MORE, *SHARED) if key != "model"]
STATES = ("parameters", "adapters", "master_weights", "gradients", "optimizer_states")
PADDING = 1 << 14
ODD: list[Any] = [None, True, -1, 0, 1, 3, 7, 10**6, 10**9, 1e300, 0.1, "", "auto", "nan", [], [1], {}, {"a": 1}, "é\n"]
Keys = dict[str, Any]


# -- drawing ----------------------------------------------------------------------------------------------------------


def number(random: Random, low: int, high: int) -> int:
    """Small ones most often, and any within the bounds, the bounds among them."""
    most = random.choice([low + 3, low + 3, low + 8, 4096, high, high])
    value = int(math.exp(random.uniform(0, math.log(max(1, most - low) + 1)))) - 1 + low
    return random.choice([high, value]) if most == high else min(high, value)


def drawn(random: Random, schema: Mapping[str, Any]) -> Any:
    """A value that the schema admits."""
    if "$ref" in schema:
        return drawn(random, SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[-1]])
    if "anyOf" in schema:
        return drawn(random, random.choice([kind for kind in schema["anyOf"] if kind != {"type": "string"}] or [{}]))
    if "enum" in schema or "const" in schema:
        return random.choice(schema["enum"] if "enum" in schema else [schema["const"]])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        keys = random.sample(list(schema["properties"]), min(len(schema["properties"]), random.randint(1, 3)))
        return {key: drawn(random, schema["properties"][key]) for key in {*keys, *schema.get("required", ())}}
    if kind == "array":
        return [drawn(random, schema.get("items", {})) for _ in range(random.choice([0, 1, 1, 2, 5]))]
    if kind == "integer":
        return number(random, schema.get("minimum", 0), schema.get("maximum", 10**12))
    if kind == "number":
        return random.choice([schema.get("minimum", schema.get("exclusiveMinimum", 0) + 0.5), random.random()])
    if kind == "boolean":
        return random.random() < 0.5
    return random.choice(["q_proj", "lm_head", "layers.0", "*norm*", "auto", "1", "bf16"]) if kind == "string" else None


def job_of(random: Random) -> Keys:
    """A job of a tiny model, or one of the presets, with some keys of all."""
    model = random.choice([*MODELS.values(), random.choice(model_names())])
    keys: Keys = {"model": model, "method": drawn(random, SCHEMA["properties"]["method"])}
    keys |= {"batch_size": number(random, 1, 10**9), "sequence_length": random.choice([32, 64, 100, 2048])}
    names = random.sample(OFTEN, random.randint(0, 4))
    names += random.sample([key for key in Job.model_fields if key not in PLACES], random.randint(0, 3))
    for name in names:
        keys[name] = drawn(random, SCHEMA["properties"][name])
    if "num_gpus" in keys and random.random() < 0.8:
        keys |= {"num_gpus": random.choice([2, 4, 8])}
    return keys


def config_of(random: Random) -> Keys:
    """A preset's config with some values changed."""
    config = dict(model_preset(random.choice(model_names()))["config"])
    for key in random.sample(list(config), min(len(config), random.randint(1, 3))):
        value = config[key]
        plain = isinstance(value, int) and not isinstance(value, bool)
        config[key] = number(random, 1, max(8, 4 * value)) if plain and random.random() < 0.8 else random.choice(ODD)
    return config


SETTINGS = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
TEXTS = [
    *((path.suffix, path.read_text()) for path in sorted((presets_dir() / "jobs").glob("*.yaml"))),
    *((Path(name).suffix, text) for name, text in framework_cases.FILES.values()),
    (".json", json.dumps(SETTINGS, indent=1)),
]
"""Jobs and files of every framework, each with its name's end."""
PIECES = [
    "[" * 30,
    "{" * 30,
    '"',
    "'",
    "\\\n",
    "$(x)",
    "${A:-1}",
    "a.b.c.d = 1\n",
    "- 1\n",
    "&a ",
    "*a",
    "\t",
    "\u2028",
]


def changed(random: Random, text: str) -> str:
    """A text with a piece put in or left out, a line doubled, dropped, given another value, or repeated."""
    lines = text.splitlines(keepends=True) or ["\n"]
    place, at = random.randrange(len(lines)), random.randrange(len(text) + 1)
    odd = random.choice([*PIECES, json.dumps(random.choice(ODD))])
    before, line, after = "".join(lines[:place]), lines[place], "".join(lines[place + 1 :])
    ways = [
        text[:at] + odd + text[at:],
        text[:at] + text[at + 5 :],
        before + random.choice(lines) + line + after,
        before + after,
        before + line.rpartition(" ")[0] + f" {odd}\n" + after,
        text + line * (200_000 // len(line)),
        text[:at] + odd * (200_000 // len(odd)) + text[at:],
    ]
    return random.choices(ways, [4, 4, 4, 4, 6, 1, 1])[0]


def file_of(random: Random) -> tuple[str, str]:
    """A file with some of its characters changed, left out, or repeated up to the limit of size."""
    ending, text = random.choice(TEXTS)
    for _ in range(random.randint(1, 3)):
        text = changed(random, text)
    ending = random.choice([ending] * 9 + [".yaml", ".json", ".toml", ".sh", ""])
    return ending, text[: 255 * 1024]


# -- what must hold ---------------------------------------------------------------------------------------------------


def hold(condition: bool, what: str) -> None:
    """Raise AssertionError that says what does not hold."""
    if not condition:
        raise AssertionError(what)


def priced(keys: Keys) -> Report | None:
    """The report of a job; None where it is refused, by a line that names something."""
    try:
        return build_report(resolve(read_job(keys)))
    except MemplanError as error:
        hold(bool(error.message) and error.message.isprintable() and len(error.message) < 2100, "a printable refusal")
        hold(error.exit_code in (2, 3), f"exit code {error.exit_code}: {error.message[:200]}")
        return None


def check_report(report: Report) -> None:
    """Sums, and bands in their order."""
    gpu = report.per_gpu
    whole = gpu.allocated_bytes
    hold(whole == sum(gpu.by_category.values()) == step_peak(gpu), "the sums of the peak")
    hold(gpu.allocated_range.low <= whole <= gpu.allocated_range.high, "the band of what is allocated")
    for band in (gpu.reserved_bytes, gpu.device_bytes):
        hold(band.low <= band.expected <= band.high, "bands in order")
    hold(gpu.reserved_bytes.expected >= whole and gpu.device_bytes.expected >= gpu.reserved_bytes.expected, "meters")
    json.dumps(report.to_dict())


def peak(keys: Keys) -> int | None:
    report = priced(keys)
    return report.per_gpu.allocated_bytes if report else None


def states(keys: Keys) -> int | None:
    """Model states in the optimizer's step, on every rank's meters."""
    try:
        ledger = build_ledger(resolve(read_job(keys)), detailed=False)
    except MemplanError:
        return None
    last = len(ledger.schedule) - 1
    return sum(row.bytes for row in ledger.rows if row.category in STATES and row.born <= last <= row.dies)


def check_growth(random: Random, keys: Keys) -> None:
    """More of one thing never takes less of another."""
    keys = {key: value for key, value in keys.items() if key != "global_batch_size"}
    more = random.choice(["batch_size", "sequence_length", "rank", "ranks"])
    if more == "ranks":
        fewer = keys | {"num_gpus": 2, "sharding": random.choice(["zero1", "zero2", "zero3", "fsdp2"])}
        few, many = states(fewer), states(fewer | {"num_gpus": 4})
        hold(few is None or many is None or many <= few + PADDING, f"{few} bytes of states over 2 ranks, {many} over 4")
        return
    if more == "rank":
        given = keys.get("lora")
        settings = given if isinstance(given, dict) else {}
        small, large = (keys | {"lora": {**settings, "r": r}} for r in (8, 16))
    else:
        small, large = keys, keys | {more: 2 * keys[more]}
    one, two = peak(small), peak(large)
    hold(one is None or two is None or two >= one, f"{one} bytes, and {two} with twice the {more}")


def check_job(random: Random, keys: Keys) -> bool:
    """One job, and sometimes what it is related to; whether it was priced."""
    report = priced(keys)
    if report is not None:
        check_report(report)
        if random.random() < 0.3:
            check_growth(random, keys)
    return report is not None


def check_config(config: Keys) -> bool:
    """A model of this config is described and priced, or refused."""
    try:
        parse_config(config, "drawn")
    except MemplanError:
        return False
    report = priced({"model": config, "method": "sft", "sequence_length": 128})
    if report is not None:
        check_report(report)
    return report is not None


def check_text(folder: Path, ending: str, text: str) -> bool:
    """A file is judged, or refused in one line; whether it was judged."""
    path = folder / f"drawn{ending}"
    path.write_text(text, encoding="utf-8", errors="replace")
    found = check_file(str(path), {"gpu": "h100-80gb"})
    hold(found.fits in ("yes", "tight", "no", "unclear", "error", "skipped") and len(found.text) < 2100, "an answer")
    return found.fits != "error"


# -- the whole run ----------------------------------------------------------------------------------------------------


class TooSlow(BaseException):
    """Raised where a case does not come to an end."""


def _stop(*_: object) -> None:
    raise TooSlow("10 s")


def cases(random: Random, jobs: int, files: int, folder: Path) -> Iterator[tuple[Any, Callable[[], bool]]]:
    """Each case as drawn, and how it is checked."""
    for _ in range(jobs):
        keys = job_of(random)
        yield keys, partial(check_job, random, keys)
    for i in range(files):
        if i % 2:
            config = config_of(random)
            yield config, partial(check_config, config)
        else:
            ending, text = file_of(random)
            yield (ending, text), partial(check_text, folder, ending, text)


def main() -> int:
    """Run, and print each case that does not hold, and how many were taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("jobs", 2000), ("files", 200), ("seed", 0), ("minutes", 600)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    signal.signal(signal.SIGVTALRM, _stop)
    done, priced_, wrong, start = 0, 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        for case, run in cases(Random(given.seed), given.jobs, given.files, Path(name)):
            if time.monotonic() - start > 60 * given.minutes:
                break
            before, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            said = ""
            signal.setitimer(signal.ITIMER_VIRTUAL, 10)
            try:
                priced_ += run()
            except (Exception, TooSlow) as error:
                said = f"{type(error).__name__}: {str(error)[:200]}"
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            seconds = time.process_time() - before
            memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) // 1024
            if seconds > SECONDS or memory > MIB:
                said += f" {seconds:.1f} s, {memory} MiB"
            done += 1
            if said:
                wrong += 1
                print(f"{said}\n  {str(case)[:1500]}", flush=True)
    print(f"{done} cases of seed {given.seed}, {priced_} priced or judged, {wrong} that do not hold")
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(main())
