"""Every option of a job once: made from the fields of Job, so that a new key is an option without a line here.

Values stay text; ``memplan.spec`` checks them, for a file and for the command line alike."""

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from memplan.cli.flags import LORA_B_BIAS
from memplan.clusters import find_cluster
from memplan.errors import InvalidJob, UsageError
from memplan.spec.job import Job
from memplan.spec.lengths import in_full
from memplan.spec.lora import Lora
from memplan.spec.reading import SHORTHANDS, JobInput, canonical_key, meant
from memplan.spec.rollout import Rollout
from memplan.tables.choices import ALIASES, ALLOCATOR_OPTIONS, CHOICES, ROLLOUT_OPTIONS, TRAINING_ONLY, rollout_option
from memplan.tables.texts import texts_by_name
from memplan.units import words_of

SECTIONS = {title: words_of(keys) for title, keys in texts_by_name(__file__).items()}
"""Sections of the help; LoRA has its own, and a key that is named nowhere is under the last."""

FLAGS = {
    "use_lora": "--lora/--no-lora",
    "reshard_after_forward": "--reshard-after-forward/--no-reshard-after-forward",
    "load_in_4bit": "--load-in-4bit",
    "load_in_8bit": "--load-in-8bit",
    "gradient_checkpointing": "--gradient-checkpointing/--no-gradient-checkpointing",
}
"""Flags that are no yes-or-no key of a job."""
MAPPINGS = words_of("lora deepspeed allocator images extra_models optimizer_args megatron fsdp ddp rollout sync")
"""Keys that hold keys of their own: by --set, LoRA's also by --lora-*."""


class JobOption(NamedTuple):
    """One option: the parameter that typer passes, how it is written, and what its help says."""

    parameter: str
    written: tuple[str, ...]
    metavar: str = ""
    """Empty for a flag."""
    section: str = "Other"
    help: str = ""
    hidden: bool = False


@cache
def job_options() -> tuple[JobOption, ...]:
    """Every option of a job, without its help, which ``helps`` reads from docstrings when somebody asks."""
    options = [_of_key(key) for key in Job.model_fields if key not in MAPPINGS]
    options += [JobOption("recompute", ("--recompute",), "HOW", _section("recompute"))]
    options += [
        JobOption(key, (flag,), "", _section(key)) for key, flag in FLAGS.items() if key not in Job.model_fields
    ]
    return (
        *options,
        *map(_of_lora, Lora.model_fields),
        *map(_of_rollout, ROLLOUT_OPTIONS),
        *map(_of_allocator, ALLOCATOR_OPTIONS),
    )


def _of_key(key: str) -> JobOption:
    name = key.replace("_", "-")
    if key in FLAGS:
        return JobOption(key, (FLAGS[key],), "", _section(key))
    if _is_flag(Job, key):
        return JobOption(key, (f"--{name}/--no-{name}",), "", _section(key))
    letters = tuple(f"-{alias}" for alias, meant in ALIASES.items() if meant == key and len(alias) == 1)
    return JobOption(key, (f"--{name}", *letters), _metavar(Job, key), _section(key))


def _of_lora(key: str) -> JobOption:
    name = LORA_B_BIAS if key == "lora_bias" else f"lora-{key.replace('_', '-')}"
    if _is_flag(Lora, key):
        return JobOption(f"lora_{key}", (f"--{name}/--no-{name}",), "", "LoRA")
    return JobOption(f"lora_{key}", (f"--{name}",), _metavar(Lora, key), "LoRA")


def _of_rollout(key: str) -> JobOption:
    name = f"--{rollout_option(key)}"
    if _is_flag(Rollout, key):
        return JobOption(f"rollout_{key}", (f"{name}/--no-{name[2:]}",), "", "Generation")
    return JobOption(f"rollout_{key}", (name,), _metavar(Rollout, key), "Generation")


def _of_allocator(key: str) -> JobOption:
    name = key.replace("_", "-")
    return JobOption(f"allocator_{key}", (f"--{name}/--no-{name}",), "", "GPUs")


def _section(key: str) -> str:
    if "lora" in key:
        return "LoRA"
    return next((title for title, keys in SECTIONS.items() if key in keys), "Other")


def _is_flag(owner: type[Job] | type[Lora] | type[Rollout], key: str) -> bool:
    return owner.model_fields[key].annotation in (bool, bool | None)


def _metavar(owner: type[Job] | type[Lora] | type[Rollout], key: str) -> str:
    """NAME where there are choices, N for whole numbers, X for others, TEXT for the rest."""
    if owner is Job and key in CHOICES:
        return "NAME"
    kinds = str(owner.model_fields[key].annotation)
    return "TEXT" if "str" in kinds else "N" if "int" in kinds else "X" if "float" in kinds else "TEXT"


def read_given(values: Mapping[str, Any]) -> "JobInput":
    """The job that MODEL, the files beside it and the options describe: a framework's file is read as its own."""
    model, keys = collect(values)
    beside, framework = values.get("with_") or (), values.get("framework") or ""
    if beside or framework or (model is not None and _is_of_files(model)):
        from memplan.frameworks.reading import read_target as read_files

        return read_files(model, keys, beside, framework)
    from memplan.jobs import read_target

    return read_target(model, keys)


def _is_of_files(model: str) -> bool:
    """Whether MODEL is a command line, a file, or a training of one: train.sh:40."""
    path, _, line = model.rpartition(":")
    return " " in model or os.path.isfile(model) or (line.isdecimal() and os.path.isfile(path))


def collect(values: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """MODEL, and the job keys that were given, from what typer passes. Raises UsageError for a contradiction."""
    keys = {option.parameter for option in job_options()}
    given = {name: value for name, value in values.items() if name in keys and value is not None}
    if "gradient_checkpointing" in given:
        given["gradient_checkpointing"] = "full" if given["gradient_checkpointing"] else "none"
    lora = {name.removeprefix("lora_"): given.pop(name) for name in list(given) if name.startswith("lora_")}
    if lora and given.get("use_lora") is False:
        raise UsageError(f"--no-lora contradicts --lora-{next(iter(lora)).replace('_', '-')}", "leave one of them out")
    if lora:
        given["lora"] = lora
    rollout = {name.removeprefix("rollout_"): given.pop(name) for name in list(given) if name.startswith("rollout_")}
    if rollout:  # a version is text, and looks like a number
        given["rollout"] = {key: value if key == "engine_version" else scalar(value) for key, value in rollout.items()}
    allocator = {key: given.pop(f"allocator_{key}") for key in ALLOCATOR_OPTIONS if f"allocator_{key}" in given}
    if allocator:
        given["allocator"] = allocator
    if "lengths" in given:
        given["lengths"] = in_full(given["lengths"])
    for flag, name in (("--set", "set_"), ("--fix", "fix")):
        last = {each.partition("=")[0].strip(): each for each in values.get(name) or ()}  # as a repeated option's does
        for assignment in last.values():
            assign(given, assignment, flag)
    model = values.get("target")
    if values.get("without"):  # keys of the file, which its reader takes out of what it doubts
        given["without"] = tuple(key.strip() for each in values["without"] for key in each.split(","))
    return (given.pop("model", None) if model is None else model), given


def assign(job: dict[str, Any], assignment: str, flag: str = "--set") -> None:
    """Put ``allocator.expandable_segments=true`` into a job; a value that is no JSON is text. ``flag``: the option."""
    path, equals, text = assignment.partition("=")
    first, *inner = path.strip().split(".")
    such = "zero_stage=3" if flag == "--fix" else "allocator.expandable_segments=true"
    hint = f"write {flag} key=value, such as {flag} {such}"
    if not equals or not all((first, *inner)):
        raise UsageError(f"{flag} {assignment!r} is no assignment", hint)
    key = canonical_key(first)
    if key not in Job.model_fields and key not in SHORTHANDS:
        known = [*Job.model_fields, *SHORTHANDS]
        why = "leave it out: memory does not feel it" if key in TRAINING_ONLY else meant(key, known)
        raise InvalidJob(f"{flag} {assignment!r}: unknown key {first!r}", why)
    value: Any = scalar(text)
    kinds = "" if key in SHORTHANDS else str(Job.model_fields[key].annotation)
    if isinstance(value, (int, float)) and not inner and "str" in kinds and "int" not in kinds:
        value = text  # a version, a tag or a card is text, and looks like a number at times
    for name in reversed(inner):
        value = {name: value}
    _merge(job, key, value, f"{flag} {assignment!r}")


def _merge(job: dict[str, Any], key: str, value: Any, said: str) -> None:
    """Mappings join, and a named cluster is changed; one key set to two values is an error."""
    before = job.get(key)
    if key == "cluster" and isinstance(before, str) and isinstance(value, dict):
        job[key] = find_cluster(before).model_dump(exclude_defaults=True) | value
    elif isinstance(before, dict) and isinstance(value, dict):
        for name, item in value.items():
            _merge(before, name, item, said)
    elif before is not None and before != value:
        hint = f"keep one of them: leave {said} out, or the option that says it too"
        raise UsageError(f"{said}: {key} is given twice: {before!r} and {value!r}", hint)
    else:
        job[key] = value


_WORDS = re.compile(r"\[\s*\w+(\s*,\s*\w+)*\s*\]")


def scalar(text: Any) -> Any:
    """A value as it is written: JSON where it is JSON, [a, b] a list of words, else text; a flag as it is."""
    try:
        return text if isinstance(text, bool) else json.loads(text)
    except (ValueError, RecursionError):
        return re.findall(r"\w+", text) if isinstance(text, str) and _WORDS.fullmatch(text) else text
