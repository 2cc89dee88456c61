"""memplan mcp: a server for agents, over standard input and output."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from memplan.errors import EXIT_DONE, UsageError

HELP = """A server of the Model Context Protocol on standard input and output: estimate, check, plan, diagnose, explain.
It reads files of the FOLDERs alone (the working directory where none is named) and ends each call in time.

Example: memplan mcp configs --timeout 120
"""
TIMEOUT_S = 60.0


def mcp(values: Mapping[str, Any]) -> int:
    """Serve until the client leaves."""
    import os

    folders = values.get("folders") or ["."]
    timeout = _seconds(values.get("timeout"))
    for folder in folders:
        if not os.path.isdir(folder):
            raise UsageError(f"{folder}: no such folder", "name folders that the agent may read")
    if find_spec("mcp") is None:
        raise UsageError("memplan mcp needs the mcp SDK", "in the checkout of memplan: pip install '.[mcp]'")
    from memplan.cli.schemas import job_schema
    from memplan.mcp.server import serve

    serve(folders, timeout, job_schema())
    return EXIT_DONE


def _seconds(text: str | None) -> float:
    try:
        found = TIMEOUT_S if text is None else float(text)
    except ValueError:
        found = 0
    if not 1 <= found <= 86400:
        raise UsageError(f"--timeout: {str(text)[:40]!r} is no number of seconds", "write one from 1 to 86400")
    return found
