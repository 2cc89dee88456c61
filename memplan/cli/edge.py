"""The edge: where every error becomes two lines and an exit code, and every remark a line on standard error."""

import errno
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from memplan.cli.output import HANDLER
from memplan.errors import EXIT_BUG, EXIT_USAGE, MemplanError, printable
from memplan.lang import said

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a disk says that takes no more."""
LONGEST = 400
"""Characters of a line on standard error: names come from outside, and may be as long as anyone likes."""


def guarded(work: Callable[[], int], arguments: Sequence[str] = ()) -> int:
    """Run a command line of these arguments; the exit code, with every error told, as JSON on standard output too where
    they ask for JSON. A traceback only where MEMPLAN_DEBUG=1 asks for it.

    Raises KeyboardInterrupt alone, for Ctrl-C."""
    try:
        return work()
    except Exception as error:
        if type(error).__name__ == "Abort":  # typer's word for Ctrl-C, of its own or of click's module by version
            raise KeyboardInterrupt from None
        message, hint, code = _words(error, arguments)
        _traceback(error)
        _say(marked("error", message))
        if hint:
            _say(marked("hint", hint))
        if wants_json(arguments):
            _say_json({"error": " ".join(message.split()), "hint": " ".join(hint.split()), "code": code})
        return code


def _words(error: Exception, arguments: Sequence[str]) -> tuple[str, str, int]:
    """Message, hint and exit code of an error."""
    if isinstance(error, MemplanError):
        return error.message, _as_options(_hint(error), arguments), error.exit_code
    if isinstance(error, OSError) and error.errno in FULL:
        where = f" ({error.filename})" if error.filename else ""
        return f"cannot write: {error.strerror}{where}", "make room, or set TMPDIR", EXIT_USAGE
    if hasattr(error, "format_message"):
        return *usage_words(error, arguments), EXIT_USAGE
    words = f"internal error: {type(error).__name__}: {error}"
    return words, "set MEMPLAN_DEBUG=1 to see where, and report it with the command", EXIT_BUG


def _hint(error: MemplanError) -> str:
    """In the words of the file that the job came from, where it has some."""
    if not getattr(error, "changes", None):
        return error.hint
    from memplan.frameworks.own_words.words import own_hint

    return own_hint(error)


def _as_options(hint: str, arguments: Sequence[str]) -> str:
    """A hint with the keys that stand on the command line written as there, "batch_size: 4" as "--batch-size 4"; where
    no file is named, which may be where they stand, any key."""
    from memplan.cli.flags import spelling
    from memplan.spec.job import Job

    plain = any(os.path.exists(word) for word in arguments if not word.startswith("-"))
    named = [spelling(word[2:].partition("=")[0]) for word in arguments if word.startswith("--")]
    for name in dict.fromkeys([*named, *([] if plain else (key.replace("_", "-") for key in Job.model_fields))]):
        key = re.escape(name.replace("-", "_"))
        if key:
            either = f"{key}|{key.replace('lora_', 'lora.', 1)}"
            hint = re.sub(rf"\b(write|use|such as|with) (?:{either}): (?=[^{{\[\s])", rf"\1 --{name} ", hint)
    return hint


def _traceback(error: Exception) -> None:
    if os.environ.get("MEMPLAN_DEBUG") == "1":
        import traceback

        from memplan.hub.refusal import without_secrets

        _say(without_secrets("".join(traceback.format_exception(error)).rstrip("\n")))


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line, which may not be one that typer can parse, asks for JSON."""
    words = [word.lower() for word in (arguments[: arguments.index("--")] if "--" in arguments else arguments)]
    return bool({"--json", "--summary", "--format=json"} & set(words)) or "\n--format\njson" in "\n" + "\n".join(words)


def _say_json(values: Mapping[str, Any]) -> None:
    """An object on standard output, which may be closed or full."""
    import json

    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.write(json.dumps(values, indent=2) + "\n")
        sys.stdout.flush()


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


def one_line(text: str, hint: str = "") -> str:
    """One line that a terminal can show: no control or half characters, not too long; a hint at its end is whole."""
    most = LONGEST - min(len(hint), LONGEST // 2)
    if len(text) > most:
        text = text[: most - 1] + "…"
    return printable(" ".join(f"{text}{f'; {hint[: 4 * LONGEST]}' if hint else ''}".split()))


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


def usage_words(error: Any, arguments: Sequence[str] = ()) -> tuple[str, str]:
    """Message and hint for what typer cannot parse. Errors are click's or those of typer's own copy: told by names."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or "memplan"
    more = f"see {path} --help"
    option = getattr(error, "option_name", None)
    text = str(error.format_message()).strip().rstrip(".")
    message = text[:1].lower() + text[1:]
    if type(error).__name__ == "NoSuchOption":
        from memplan.cli.elsewhere import instead_of

        return f"no such option: {option}", instead_of(str(option), context, arguments) or more
    if "unexpected extra argument" in message:
        return _one_too_many(message, arguments, more)
    return message, more


def _one_too_many(message: str, arguments: Sequence[str], more: str) -> tuple[str, str]:
    """Message and hint for a word that nothing asks for: perhaps a value behind a flag."""
    word = re.sub(r"^.*\(|\).*$", "", message).split(" ")[0]
    before = arguments[arguments.index(word) - 1] if word in arguments[1:] else ""
    if before.startswith("--") and "=" not in before:
        from memplan.cli.flags import LORA, RANK

        meant = f"{RANK} {word}" if before == LORA and word.isdecimal() else before
        return f"{before} takes no value: {word!r}", f"write {meant}"
    return f"one argument too many: {word!r}", f"options begin with --; {more}"
