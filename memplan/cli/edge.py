"""The edge: where every error becomes two lines and an exit code, and every remark a line on standard error."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from memplan.cli.characters import HANDLER
from memplan.errors import EXIT_BUG, EXIT_USAGE, MemplanError, printable
from memplan.lang import said

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a disk says that takes no more."""
LONGEST = 400
"""Characters of a line on standard error: names come from outside, and may be as long as anyone likes."""


def guarded(work: Callable[[], int]) -> int:
    """Run a command line; the exit code, with every error told. A traceback only where MEMPLAN_DEBUG=1 asks for it.

    Raises KeyboardInterrupt alone, for Ctrl-C.
    """
    try:
        return work()
    except MemplanError as error:
        return _told(error, error.message, error.hint, error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            where = f" ({error.filename})" if error.filename else ""
            return _told(error, f"cannot write: {error.strerror}{where}", "make room, or set TMPDIR", EXIT_USAGE)
        if type(error).__name__ == "Abort":  # typer's word for Ctrl-C, of its own or of click's module by version
            raise KeyboardInterrupt from None
        if hasattr(error, "format_message"):
            message, hint = usage_words(error)
            return _told(error, message, hint, EXIT_USAGE)
        words = f"internal error: {type(error).__name__}: {error}"
        return _told(error, words, "set MEMPLAN_DEBUG=1 to see where, and report it with the command", EXIT_BUG)


def _told(error: Exception, message: str, hint: str, code: int) -> int:
    if os.environ.get("MEMPLAN_DEBUG") == "1":
        import traceback

        from memplan.hub.refusal import without_secrets

        _say(without_secrets("".join(traceback.format_exception(error)).rstrip("\n")))
    _say(marked("error", message))
    if hint:
        _say(marked("hint", hint))
    return code


def note(text: str) -> None:
    """Something that the user asked to be told."""
    _say(marked("note", text))


def warn(text: str) -> None:
    """Something that the user may not expect."""
    _say(marked("warning", text))


def marked(mark: str, text: str) -> str:
    """'error: …' in the language that is spoken."""
    said_mark = said(f"{mark}:")
    return one_line(said_mark + (" " if said_mark.endswith(":") else "") + said(text))


def one_line(text: str) -> str:
    """One line that a terminal can show: no control characters, no half characters, no more than it can read."""
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return printable(" ".join(text.split()))


def _say(text: str) -> None:
    """A line on standard error, which may be closed, full, or unable to show some characters."""
    if sys.stderr is None:
        return
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    try:
        sys.stderr.write(text.encode(encoding, HANDLER).decode(encoding) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def usage_words(error: Any) -> tuple[str, str]:
    """Message and hint for what typer cannot parse. Errors are click's or those of typer's own copy: told by names."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or "memplan"
    more = f"see {path} --help"
    option = getattr(error, "option_name", None)
    text = str(error.format_message()).strip().rstrip(".")
    message = text[:1].lower() + text[1:]
    if type(error).__name__ == "NoSuchOption":
        return f"no such option: {option}", _near_options(str(option), context) or more
    if "unexpected extra argument" in message:
        return message, f"one argument too many: options begin with --; {more}"
    return message, more


ELSEWHERE = {
    "qlora": "--lora --load-in-4bit",
    "bf16": "--precision bf16-amp",
    "fp16": "--precision fp16-amp",
    "bs": "--batch-size",
    "liger": "--kernels liger",
    "use-liger-kernel": "--kernels liger",
    "flash-attn": "--attention flash",
    "deepspeed": "--zero-stage, or --with ds_config.json",
    "zero": "--zero-stage",
    "fsdp": "--sharding fsdp2",
    "grad-accum": "--gradient-accumulation-steps",
    "num-generations": "--set rollout.group_size=N",
}
"""What other tools' options are called here; those of one meaning and another spelling are options themselves."""


def _near_options(option: str, context: Any) -> str:
    """The option here of another tool's name, or the options of the command that are written alike."""
    from memplan.errors import nearest

    command = getattr(context, "command", None)
    names = [name for param in getattr(command, "params", ()) for name in (*param.opts, *param.secondary_opts)]
    meant = ELSEWHERE.get(option.lstrip("-").replace("_", "-"), "")
    meant = meant or _of_inner_key(option.lstrip("-").replace("-", "_"))
    if meant.split()[:1] and meant.split()[0].rstrip(",") in names:
        return f"use {meant}"
    close = nearest(option.lstrip("-"), [name.lstrip("-") for name in names if name.startswith("--")])
    return "did you mean " + " or ".join(f"--{name}" for name in close) + "?" if close else ""


def _of_inner_key(key: str) -> str:
    """How a key is set that holds others, or that another key holds."""
    from memplan.spec.job import Job
    from memplan.spec.reading import inner_fields

    held = {outer: inner_fields(field.annotation) for outer, field in Job.model_fields.items()}
    if held.get(key):
        return f"--set {key}.KEY=VALUE, with KEY one of " + ", ".join(held[key])
    return next((f"--set {outer}.{key}=VALUE" for outer, inner in held.items() if key in inner), "")
