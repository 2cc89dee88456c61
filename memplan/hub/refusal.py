"""What the Hub refuses, and why, in two lines: a table of cases, and the case of each exception.

Exceptions are told apart by the names of their classes. Their homes moved between the releases of huggingface_hub
(requests below 1.0, httpx above), their names did not."""

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from memplan.errors import ModelNotFound, nearest
from memplan.hub.cache import DEFAULT_REVISION, cached_models, cached_revisions
from memplan.presets import near_models
from memplan.tables.texts import texts_by_name
from memplan.units import pairs_of

PUBLIC_ENDPOINT = "https://huggingface.co"

CASES = {name: text.split(" | ") for name, text in texts_by_name(__file__).items()}
"""Message and hint of each case."""

_CASE_OF_CLASS = pairs_of(
    """OfflineModeIsEnabled=offline HFValidationError=invalid-id GatedRepoError=gated RepositoryNotFoundError=missing
    RevisionNotFoundError=revision EntryNotFoundError=no-file FileMetadataError=protocol UnicodeEncodeError=token-text
    TooManyRedirects=redirects RecursionError=redirects Timeout=slow TimeoutException=slow TimeoutError=slow
    RemoteProtocolError=incomplete ChunkedEncodingError=incomplete ContentDecodingError=incomplete
    DecodingError=incomplete NetworkError=unreachable ProxyError=unreachable ConnectionError=unreachable"""
)
"""Class names, the more special first; the first that an exception descends from decides."""

_CASE_OF_STATUS = {401: "bad-token", 403: "forbidden", 429: "busy"}
_WITH_TOKEN = {"gated": "gated-token", "missing": "missing-token"}


@dataclass(frozen=True)
class Wanted:
    """What was asked for: everything that a refusal needs to say."""

    repo_id: str
    revision: str | None = None
    file: str = "config.json"
    presets: tuple[str, ...] = ()


class RefusedError(Exception):
    """A case of the table, raised where what was wanted is not at hand."""

    def __init__(self, case: str, detail: str = "") -> None:
        super().__init__(case, detail)
        self.case = case
        self.detail = detail


def refusal(wanted: Wanted, error: Exception) -> ModelNotFound:
    """The two-line error for anything that went wrong on the way to what was wanted."""
    case, detail = (error.case, error.detail) if isinstance(error, RefusedError) else _case_of(error)
    message, hint = CASES[case]
    what = repr(wanted.repo_id) + (f" at revision {wanted.revision!r}" if wanted.revision else "")
    fields = {
        "what": what,
        "repo": wanted.repo_id,
        "revision": wanted.revision or DEFAULT_REVISION,
        "file": wanted.file,
        "endpoint": shown_endpoint(),
        "page": f"{shown_endpoint()}/{wanted.repo_id}",
        "detail": detail,
    }
    message, hint = without_secrets(message.format(**fields)), without_secrets(hint.format(**fields))
    return ModelNotFound(message, hint + _alternative(wanted, case))


def shown_endpoint() -> str:
    """HF_ENDPOINT without what is secret in it."""
    return without_secrets((os.environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/"))


def without_secrets(text: str) -> str:
    """A text without the name and password, the query and what looks like a token that HF_ENDPOINT may hold."""
    endpoint = os.environ.get("HF_ENDPOINT") or ""
    address, mark, query = endpoint.partition("?")
    account, at, rest = address.partition("//")[2].rpartition("@") if "//" in address else address.rpartition("@")
    secrets = {account + at: "", mark + query: "", query: "…", **dict.fromkeys(_TOKEN.findall(rest), "…")}
    secrets |= dict.fromkeys([each for each in account.split(":") if len(each) >= LEAST_SECRET], "…")
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        for spelling in (secret, unquote(secret)):
            text = text.replace(spelling, secrets[secret])
    return text


LEAST_SECRET = 6
"""Characters of a name or a password that is worth hiding where it stands alone."""
_TOKEN = re.compile(r"(?<=/)(?:hf_|api_)[^/?#]+|(?<=/)(?=[^/?#]*\d)[\w~=+-]{20,}")


def _case_of(error: Exception) -> tuple[str, str]:
    """The case and the detail of an exception of huggingface_hub or of the HTTP library below it."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "LocalEntryNotFoundError" in kinds and isinstance(error.__cause__, Exception):
        return _case_of(error.__cause__)
    case = next((case for name, case in _CASE_OF_CLASS.items() if name in kinds), "")
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if case in _WITH_TOKEN and "authorization" in getattr(getattr(response, "request", None), "headers", {}):
        return _WITH_TOKEN[case], ""
    if case:
        return case, "HF_HUB_OFFLINE" if case == "offline" else _detail(error)
    if status is not None:
        return _CASE_OF_STATUS.get(status, "server"), str(status)
    if isinstance(error, OSError):
        return ("no-disk", error.strerror) if error.strerror else ("incomplete", _detail(error))
    return "protocol", _detail(error)


def _detail(error: Exception) -> str:
    """The cause in a few words: the system's own where the HTTP library wraps them in many."""
    text = " ".join(str(error).split())
    system = re.search(r"\[Errno -?\d+\] ([^'\")\]]+)", text)
    if system:
        return system.group(1).strip().lower()
    sentence = text.split(". ")[0].rstrip(".")
    return sentence if 0 < len(sentence) <= 120 else type(error).__name__


def _alternative(wanted: Wanted, case: str) -> str:
    """'; or use …' with what needs no network: another cached revision, a cached model, a preset."""
    if case in ("is-a-url", "bad-endpoint"):
        return ""
    revisions = [name for name in cached_revisions(wanted.repo_id) if name != wanted.revision]
    if revisions and wanted.revision:
        return f"; cached is revision {revisions[0]}"
    close = near_models(wanted.repo_id.rpartition("/")[2], count=1) if wanted.presets else []
    names = [f"the preset {name}" for name in close]
    cached = (name for name in cached_models() if name != wanted.repo_id)
    names += [f"the cached {name}" for name in nearest(wanted.repo_id, cached, 1)]
    if names:
        return "; or use " + " or ".join(names)
    return "; or use a preset (memplan show models)" if wanted.presets else ""
