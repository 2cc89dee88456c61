"""Where a command's result goes, and in which form: one way for all commands; and what stands for a character that a
terminal's encoding has not."""

import codecs
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan.errors import UsageError, did_you_mean, printable, printable_json
from memplan.lang import ENGLISH, use
from memplan.units import pairs_of

INSTEAD = {
    **pairs_of("""×=x −=- –=- —=- …=... ≥=>= ≤=<= ≈=~ →=-> ·=. “=" ”=" ‘=' ’=' │=| ─=- └=| ◀=<"""),
    "\u00a0": " ",
    **dict.fromkeys("█▉▊▋▌", "#"),
    **dict.fromkeys("▍▎▏", ""),
}
HANDLER = "memplan"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """As codecs call it: the replacement, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(INSTEAD.get(char, "?") for char in found), error.end


codecs.register_error(HANDLER, _replaced)


if TYPE_CHECKING:
    from memplan.render.blocks import View

FORMATS = ("table", "json", "yaml", "csv", "markdown")
ENDINGS = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".csv": "csv", ".md": "markdown"}
"""What a file's name says where no format is given."""
PICTURES = {".svg": "svg", ".png": "png"}
"""Those of commands that draw."""
EXIT_PIPE_CLOSED = 141
"""What a shell reports for a program that SIGPIPE ends."""


class Result(NamedTuple):
    """What a command found, made only in the form that is asked for."""

    data: Callable[[], Any]
    """What JSON and YAML hold."""
    view: "View"
    """Blocks for a screen or for Markdown."""
    rows: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """The lines of CSV; None where the result is no list."""
    drawing: Callable[[], str] | None = None
    """The SVG; None where the result is no picture."""
    kind: str = ""
    """The command, where its result has a page."""
    page: Callable[[], Any] | None = None
    """What the page shows, where that is more than JSON holds."""


class Output(NamedTuple):
    """The form and the place of a result."""

    form: str = "table"
    path: str | None = None
    force: bool = False
    html: str | None = None
    """Where the page goes, beside the result."""

    def write(self, result: Result) -> None:
        """Make the text of a result and write it. Raises UsageError for a place that cannot be written."""
        self.write_page(result)
        if self.form == "png" and self.path is not None:
            use(ENGLISH)  # a machine that draws pixels may have no letters of another language
            write_report(self.path, png_of(self._replace(form="svg").text(result)), self.force)
        elif self.path is None:
            print_text(self.text(result), self.form == "table")
        else:
            write_report(self.path, self.text(result), self.force)

    def write_page(self, result: Result) -> None:
        """Write the page, where one is asked for."""
        if self.html is not None:
            write_report(self.html, Output("html", self.html).text(result), self.force)

    def text(self, result: Result) -> str:
        """The result in this form; text and Markdown for a file are as wide as when piped."""
        from memplan.render import data

        if self.form == "json":
            return printable_json(data.to_json(result.data()))
        if self.form == "yaml":
            return data.to_yaml(result.data())
        if self.form == "csv":
            if result.rows is None:
                raise UsageError("this result is no list, so it has no CSV", "use --format json or yaml")
            return data.to_csv(result.rows())
        if self.form == "svg" and result.drawing is not None:
            return result.drawing()
        from memplan.render import text

        if self.form == "html":
            from memplan.page import dressed, page
            from memplan.render.instants import moment_words

            payload = dressed((result.page or result.data)(), moment_words)
            return page(result.kind, payload, text.plain(result.view(text.PIPED_WIDTH)))

        if self.form == "markdown":
            return data.to_markdown(result.view(text.PAPER_WIDTH))
        if self.path is not None:
            return text.plain(result.view(text.PIPED_WIDTH))
        width = text.screen_width()
        return text.screen_text(result.view(width), width)


def read_output(values: Mapping[str, Any], default: str = "table", draws: bool = False, shows: bool = False) -> Output:
    """The form and place asked for, checked before any work. ``draws``: pictures are forms; ``shows``: pages are."""
    more = (PICTURES if draws else {}) | ({".html": "html"} if shows else {})
    forms, endings = (*FORMATS, *more.values()), ENDINGS | more
    path, force, form = values.get("output"), bool(values.get("force")), values.get("format_")
    if path is None:
        _check_open()
    if form is not None:
        form = {"md": "markdown", "text": "table"}.get(form.lower(), form.lower())
        if form not in forms:
            raise UsageError(f"--format: unknown form {form!r}", did_you_mean(form, forms))
    if values.get("json") and form not in (None, "json"):
        raise UsageError(f"--json contradicts --format {form}", "leave one of them out")
    if values.get("json"):
        form = "json"
    if path is not None:
        check_place(path, force)
        form = form or _form_of(path, endings)
    if form == "png":
        _check_png(path)
    return Output(form or default, path, force, page_place(values))


def page_place(values: Mapping[str, Any]) -> str | None:
    """Where --html says that the page goes. Raises UsageError for a place that cannot be written."""
    path = values.get("html")
    if path is None:
        return None
    check_place(path, bool(values.get("force")), "--html")
    if values.get("output") is not None and os.path.realpath(path) == os.path.realpath(values["output"]):
        raise UsageError(f"--html and --output are both {path}", "leave one of them out")
    return str(path)


def _check_png(path: str | None) -> None:
    """Refuse a PNG that cannot be made, or has no place."""
    from importlib.util import find_spec

    if path is None:
        raise UsageError("--format png needs a file to write", "name one: --output step.png")
    if find_spec("resvg_py") is None:
        hint = 'pip install "memplan[png]", or write SVG, which needs nothing: name a file that ends in .svg'
        raise UsageError(f"--output {path}: a PNG is drawn by resvg-py, which is not installed", hint)


def png_of(drawn: str) -> bytes:
    """An SVG as pixels, twice as fine as it says, on light ground."""
    from resvg_py import svg_to_bytes

    return bytes(svg_to_bytes(svg_string=drawn, zoom=2))


AS_TEXT = ("", ".txt", ".text", ".log", ".out")
"""Endings of files that hold what a screen shows."""


def _form_of(path: str, endings: Mapping[str, str]) -> str | None:
    """The form that a file's ending says. Raises UsageError for an ending of another kind, such as .pdf."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in endings and ending not in AS_TEXT and not path.startswith("/dev/"):
        hint = f"end it in {', '.join(endings)} or .txt, or say --format table"
        raise UsageError(f"--output {path}: nothing is written as {ending}", hint)
    return endings.get(ending)


def check_place(path: str, force: bool, option: str = "--output") -> None:
    """Refuse what could not be written in the end."""
    if os.path.isdir(path):
        raise UsageError(f"{option} {path} is a folder", "name a file in it")
    if os.path.exists(path) and not force:
        raise UsageError(f"{option} {path} exists already", "add --force to overwrite it, or name another file")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"{option} {path}: there is no folder {folder}", "make the folder first, or name another")


def write_report(path: str, text: str | bytes, force: bool) -> None:
    """Write a file; one that came to be meanwhile is not overwritten either."""
    from memplan.files import write_whole

    try:
        write_whole(path, text, force)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {path}: {reason}", "name a file that can be written") from None


def _check_open() -> None:
    if sys.stdout is None:
        raise UsageError("standard output is closed", "name a file with --output")


def print_text(text: str, is_screen_text: bool = True) -> None:
    """Write to standard output. A reader who has left ends the program quietly."""
    import typer

    _check_open()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # Data is UTF-8 whatever the locale says; what a terminal cannot show becomes what comes near it.
        reconfigure(errors=HANDLER) if is_screen_text else reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        sys.stdout.write(text if is_screen_text or not sys.stdout.isatty() else printable(text))
        sys.stdout.flush()
    except BrokenPipeError:
        leave_pipe()
        raise typer.Exit(EXIT_PIPE_CLOSED) from None
    except OSError as error:
        leave_pipe()
        raise UsageError(f"cannot write to standard output: {error.strerror}", "name a file with --output") from None


def leave_pipe() -> None:
    """Let the interpreter's last flush go nowhere, since it would complain."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        return
