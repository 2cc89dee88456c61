"""Sockets and the server that speaks HTTP over them."""

from typing import Any

import uvicorn

from memplan.errors import UsageError
from memplan.web.server import Schemas, application

Sockets = list[Any]
LIMIT = 256
"""Connections at once; further ones are told to come again."""


def listen(host: str, port: int) -> Sockets:
    """The sockets of an address, open before anything is said of it. Raises UsageError where they cannot be."""
    import asyncio

    async def opened() -> Sockets:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        found = [each.dup() for each in server.sockets]
        server.close()
        return found

    try:
        return asyncio.run(opened())
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "name another --port, or end what listens there; --host takes an address of this machine"
        raise UsageError(f"cannot listen on {host[:80]} port {port}: {why}", hint) from None


def serve(sockets: Sockets, timeout_s: float, hub: bool, hosts: tuple[str, ...], schema_of: Schemas) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(
        application(timeout_s, hub, hosts, schema_of),
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=LIMIT,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        lifespan="on",
        ws="none",
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=sockets)
