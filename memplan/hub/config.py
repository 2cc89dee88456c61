"""A model's config.json: from the cache, else from the Hub; anything else than a JSON object is an error."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from memplan.hub.cache import cached_file
from memplan.hub.refusal import RefusedError, Wanted, refusal

MAX_CONFIG_BYTES = 10_000_000
"""The largest config.json in use is far below 1 MB."""
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64_000_000
MAX_DEPTH = 64
"""Levels of nesting: real configs have fewer than ten, and code that walks one must not run out of stack."""

_ID = re.compile(r"(?:[A-Za-z0-9_](?:[\w.-]*\w)?/)?[A-Za-z0-9_](?:[\w.-]*\w)?", re.ASCII)
_URL = re.compile(r"https?://[^/]+/([\w.-]+/[\w.-]+)(?:/.*)?", re.ASCII)


@dataclass(frozen=True)
class HubConfig:
    """A config.json and where it came from."""

    config: dict[str, Any]
    repo_id: str
    revision: str | None
    """As it was asked for; None is the branch 'main'."""
    commit: str | None
    origin: Literal["cache", "hub"]
    path: Path
    """Of the file in the cache."""


def fetch_config(repo_id: str, revision: str | None = None, presets: Iterable[str] = ()) -> HubConfig:
    """The config.json of a repository, from the cache when it is there, else from the Hub.

    Raises ModelNotFound, within 10 s, where there is none; ``presets`` are names that its hint may suggest."""
    wanted = Wanted(repo_id, revision or None, "config.json", tuple(presets))
    try:
        check_repo_id(repo_id)
        return _cached(wanted) or _downloaded(wanted)
    except Exception as error:  # whatever the Hub and the libraries below come up with is told in two lines
        raise refusal(wanted, error) from error


def check_repo_id(repo_id: str) -> None:
    """Refuse what the Hub would not accept as a repository id, before it becomes part of a path or a URL."""
    url = _URL.fullmatch(repo_id)
    if url:
        raise RefusedError("is-a-url", url.group(1))
    too_long = any(len(part) > 96 for part in repo_id.split("/"))
    if not _ID.fullmatch(repo_id) or "--" in repo_id or ".." in repo_id or repo_id.endswith(".git") or too_long:
        raise RefusedError("invalid-id")


def read_json_object(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in a file; RefusedError, with the reason, for anything else, and before a pipe is waited for."""
    if not path.is_file():
        raise RefusedError("not-json", "no regular file")
    if path.stat().st_size > limit:
        raise RefusedError("too-large", f"{path.stat().st_size:,} bytes, at most {limit:,} are read")
    text = path.read_bytes()
    if text.lstrip()[:1] == b"<":
        raise RefusedError("not-json", "an HTML or XML page, not JSON")
    try:
        value = json.loads(text)
    except RecursionError:
        raise RefusedError("not-json", "nested too deeply") from None
    except ValueError as error:
        raise RefusedError("not-json", f"no valid JSON, {error}") from None
    if not isinstance(value, dict):
        raise RefusedError("not-json", f"a JSON {type(value).__name__}, not an object")
    if _is_deeper(value, MAX_DEPTH):
        raise RefusedError("not-json", "nested too deeply")
    return value


def _cached(wanted: Wanted) -> HubConfig | None:
    """From the cache; None when it is not there."""
    path = cached_file(wanted.repo_id, wanted.file, wanted.revision)
    if path is None:
        return None
    try:
        config = read_json_object(path, MAX_CONFIG_BYTES)
    except (RefusedError, OSError) as error:
        # The blob behind the link: without it, huggingface_hub downloads the file again.
        reason = error.detail if isinstance(error, RefusedError) else error.strerror
        raise RefusedError("cached-not-json", f"{reason} ({path.resolve()})") from error
    return HubConfig(config, wanted.repo_id, wanted.revision, path.parent.name, "cache", path)


def _downloaded(wanted: Wanted) -> HubConfig:
    """From the Hub, into the cache."""
    from memplan.hub import network

    network.refuse_offline()
    path, commit = network.within(
        lambda: network.download(wanted.repo_id, wanted.file, wanted.revision, MAX_CONFIG_BYTES)
    )
    try:
        config = read_json_object(path, MAX_CONFIG_BYTES)
    except RefusedError:
        # What is of no use must not be found in the cache by the next call, after the server is mended.
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise
    if "quantization_config" in config:  # the names of its tensors tell which are not, where its lists do not
        with suppress(Exception):
            network.within(lambda: network.download(wanted.repo_id, INDEX, commit, MAX_INDEX_BYTES))
    return HubConfig(config, wanted.repo_id, wanted.revision, commit, "hub", path)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether containers are nested in more than so many levels, found without recursion."""
    layer = [value]
    for _ in range(levels):
        children = (child for item in layer for child in (item.values() if isinstance(item, dict) else item))
        layer = [child for child in children if isinstance(child, dict | list)]
        if not layer:
            return False
    return True
