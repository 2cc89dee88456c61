"""One call in a process of its own: a JSON request on standard input, a JSON answer on standard output."""

import json
import sys
from typing import Any

from memplan.errors import EXIT_BUG, MemplanError
from memplan.mcp.tools import call
from memplan.mcp.within import keep_within

PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); from memplan.mcp.worker import main; main()"
"""What ``python -c`` runs of it: without the working directory among the places to import from."""


def answer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """``result``, or ``error`` with its message, hint and code."""
    try:
        return {"result": call(name, arguments)}
    except MemplanError as error:
        return {"error": {"error": error.message, "hint": error.hint, "code": error.exit_code}}
    except Exception as error:
        message = f"internal error: {type(error).__name__}: {error}"
        return {"error": {"error": message, "hint": "report it with the call", "code": EXIT_BUG}}


def main() -> None:
    """Read, keep to the folders, answer."""
    request = json.loads(sys.stdin.buffer.read())
    keep_within(request["folders"])
    found = answer(request["tool"], request["arguments"])
    sys.stdout.buffer.write(json.dumps(found, default=str).encode())
