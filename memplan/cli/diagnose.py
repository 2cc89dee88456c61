"""memplan diagnose: an out-of-memory error, read."""

import os
import stat
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options, output
from memplan.cli.output import Result
from memplan.errors import EXIT_DONE, UsageError, printable
from memplan.files import instead_of_missing

if TYPE_CHECKING:
    from memplan.diagnose.diagnosis import Diagnosis

HELP = """What an out-of-memory error says: what asked for how much, when, what the tensor was, and what to change.

TEXT is a log, a traceback, a file of it, or - for what is piped or pasted. With the job behind it (a model and options,
or its own config) the tensor is named from its ledger, and the changes are those with which it fits.

Examples: memplan diagnose train.log; memplan diagnose - llama-3.1-8b --method dpo --gpu h100-80gb < error.txt
"""
MOST = 200_000_000
"""Bytes of a log that are looked at: of a longer one, the end."""


def diagnose(values: Mapping[str, Any]) -> int:
    """Read, diagnose, write."""
    from memplan.asked import diagnosis_of

    to = output.read_output(values, shows=True)
    text = text_of(values.get("text"))
    job = any(values.get(name) for name in ("target", "total_params", "with_"))
    to.write(_result(diagnosis_of(text, options.read_given(values) if job else None)))
    return EXIT_DONE


def _result(found: "Diagnosis") -> Result:
    from memplan.render.diagnose_view import diagnose_blocks

    return Result(
        found.to_dict,
        lambda width: list(diagnose_blocks(found, width)),
        lambda: [match.to_dict() for match in found.matches],
        kind="diagnose",
    )


def text_of(given: str | None) -> str:
    """The text: of a file, of what is piped, or the words themselves. Raises UsageError for none."""
    if given is None or given == "-":
        if given is None and sys.stdin.isatty():
            raise UsageError(
                "diagnose which error?", "memplan diagnose train.log, or paste the text after memplan diagnose -"
            )
        return sys.stdin.buffer.read(MOST).decode("utf-8", "replace")
    if "\n" in given or "out of memory" in given.casefold():
        return given
    return _read(given)


def _read(path: str) -> str:
    """The end of a file. Raises UsageError for what is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError(f"{printable(path)} is no file", "name a log, or - for a pipe")
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - MOST))
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        hint = instead_of_missing(path, "name a log, or - and paste the error")
        raise UsageError(f"cannot read {printable(path)}: {error.strerror or 'no such file'}", hint) from None
