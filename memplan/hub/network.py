"""The one place that talks to the network, through huggingface_hub, with an end to every wait.

huggingface_hub alone waits about 23 s for a server that is down, and without end for one that trickles. Here one
request without retries goes first, and all of it runs in a daemon thread that is left behind at a deadline."""

import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import urljoin, urlsplit

from memplan.hub.cache import DEFAULT_REVISION, cache_folder
from memplan.hub.refusal import RefusedError, shown_endpoint

DEADLINE_S = 8.0
"""Longest wait for one answer: with the start of Python and the report, an error still comes within 10 s."""
_THREADS = 8
_MAX_REDIRECTS = 5
_TRUE = {"1", "ON", "YES", "TRUE"}
_NAMES_FILES = ("X-Repo-Commit", "ETag", "X-Linked-Etag", "X-Xet-Hash")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,127}", re.ASCII)
_T = TypeVar("_T")
_Results: TypeAlias = "queue.SimpleQueue[tuple[_T | None, Exception | None]]"


@dataclass(frozen=True)
class Found:
    """A file that the Hub has, as its HEAD answer describes it."""

    commit: str
    size: int | None


def endpoint() -> str | None:
    """HF_ENDPOINT as it is now (huggingface_hub reads it once, at import); None for the public Hub."""
    text = (os.environ.get("HF_ENDPOINT") or "").rstrip("/")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        usable = False
    if text and not usable:
        raise RefusedError("bad-endpoint", repr(shown_endpoint()))
    return text or None


def refuse_offline() -> None:
    """Stop here when the user wants no network."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in _TRUE:
            raise RefusedError("offline", variable)


def within(work: Callable[[], _T]) -> _T:
    """The result of ``work``, or TimeoutError when it takes longer than the deadline.

    The thread is a daemon: one that never ends keeps neither the caller nor the interpreter's exit waiting."""
    return gather([None], lambda _: work())[0]


def make_ready() -> None:
    """Import huggingface_hub and open its session: on a slow machine seconds, which are none of the Hub's."""
    from huggingface_hub import errors, hf_hub_download, hf_hub_url  # noqa: F401

    _session()


def gather(items: Sequence[Any], work: Callable[[Any], _T], since: float | None = None) -> list[_T]:
    """``work`` of every item, a few at a time, in any order.

    TimeoutError when none ends for as long as the deadline; the first wait counts from ``since`` (monotonic time)."""
    make_ready()
    todo = deque(items)
    done: _Results[_T] = queue.SimpleQueue()

    def run() -> None:
        with suppress(IndexError):  # the end of the work: another thread may take the last item first
            while True:
                item = todo.popleft()
                done.put(_outcome(work, item))

    for _ in range(min(_THREADS, len(items))):
        threading.Thread(target=run, name="memplan-hub", daemon=True).start()
    elapsed = time.monotonic() - since if since else 0.0
    try:
        return [_next(done, 0.0 if position else elapsed) for position in range(len(items))]
    finally:
        todo.clear()


def _outcome(work: Callable[[Any], _T], item: Any) -> tuple[_T | None, Exception | None]:
    """The result or the error of one item, to be handed to the waiting thread."""
    try:
        return work(item), None
    except Exception as error:
        return None, error


def _next(done: "_Results[Any]", elapsed: float) -> Any:
    """The next result; its error is raised here."""
    try:
        result, error = done.get(timeout=max(0.0, DEADLINE_S - elapsed))
    except queue.Empty:
        raise TimeoutError(f"no answer within {DEADLINE_S:g} s") from None
    if error is not None:
        raise error
    return result


def find(repo_id: str, filename: str, revision: str | None) -> Found:
    """Ask once what the Hub has under a name; huggingface_hub's own errors when it has nothing.

    Releases of huggingface_hub differ in how often, and for how long, they ask; so the request is made here."""
    url = file_url(repo_id, filename, revision or DEFAULT_REVISION)
    headers = _head(url)
    _refuse_paths(headers)
    commit, etag = headers.get("X-Repo-Commit"), headers.get("X-Linked-Etag") or headers.get("ETag")
    if not commit or not etag:
        raise RefusedError("protocol", "no commit and ETag in the answer")
    size = headers.get("X-Linked-Size") or headers.get("Content-Length") or ""
    return Found(commit, int(size) if size.isdecimal() else None)


def find_first(repo_id: str, filenames: Sequence[str], revision: str | None) -> tuple[str, str] | None:
    """The first of some files that the repository has, and the commit; None when it has none of them."""
    from huggingface_hub.errors import EntryNotFoundError

    for filename in filenames:
        with suppress(EntryNotFoundError):
            return filename, find(repo_id, filename, revision).commit
    return None


def file_url(repo_id: str, filename: str, revision: str) -> str:
    """Where a file is at the Hub."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(repo_id, filename, revision=revision, endpoint=endpoint())


def download(repo_id: str, filename: str, revision: str | None, limit: int) -> tuple[Path, str]:
    """Path in the cache, and commit, of a small file that was downloaded into it."""
    from huggingface_hub import hf_hub_download

    found = find(repo_id, filename, revision)
    if found.size is not None and found.size > limit:
        raise RefusedError("too-large", f"{found.size:,} bytes, at most {limit:,} are read")
    with _quiet(), _plain_names():
        path = hf_hub_download(
            repo_id, filename, revision=revision, cache_dir=cache_folder(), endpoint=endpoint(), etag_timeout=DEADLINE_S
        )
    return Path(path), found.commit


def read_start(url: str, count: int) -> bytes:
    """The first ``count`` bytes of a file; a server that ignores the range is hung up on, not read to the end."""
    end = time.monotonic() + DEADLINE_S
    start = bytearray()
    with _stream(url, count) as parts:
        for part in parts:
            start += part
            if len(start) >= count:
                break
            if time.monotonic() > end:
                raise TimeoutError(f"no answer within {DEADLINE_S:g} s")
    return bytes(start[:count])


def _head(url: str) -> Mapping[str, str]:
    """The headers of a HEAD request, redirects within the host followed.

    A redirect to another host leads to the storage: what describes the file comes with the redirect itself."""
    import huggingface_hub.utils

    utils: Any = huggingface_hub.utils
    headers = {**utils.build_hf_headers(), "Accept-Encoding": "identity"}
    for _ in range(_MAX_REDIRECTS):
        session, follow = _session()
        response = session.request("HEAD", url, headers=headers, timeout=DEADLINE_S, **{follow: False})
        utils.hf_raise_for_status(response)
        target = urljoin(url, response.headers.get("Location", url))
        if response.status_code // 100 != 3 or urlsplit(target)[:2] != urlsplit(url)[:2]:
            return cast("Mapping[str, str]", response.headers)
        url = target
    raise RefusedError("redirects")


@contextmanager
def _stream(url: str, count: int) -> Iterator[Iterator[bytes]]:
    """The body of a ranged GET as it arrives."""
    import huggingface_hub.utils

    utils: Any = huggingface_hub.utils
    session, follow = _session()
    headers = {**utils.build_hf_headers(), "Range": f"bytes=0-{count - 1}", "Accept-Encoding": "identity"}
    options = {"headers": headers, "timeout": DEADLINE_S, follow: True}
    opened = session.stream("GET", url, **options) if _is_httpx(session) else session.get(url, stream=True, **options)
    with opened as response:
        utils.hf_raise_for_status(response)
        yield response.iter_bytes() if _is_httpx(session) else response.iter_content(1 << 12)


def _session() -> tuple[Any, str]:
    """huggingface_hub's session and its word for following redirects: httpx's from 1.0 on, requests' before."""
    import huggingface_hub.utils

    utils: Any = huggingface_hub.utils
    session = utils.get_session()
    return session, "follow_redirects" if _is_httpx(session) else "allow_redirects"


def _refuse_paths(headers: Mapping[str, str]) -> None:
    """Refuse an answer that names a file by anything but plain letters: huggingface_hub puts these headers into paths
    of the cache as they are, and ``../`` would lead out of it."""
    for name in _NAMES_FILES:
        value = headers.get(name)
        if value and not _PLAIN.fullmatch(value.removeprefix("W/").strip('"')):
            raise RefusedError("protocol", f"{name} {value[:40]!r} is no plain name")


@contextmanager
def _plain_names() -> Iterator[None]:
    """Hold every answer that huggingface_hub itself gets against the same rule: it asks again."""

    def check(response: Any, *_: Any, **__: Any) -> None:
        try:
            _refuse_paths(response.headers)
        except RefusedError:
            response.close()
            raise

    session, _ = _session()
    held = session.event_hooks if _is_httpx(session) else session.hooks
    before = list(held["response"])
    _set_hooks(session, [*before, check])
    try:
        yield
    finally:
        _set_hooks(session, before)


def _set_hooks(session: Any, hooks: list[Any]) -> None:
    """What a session calls with each response."""
    if _is_httpx(session):
        session.event_hooks = {**session.event_hooks, "response": hooks}
    else:
        session.hooks["response"] = hooks


def _is_httpx(session: Any) -> bool:
    """Whether a session is httpx's: requests has an attribute of that name too, which is no method."""
    return callable(session.stream)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep huggingface_hub's own progress bars and remarks about retries off the terminal, and put them back after.

    What is quiet already is left alone: the user wants it so, or a call that was left behind has still to end."""
    import logging

    import huggingface_hub.utils

    utils: Any = huggingface_hub.utils
    verbosity = utils.logging.get_verbosity()
    bars = not utils.are_progress_bars_disabled() and "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ
    utils.logging.set_verbosity(logging.CRITICAL)
    if bars:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if verbosity != logging.CRITICAL:
            utils.logging.set_verbosity(verbosity)
        if bars:
            utils.enable_progress_bars()
