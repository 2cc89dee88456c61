"""Options of other tools, and what is typed here in their place: with the value that was typed."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from memplan.errors import nearest
from memplan.tables.texts import texts_by_name
from memplan.units import by_word

Meant = str | Mapping[str, str]
_LORA = {"lora": "--lora", "qlora": "--lora --load-in-4bit", "full": "--no-lora", "*": "--lora"}
_BITS = {"4": "--load-in-4bit", "8": "--load-in-8bit", "*": "--load-in-4bit"}
_CARD = {"*[a-zA-Z]": "--gpu {24GB}", "*": "--gpu {24}GB"}
_FULL = "every sequence is counted as long as sequence_length, as packed ones are"
ELSEWHERE: dict[str, Meant] = by_word(texts_by_name(__file__)) | {
    **dict.fromkeys(("peft", "adapter", "finetuning-type", "train-type"), _LORA),
    "mixed-precision": {"no": "--precision fp32", "*": "--precision {bf16}-amp"},
    **dict.fromkeys(("bits", "quantization-bit"), _BITS),
    **dict.fromkeys(("vram", "memory", "gpu-memory"), _CARD),
    "stage": {"[0-3]": "--zero-stage {3}", "pt": "--method sft", "rm": "--method reward", "*": "--method {dpo}"},
    "deepspeed": {"*.json": "--with {ds_config.json}", "*": "--zero-stage 3"},
}
"""By name: what to type, or that by the value's pattern. What has one meaning and another spelling is an option itself
(``spelling``)."""
LEFT_OUT = {"packing": _FULL, "sample-packing": _FULL}
"""Options that nothing stands for, and why."""


def instead_of(written: str, context: Any, arguments: Sequence[str]) -> str:
    """A hint for an option that is none: another tool's under its name here, one written alike, or nothing."""
    name = written.lstrip("-").replace("_", "-").lower()
    command = getattr(context, "command", None)
    names = [word for param in getattr(command, "params", ()) for word in (*param.opts, *param.secondary_opts)]
    if why := _why_not(name, names):
        return f"leave {written} out: {why}"
    value = _value(written, arguments)
    meant = _meant(name, value) or _of_inner_key(name.replace("-", "_"), value)
    if meant and (not names or meant.split()[0] in names):
        return f"use {meant}"
    return _alike(name, names)


def _value(written: str, arguments: Sequence[str]) -> str:
    """The value that stands behind an option on the command line, or nothing."""
    from memplan.cli.flags import spelling

    for word, after in zip(arguments, (*arguments[1:], "--"), strict=False):
        given, equals, value = word.partition("=")
        if given == written or f"--{spelling(given.lstrip('-'))}" == written:
            value = value if equals else "" if after.startswith("-") else after
            return value if value.isprintable() and " " not in value else ""
    return ""


def _meant(name: str, value: str) -> str:
    meant = ELSEWHERE.get(name, "")
    if not isinstance(meant, str):
        meant = next((text for pattern, text in meant.items() if fnmatch(value, pattern)), "")
    return re.sub(r"{(?:(\d+)×)?(.*?)}", lambda match: _filled(match[1], match[2], value), meant)


def _filled(times: str | None, example: str, value: str) -> str:
    if times is None:
        return value or example
    return str(int(times) * int(value if value.isdecimal() and len(value) < 6 else example))


def _of_inner_key(key: str, value: str) -> str:
    """How a key is set that holds others, or that another key holds: by an option where there is one."""
    from memplan.cli.options import job_options
    from memplan.spec.complaints import inner_fields
    from memplan.spec.job import Job
    from memplan.tables.choices import ALIASES

    held = {outer: inner_fields(field.annotation) for outer, field in Job.model_fields.items()}
    if held.get(key):
        return f"--set {key}.KEY=VALUE, with KEY one of " + ", ".join(held[key])
    prefix, _, rest = key.partition("_")
    rest = ALIASES.get(rest, rest)
    if rest in held.get(prefix, ()):  # --rollout-sleep
        outer, key = prefix, rest
    else:
        outer = next((outer for outer in ("lora", "rollout", *held) if key in held[outer]), "")
    own = next((row for row in job_options() if row.parameter == f"{outer}_{key}"), None) if outer else None
    if own:
        return own.written[0].partition("/")[0] + (f" {value or own.metavar}" if own.metavar else "")
    return f"--set {outer}.{key}={value or 'VALUE'}" if outer else ""


def _why_not(name: str, names: Sequence[str]) -> str:
    """Why an option is left out: it changes nothing, or stands for what a command has not."""
    from memplan.tables.choices import TRAINING_ONLY

    if name.replace("-", "_") in TRAINING_ONLY and "--method" in names:
        return "memory does not feel it"
    return LEFT_OUT.get(name, "")


def _alike(name: str, names: Sequence[str]) -> str:
    """The options of the command that are written alike, another tool's spelling of one for it too."""
    from memplan.cli.flags import LORA_NAMES, spelling
    from memplan.tables.choices import ALIASES

    own = {word[2:] for word in names if word.startswith("--")}
    own -= {word for word in own if word.startswith("no-") and not name.startswith("no-")}
    others = {alias.replace("_", "-") for alias in ALIASES if len(alias) > 1} | set(LORA_NAMES)
    close = (
        [] if len(name) == 1 else nearest(name, sorted(own) + sorted(word for word in others if spelling(word) in own))
    )
    shown = dict.fromkeys(word if word in own else spelling(word) for word in close)
    return "did you mean " + " or ".join(f"--{word}" for word in shown) + "?" if shown else ""
