"""What is done to arguments before typer reads them.

Flags with a value, as people write them who come from other tools, become plain: --padded true. And options that are
not given are left aside, since typer makes much of each of ninety.
Options may be written with underscores for dashes, and by the names that other tools give to a key."""

from collections.abc import Sequence
from typing import Any

from memplan.cli.parameters import Parameter
from memplan.errors import UsageError
from memplan.tables.choices import ALIASES

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
CHECKPOINTING = "gradient-checkpointing"
LORA, RANK = "--lora", "--lora-r"
WAYS = ("none", "full", "selective", "every:", "keep-")
"""What --gradient-checkpointing may be given, as --recompute is."""


def plain_flags(arguments: Sequence[str], params: Sequence[Parameter], spelling: Any) -> list[str]:
    """The arguments with each value of a flag put into the flag itself: --padded false is --no-padded."""
    flags = {param.words[0][2:] for param in params if param.kind is bool and "/" in param.written[0]}
    waiting = list(arguments)
    made: list[str] = []
    while waiting:
        given = waiting.pop(0)
        if given == "--":
            return [*made, given, *waiting]
        written, equals, value = given.partition("=")
        name = spelling(written[2:]) if written.startswith("--") else ""
        if name not in flags:
            made.append(given)
        elif equals:
            made.append(_plain(name, value))
        elif waiting and _is_value(name, waiting[0]):
            made.append(_plain(name, waiting.pop(0)))
        else:
            made.append(given)
    return made


def _is_value(name: str, word: str) -> bool:
    return word.lower() in (*YES, *NO) or (name == CHECKPOINTING and word.lower().startswith(WAYS))


def _plain(name: str, value: str) -> str:
    """One flag without a value."""
    if value.lower() in YES:
        return f"--{name}"
    if value.lower() in NO:
        return f"--no-{name}"
    if name == CHECKPOINTING:
        return f"--recompute={value}"
    hint = f"write {RANK} {value}" if f"--{name}" == LORA and value.isdecimal() else f"write --{name} or --no-{name}"
    raise UsageError(f"--{name}: neither true nor false: {value[:80]!r}", hint)


def given_only(params: Sequence[Parameter], arguments: Sequence[str], spelling: Any) -> list[Parameter]:
    """The positional parameters, and the options that the arguments name; all where one is not known, to be told so."""
    by_word = {word: param for param in params for word in param.words}
    kept = dict.fromkeys(param for param in params if not param.written)
    for argument in arguments[: arguments.index("--") if "--" in arguments else None]:
        if argument.startswith("-") and argument != "-":
            word = argument.partition("=")[0]
            dashes = "--" if word.startswith("--") else "-"
            param = by_word.get(dashes + spelling(word[len(dashes) :]))
            if param is None:
                return list(params)
            kept[param] = None
    return list(kept)


LORA_B_BIAS = "lora-b-bias"
"""PEFT's ``lora_bias``, beside its ``bias``, which is --lora-bias."""
LORA_NAMES = {
    "lora-rank": "lora-r",
    "lora-target": "lora-targets",
    "lora-target-modules": "lora-targets",
    "lora-lora-bias": LORA_B_BIAS,
    "no-lora-lora-bias": f"no-{LORA_B_BIAS}",
}
"""What other tools call LoRA's options, and what they were called."""


def spelling(name: str) -> str:
    """An option's own name for one that other tools use: max_length -> sequence-length. One letter stays."""
    dashed = name.replace("_", "-")
    if len(name) == 1 or dashed == "recompute":
        return dashed
    if dashed in ("use-lora", "no-use-lora"):
        return dashed.replace("use-", "")
    return LORA_NAMES.get(dashed) or ALIASES.get(dashed.replace("-", "_"), dashed).replace("_", "-")
