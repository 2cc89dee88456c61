"""The files of the page: the form, what asks, what draws."""

import json
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files

from memplan.page import document
from memplan.web.fields import form

HTML, SCRIPT, STYLE, JSON = "text/html", "text/javascript", "text/css", "application/json"
SCRIPTS = ("state.js", "form.js", "ask.js", "main.js")
"""Of the form, in the order in which they build on each other."""


def _static(name: str) -> str:
    return (files("memplan.web") / "static" / name).read_text(encoding="utf-8")


def index(backend: str) -> str:
    """The page. ``backend``: the script that says who answers."""
    names = ["draw.js", *SCRIPTS[:-1], backend, SCRIPTS[-1]]
    loaded = "\n".join(f'<script src="{name}" defer></script>' for name in names)
    return _static("index.html").replace("<!-- scripts -->", loaded)


def _drawn(what: str) -> str:
    found: str = getattr(document, what)()
    return found


MAKERS: dict[str, tuple[Callable[[], str], str]] = {
    "index.html": (lambda: index("fetched.js").replace("<!-- policy -->\n", ""), HTML),
    "draw.js": (lambda: _drawn("script"), SCRIPT),
    "draw.css": (lambda: _drawn("style"), STYLE),
    "form.css": (lambda: _static("form.css"), STYLE),
    "fields.json": (lambda: json.dumps(form(), ensure_ascii=False), JSON),
    "icon.svg": (lambda: _static("icon.svg"), "image/svg+xml"),
    **{name: (partial(_static, name), SCRIPT) for name in (*SCRIPTS, "fetched.js")},
}
"""Every file by its name: how it is made, and what it is."""


@cache
def page_file(name: str) -> tuple[bytes, str] | None:
    """A file of the page with its kind; None for a name that is none of them."""
    if name not in MAKERS:
        return None
    make, media = MAKERS[name]
    return make().encode(), media
