"""Traces in a process of their own: for a process in which torch was imported before it could be prepared.

``python -m memplan.trace.worker`` reads a job from each line and writes a trace, or an error, for each."""

import gc
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from memplan.errors import MemplanError
from memplan.trace import trace


def serve(lines: Iterable[str], out: TextIO) -> None:
    """Answer each line."""
    for line in lines:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()
        gc.freeze()  # libraries stay: the next trace's collection of garbage need not look at them


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """A trace's JSON, or an error's."""
    try:
        return trace(job).to_dict()
    except MemplanError as error:
        kind, message, hint = type(error).__name__, error.message, error.hint
    except Exception as error:  # told in the parent, which knows how
        kind, message, hint = "InternalError", f"{type(error).__name__}: {str(error)[:300]}", ""
    return {"error": {"kind": kind, "message": message, "hint": hint}}


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
