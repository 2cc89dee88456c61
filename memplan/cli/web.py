"""memplan web: the page that answers as one types, from this machine."""

from collections.abc import Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any

from memplan.cli.edge import note, warn
from memplan.errors import EXIT_DONE, UsageError

HELP = """A page with a form that answers as one types, on this machine; beside it a JSON API: /api/estimate, /api/plan,
/api/check, /api/diagnose, which answer as the commands do with --json.

Example: memplan web --open
"""
HOST, PORT, TIMEOUT_S = "127.0.0.1", 8080, 60.0


def web(values: Mapping[str, Any]) -> int:
    """Serve until Ctrl-C."""
    host, port = values.get("host") or HOST, _number(values, "port", PORT, 0, 65535)
    timeout = _number(values, "timeout", TIMEOUT_S, 1, 3600)
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UsageError("memplan web needs starlette and uvicorn", 'pip install "memplan[web]"')
    from memplan.cli.schemas import schema_of
    from memplan.web.server import listen, serve

    sockets = listen(host, int(port))
    address = sockets[0].getsockname()
    place = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}/"
    if not is_loopback(address[0]):
        warn(f"{host}: whoever reaches this machine can ask; leave --host out to keep it to yourself")
    note(f"the page is at {place} (Ctrl-C ends it)")
    if values.get("open_"):
        import webbrowser

        webbrowser.open(place)
    serve(sockets, timeout, bool(values.get("hub")), (host,), schema_of)
    return EXIT_DONE


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it."""
    return ip_address(address.partition("%")[0]).is_loopback


def _number(values: Mapping[str, Any], name: str, otherwise: float, least: int, most: int) -> float:
    text = values.get(name)
    try:
        found = otherwise if text is None else float(text)
    except ValueError:
        found = -1
    if not least <= found <= most or (name == "port" and found != int(found)):
        raise UsageError(f"--{name}: {str(text)[:40]!r} is no number for it", f"write one from {least} to {most}")
    return found
