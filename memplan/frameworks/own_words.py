"""A change of a job in the words of the file that it came from: the reader's own table, asked backwards.

Which key of a file says a key of the job only its reader knows. So each key that the reader asks for, and whose name
speaks of the change, is tried with each value that may say it; the file is read again, and the one is taken with which
the reader makes the job that is wanted. Nothing is known here of any framework. What is shown was read, estimated, and
fits; what no key of the file says is said by memplan's own option, or the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from memplan.errors import MemplanError
from memplan.frameworks.documents import FORMS, Document, Settings
from memplan.frameworks.draft import Draft
from memplan.frameworks.quoting import shell_word, yaml_value
from memplan.frameworks.reading import draft_of, read_documents
from memplan.frameworks.shipped import ZERO
from memplan.report import Found, Remedy, Report
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.allocator import conf_text
from memplan.spec.job import Job
from memplan.spec.option_words import option_words
from memplan.spec.reading import JobInput, with_changes

MOST = 80
"""Readings for one key of the job."""
NAMES: Mapping[str, str] = {
    "batch_size": r"train.*batch|micro.*batch|device.*batch|batch|mbs",
    "gradient_accumulation_steps": r"accum|grad_acc",
    "global_batch_size": r"global.*batch|train_batch|gbs",
    "eval_batch_size": r"eval.*batch",
    "token_budget": r"token",
    "sequence_length": r"max.*len|cutoff|seq|len|block",
    "completion_length": r"completion|response|max.*len|cutoff|seq|len|block",
    "gradient_checkpointing": r"checkpoint|recompute|activation|\bac\b|gc",
    "attention": r"flash|attn|attention",
    "kernels": r"liger|kernel",
    "loss_head": r"fused|chunk|entropy|cce|liger|loss",
    "optimizer": r"optim|adam",
    "optimizer_impl": r"fused|foreach|optim",
    "precision": r"dtype|bf16|fp16|precision|half",
    "dtype": r"dtype|bf16|fp16|precision|half",
    "quantization": r"4bit|quant|bits|bnb|8bit",
    "lora": r"lora|peft|adapter|finetuning|tuner|train_type|tuning",
    "sharding": r"zero|stage|deepspeed|fsdp|shard|strategy|distributed",
    "zero_stage": r"zero|stage|deepspeed",
    "offload": r"offload",
    "fsdp": r"offload",
    "trainer_offload": r"offload",
    "reference": r"precompute|ref",
    "entropy": r"entropy",
    "num_gpus": r"nproc|gpus|processes|devices|nodes",
    "reshard_after_forward": r"reshard",
    "tensor_parallel": r"tensor|tp",
    "pipeline_parallel": r"pipeline|pp",
    "context_parallel": r"context|ulysses|sequence_parallel|cp|sp",
    "expert_parallel": r"expert|ep",
    "rollout": r"memory|fraction|max.*len|sleep|generations|tensor|group|\bn$|response|completion|cache",
}
"""By key of the job, how names of keys begin or go on that speak of it, the plainest first."""
VALUES: Mapping[tuple[str, str], tuple[Any, ...]] = {
    ("gradient_checkpointing", "full"): (True, False, "full", "block"),
    ("gradient_checkpointing", "selective"): ("selective", True),
    ("attention", "flash"): ("flash_attention_2", "fa2", "flash", True, "flash_attn"),
    ("attention", "sdpa"): ("sdpa", True, "auto"),
    ("kernels", "liger"): (True, "liger", "liger_kernel"),
    ("loss_head", "fused"): (True, "fused"),
    ("loss_head", "chunked"): (True, "chunked", "chunked_nll"),
    ("optimizer", "adamw-8bit"): ("adamw_8bit", "adamw_bnb_8bit", "AdamW8bit", "bitsandbytes.optim.AdamW8bit"),
    ("optimizer", "lion-8bit"): ("lion_8bit", "lion_bnb_8bit"),
    ("optimizer_impl", "fused"): (True, "adamw_torch_fused"),
    ("precision", "bf16"): ("bfloat16", "bf16", "bf16-true", True),
    ("precision", "fp16"): ("float16", "fp16", True),
    ("precision", "bf16-amp"): (True, "bf16", "bf16-mixed"),
    ("precision", "fp16-amp"): (True, "fp16", "16-mixed"),
    ("quantization", "nf4"): (True, 4, "nf4", "bnb.nf4", "bnb"),
    ("reference", "precomputed"): (True,),
    ("reference", "adapter"): (True, False),
    ("entropy", "metric"): (0, 0.0, False),
    ("sharding", "fsdp"): ("full_shard auto_wrap", "fsdp", True, 1),
    ("sharding", "fsdp2"): ("fsdp2", "full_shard auto_wrap", 2),
    **{
        ("sharding", f"zero{n}"): (n, f"zero{n}", f"zero_{n}", {"zero_optimization": {"stage": n}}) for n in range(1, 4)
    },
}
"""How frameworks write a value of the job where they do not write it as memplan does."""
ENVIRONMENT = "PYTORCH_CUDA_ALLOC_CONF"


class Line(NamedTuple):
    """One key of a file with its new value."""

    name: str
    value: Any


def in_own_words(given: JobInput, report: Report) -> Report:
    """The report with each remedy in the words of the job's file, found when they are looked at."""
    if given.source is None:
        return report
    remedies = report.remedies
    return replace(report, remedies=Found(lambda: worded(given, remedies)))


def worded(given: JobInput, remedies: Any) -> tuple[Remedy, ...]:
    """Remedies with the lines to write."""
    return tuple(replace(remedy, write=own_lines(given, remedy.changes)) for remedy in remedies)


def own_lines(given: JobInput, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """What to write where, for some changes of the job; memplan's options where no words of the file make it fit."""
    options = (f"options: {option_words(changes)}",)
    if given.source is None:
        return ()
    files, from_options = given.source
    tried: dict[str, tuple[str, Any]] = {}
    rest: dict[str, Any] = {}
    try:
        draft = draft_of(files, from_options)
    except MemplanError:
        return options
    for key, value in changes.items():
        line = None if key in draft.given else said(given, draft, dict(tried.values()), key, value)
        if line is None and value != "auto":
            rest[key] = value
        elif line is not None and line.name:
            tried[key] = line.name, line.value
    for less in (None, *reversed(tried)):  # words that say less than they seem to are memplan's own instead
        words = {name: value for key, (name, value) in tried.items() if key != less}
        own = rest if less is None else {**rest, less: changes[less]}
        if _fits(given, words, own):
            lines = [_shown(Line(name, value), draft.asked[name], files[0][0]) for name, value in words.items()]
            return (*lines, *_beside(own))
    return options


def _fits(given: JobInput, tried: Mapping[str, Any], rest: Mapping[str, Any]) -> bool:
    """Whether the job fits as it is then read, with the rest as memplan's options."""
    files, options = given.source
    try:
        again = with_changes(read_documents(files, options, tried), rest)
        verdict = peak(resolve(again), search=True, play=True).verdict
    except MemplanError:
        return False
    return verdict is not None and verdict.fits == "yes"


def said(given: JobInput, draft: Draft, tried: Mapping[str, Any], key: str, value: Any) -> Line | None:
    """The key of the file, and its value, with which the reader makes this of the job; a line without a name where it
    does already; None where no key does."""
    files, options = given.source
    if key not in NAMES:
        return None
    if tried and _makes(_draft(files, options, tried), key, value):
        return Line("", None)
    for line in islice(_candidates(draft, key, value), MOST):
        if line.name in tried:
            continue
        found = _draft(files, options, {**tried, line.name: line.value})
        if found is not None and len(found.unread) <= len(draft.unread) and _makes(found, key, value):
            return line
    return None


def _draft(files: Any, options: Mapping[str, Any], tried: Mapping[str, Any]) -> Draft | None:
    """What the reader makes of it; None where it refuses."""
    try:
        return draft_of(files, options, tried)
    except (
        MemplanError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # a value of a kind that this key never has
        return None


def _makes(draft: Draft | None, key: str, value: Any) -> bool:
    """Whether the draft has this value of the job, or of a mapping what is named."""
    if draft is None:
        return False
    found = draft.values.get(key)
    if key in ("sharding", "zero_stage"):
        found = draft.values.get("sharding") or f"zero{draft.values.get('zero_stage')}"
        value = f"zero{value}" if key == "zero_stage" else value
    if isinstance(value, Mapping):
        own = found if isinstance(found, Mapping) else {}
        return bool(own) and all(own.get(inner) == item or key == "lora" for inner, item in value.items())
    if isinstance(value, (list, tuple)):
        return set(map(str, value)) <= set(map(str, found or ()))
    return bool(found == value)


def _candidates(draft: Draft, key: str, value: Any) -> Iterator[Line]:
    """Keys of the file that may say it, each with every value that may: those that are there before those that are not,
    the plainest names first."""
    words = NAMES[key].split("|")
    ranked = []
    for place, (name, settings) in enumerate(draft.asked.items()):
        short = name.removeprefix(settings.prefix)
        rank = next((i for i, word in enumerate(words) if re.search(word, name.lower())), None)
        if rank is not None:
            ranked.append((settings.values.get(short) is None, rank, place, name))
    for *_, name in sorted(ranked):
        for each in _values(key, value):
            yield Line(name, each)


def _values(key: str, value: Any) -> tuple[Any, ...]:
    """How a file may write it."""
    if isinstance(value, Mapping):
        own = tuple(item for item in value.values() if isinstance(item, (int, float, str, bool)))
        return (True, "lora", *own) if key == "lora" else (*own, True, False)
    if key == "sharding" and str(value).startswith("zero"):
        return (*VALUES[key, str(value)], *(name for name in ZERO if "offload" not in name))
    if isinstance(value, (list, tuple)):
        return (True, *(name for name in ZERO if "offload" in name), "cpu", {"device": "cpu"})
    return VALUES.get((key, str(value)), (value, str(value)) if not isinstance(value, str) else (value, True))


def _shown(line: Line, settings: Settings, document: Document) -> str:
    """``train.yaml, line 12: gradient_checkpointing: true``; as an option of a command, or an argument of a call."""
    short = line.name.removeprefix(settings.prefix)
    path = settings.paths.get(line.name, settings.path)
    form = next((FORMS[end] for end in FORMS if path.endswith(end)), document.form)
    there = settings.values.get(short) is not None
    where = settings.where(short) if there else path
    return f"{where}: {_written(line, form, document.text)}"


def _written(line: Line, form: str, text: str) -> str:
    if form == "python":
        return f"{line.name}={line.value!r}"
    if form in ("shell", ""):
        dashed = len(re.findall(r"(?<=\s)--[\w.]+", text)) >= len(re.findall(r"(?<=\s)\+{0,2}[a-z][\w.]*=", text))
        word = shell_word(json.dumps(line.value) if isinstance(line.value, (dict, bool)) else line.value)
        return f"--{line.name} {word}" if dashed else f"{line.name}={word}"
    value = json.dumps(line.value) if form in ("json", "toml") else yaml_value(line.value)
    return f"{line.name} = {value}" if form == "toml" else f"{line.name}: {value}"


def _beside(rest: Mapping[str, Any]) -> Iterator[str]:
    """What no key says: in the environment, or to memplan as its option."""
    allocator = rest.get("allocator")
    if allocator:
        conf = conf_text(Job.model_validate({"allocator": allocator}).allocator)
        yield f"environment: export {ENVIRONMENT}={conf}"
    more = {key: value for key, value in rest.items() if key != "allocator"}
    if more:
        yield f"options: {option_words(more)}"
