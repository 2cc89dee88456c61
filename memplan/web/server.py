"""The page from this machine: files of the page, and the JSON API, to those who may ask."""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memplan.errors import UsageError
from memplan.web.answers import KINDS, LARGEST, MALFORMED, REFUSED
from memplan.web.lanes import Answer, Kept, Lane, error
from memplan.web.page import page_file

KEPT_BYTES = 32 * 1024 * 1024
"""Of answers that were given, for those who ask the same."""
SECONDS_TO_SEND = 20.0
"""For a body to arrive."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Of every answer: a page that loads nothing from elsewhere, and that no other page may read or frame."""
Schemas = Callable[[str], Mapping[str, Any]]
SCHEMAS = ("job", "report", "compare", "plan", "check")


def application(
    timeout_s: float = 60.0, hub: bool = False, hosts: tuple[str, ...] = (), schema_of: Schemas | None = None
) -> ASGIApp:
    """The whole of it. ``hosts``: names, beside this machine's own, by which the page may be asked for."""
    quick, long, kept = Lane(timeout_s, hub), Lane(timeout_s, hub), Kept(KEPT_BYTES)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warm = [asyncio.ensure_future(lane.start()) for lane in (quick, long)]
        yield
        for task in warm:
            task.cancel()
        for lane in (quick, long):
            await lane.stop()

    def api(kind: str) -> Route:
        async def asked(request: Request) -> Response:
            kind_of_media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind_of_media != "application/json":  # what a form of another page can send is none
                hint = "send it with content-type: application/json"
                return _response(error(415, f"{kind} takes JSON", hint))
            body = await _body(request)
            if not isinstance(body, bytes):
                return _response(body)
            found = kept.get((kind, body))
            if found is None:
                try:
                    text = body.decode()
                except ValueError:
                    return _response(error(MALFORMED, "the body is no UTF-8", "send JSON in UTF-8"))
                found = await (quick if b'"quick"' in body else long).ask(kind, text)
                if found.status in (200, REFUSED) and b"took longer than" not in found.body:
                    kept.put((kind, body), found)
            return _response(found)

        return Route(f"/api/{kind}", asked, methods=["POST"])

    async def schema(request: Request) -> Response:
        what = request.query_params.get("of", "job")
        if what not in SCHEMAS or schema_of is None:
            return _response(error(404, f"no schema of {what[:40]!r}", f"known: {', '.join(SCHEMAS)}"))
        from memplan.render.data import to_json

        return _response(Answer(200, to_json(schema_of(what)).encode()))

    async def file(request: Request) -> Response:
        found = page_file(request.path_params.get("name", "index.html"))
        if found is None:
            raise HTTPException(404)
        return Response(found[0], media_type=found[1], headers={"cache-control": "no-cache"})

    routes = [*map(api, KINDS), Route("/api/schema", schema), Route("/", file), Route("/{name}", file)]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refused})
    return Guarded(app, hosts)


async def _body(request: Request) -> bytes | Answer:
    """The body, of bounded size, come in bounded time; or the error that it is."""
    too_large = error(413, f"the body is larger than {LARGEST >> 20} MiB", "of a log, send the end")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > LARGEST:
        return too_large
    try:
        found = await asyncio.wait_for(_come(request), SECONDS_TO_SEND)
    except asyncio.TimeoutError:
        return error(408, f"the body took longer than {SECONDS_TO_SEND:g} s", "send it at once")
    except ClientDisconnect:
        return error(MALFORMED, "the body broke off", "send it whole")
    return too_large if len(found) > LARGEST else found


async def _come(request: Request) -> bytes:
    """What has come, and no more of it than a byte too many."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > LARGEST:
            break
    return bytes(found)


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, {"cache-control": "no-store"}, "application/json")


async def _refused(_: Request, refused: Exception) -> Response:
    """What is not there, or not by this method."""
    assert isinstance(refused, HTTPException)
    hints = {404: "the page is at /, the API at /api/" + ", /api/".join(KINDS), 405: "POST JSON to /api/estimate"}
    return _response(error(refused.status_code, refused.detail.lower(), hints.get(refused.status_code, "see /")))


class Guarded:
    """What comes before all else: who asks by which name, and what every answer says to browsers."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app, self._hosts = app, {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse to."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *RAW_HEADERS]
            await send(message)

        refused = None
        if not is_known(host, self._hosts):
            # A page elsewhere whose name has come to mean this machine (DNS rebinding) asks by that name.
            hint = "ask by an address or localhost, or start memplan web with --host NAME"
            refused = error(421, f"this is no server of {host[:80]!r}", hint)
        elif origin is not None and origin.partition("://")[2] != host:
            refused = error(403, f"a page of {origin[:80]!r} may not ask", "open the page of this server")
        await (self._app if refused is None else _response(refused))(scope, receive, dressed)
        return None


RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def is_known(host: str, names: Container[str]) -> bool:
    """Whether a Host header is an address, or one of the names."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
    if name.lower() in names:
        return True
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


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
