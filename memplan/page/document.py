"""The page's HTML. What comes of an answer is text or data in it, never markup, whatever a model or a log is called."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Protocol

from memplan.errors import printable
from memplan.lang import language
from memplan.page.dressing import dressed
from memplan.page.packing import fitted

SCRIPTS = ("base", "bar", "timeline", "ledger", "parts", "plans", "traced", "kinds")
"""Files of the script, in the order in which they build on each other."""
KINDS = ("estimate", "check", "compare", "plan", "diagnose", "trace", "measure")
"""The commands whose answers have a page."""
LARGEST = 1_350_000
"""Characters of data in a page, of the 1.5 MB that it may have; the script and the text are the rest."""
TEXT = 60_000
"""Characters of the text that is read without JavaScript."""


@cache
def script() -> str:
    """The script: all its files."""
    return "".join(_static(f"{name}.js") for name in SCRIPTS)


@cache
def style() -> str:
    """The looks."""
    return _static("page.css")


def _static(name: str) -> str:
    return (files("memplan.page") / "static" / name).read_text(encoding="utf-8")


def policy() -> str:
    """What a browser may do with the page: run its own script, apply its own style, and ask nobody for anything."""
    return (
        f"default-src 'none'; script-src '{_digest(script())}'; style-src '{_digest(style())}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def page(kind: str, payload: Mapping[str, Any] | Sequence[Any], text: str = "") -> str:
    """The page of an answer: ``payload`` is what ``--json`` prints for ``kind``, ``text`` is for no script."""
    title = f"memplan {kind}{_of(payload)}"
    shown = text if len(text) <= TEXT else f"{text[:TEXT]}\n…"
    return f"""<!doctype html>
<html lang="{language()}" class="memplan-page">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy()}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{_text(title)}</title>
<style>{style()}</style>
</head>
<body class="memplan">
<div class="memplan-wide">
<header><h1>{_text(title)}</h1></header>
<main id="memplan-answer"></main>
<noscript><pre>{_text(shown) or "This page draws with JavaScript."}</pre></noscript>
</div>
<script type="application/json" id="memplan-payload" data-kind="{_text(kind)}">{fitted(payload, LARGEST)}</script>
<script>{script()}</script>
</body>
</html>
"""


class Answer(Protocol):
    """What says itself as JSON has it: a report, a comparison, plans."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON."""


def shown(kind: str, answer: Answer) -> str:
    """An answer as a notebook shows it."""
    return framed(kind, dressed(answer.to_dict()))


def framed(kind: str, payload: Mapping[str, Any] | Sequence[Any]) -> str:
    """The page inside another, such as a notebook: a frame of its own, whose script reaches nothing around it."""
    inner = page(kind, payload).replace("&", "&amp;").replace('"', "&quot;")
    return (
        f'<iframe title="memplan {_text(kind)}" sandbox="allow-scripts" allow="clipboard-write" '
        f'style="width:100%;height:760px;border:0" srcdoc="{inner}"></iframe>'
    )


def _text(text: str) -> str:
    """A text as HTML shows it, with nothing in it that a terminal or a browser would take for more."""
    return escape(printable(text))


def _of(payload: Mapping[str, Any] | Sequence[Any]) -> str:
    """': llama-3.1-8b' of a report."""
    model = payload.get("model") if isinstance(payload, Mapping) else None
    name = model.get("name") if isinstance(model, Mapping) else None
    return f": {name}" if isinstance(name, str) else ""
