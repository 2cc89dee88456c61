"""A spinner or a bar for what takes long: on a terminal only, and after a moment, so that fast work shows nothing."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as Progress_
    from rich.status import Status

DELAY_S = 0.3
"""What a person takes for immediate; rich is not imported before."""


def on_terminal() -> bool:
    """Whether standard error is a terminal; one that is closed is none."""
    return sys.stderr is not None and sys.stderr.isatty()


class _Late:
    """A rich status that starts when its delay is over, unless the work has ended by then."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lock = threading.Lock()
        self.ended = False
        self.status: Status | None = None
        self.timer = threading.Timer(DELAY_S, self.start)
        self.timer.daemon = True

    def start(self) -> None:
        """Show the spinner (in the timer's thread)."""
        from rich.console import Console
        from rich.status import Status

        with self.lock:
            if not self.ended:
                self.status = Status(self.text, console=Console(stderr=True))
                self.status.start()

    def end(self) -> None:
        """Take it away, or see to it that it never shows."""
        self.timer.cancel()
        with self.lock:
            self.ended = True
            if self.status is not None:
                self.status.stop()


class Progress:
    """A spinner that says how far the work is."""

    def __init__(self, text: str) -> None:
        self._late = _Late(text) if on_terminal() else None

    def __enter__(self) -> "Progress":
        if self._late is not None:
            self._late.timer.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._late is not None:
            self._late.end()

    def tell(self, text: str) -> None:
        """Say what is being done now."""
        if self._late is not None:
            with self._late.lock:
                self._late.text = text
                if self._late.status is not None:
                    self._late.status.update(text)


BAR_DELAY_S = 1.0


class Bar:
    """A bar for what goes through many things: on a terminal only, and only when it takes longer than a second.

    Called with what is being done, how far it is, and of how many; 0 of 0 where nobody knows, which is a spinner.
    ``threaded``: it turns between calls, too."""

    def __init__(self, threaded: bool = True) -> None:
        self._shows, self._threaded = on_terminal(), threaded
        self._begun = time.monotonic()
        self._bar: Progress_ | None = None
        self._task: Any = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, text: str, done: int, whole: int) -> None:
        """Say how far it is."""
        if not self._shows or (self._bar is None and time.monotonic() - self._begun < BAR_DELAY_S):
            return
        if self._bar is None:
            self._start()
        assert self._bar is not None
        self._bar.update(self._task, description=text, completed=done, total=whole or None, refresh=not self._threaded)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=self._threaded)
        self._bar.start()
        self._task = self._bar.add_task("", total=None)


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show ``text`` and a spinner on stderr while the block runs, when it takes longer than 300 ms."""
    if not on_terminal():
        yield
        return
    late = _Late(text)
    late.timer.start()
    try:
        yield
    finally:
        late.end()
